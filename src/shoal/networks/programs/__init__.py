"""Networks as programs and source that need no shoal."""
