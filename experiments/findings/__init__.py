"""Experiments of shoal's own results, beyond the papers."""
