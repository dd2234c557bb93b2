"""The version of shoal."""

__version__ = "0.1.0"
