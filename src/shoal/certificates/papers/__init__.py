"""Theorems of the papers, as printed and corrected."""
