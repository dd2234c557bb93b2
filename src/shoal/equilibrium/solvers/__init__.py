"""Solvers of fixed points, the problems they see, and the one loop that drives them."""
