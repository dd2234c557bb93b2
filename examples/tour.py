"""A tour of shoal."""

from importlib.metadata import version

import shoal

print(f"{shoal.__name__} {version('shoal')}")
