"""What keeps a recurrent layer a contraction, and what always has an equilibrium."""
