"""The version of shoal."""

__version__ = "0.2.0"
