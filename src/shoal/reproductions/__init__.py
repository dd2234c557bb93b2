"""Experiments of papers, one folder each, and shoal's own findings; the registry finds them all."""

__all__: list[str] = []
