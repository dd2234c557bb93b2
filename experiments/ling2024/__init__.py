"""The experiments of Ling 2024."""
