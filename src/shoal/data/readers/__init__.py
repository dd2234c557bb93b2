"""Readers of data, one file each. What a file reads is said by a decorator beside it."""

__all__: list[str] = []
