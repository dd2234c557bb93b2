"""Experiments that no paper has: shoal's own, on what it adds to them."""
