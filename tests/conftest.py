"""What all tests share."""

from hypothesis import settings

# The same examples on every run and every machine; how long one takes says nothing about it.
settings.register_profile("shoal", derandomize=True, deadline=None, database=None)
settings.load_profile("shoal")
