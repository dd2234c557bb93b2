"""Gaussian expectations of activations in ball arithmetic (Arb); nothing of shoal."""
