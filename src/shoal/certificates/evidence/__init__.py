"""What certificates stand on: rigorous bounds of what floating-point numbers say."""
