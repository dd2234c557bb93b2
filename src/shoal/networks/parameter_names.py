"""Parameters of any module by name."""

from fnmatch import fnmatchcase


def is_named(name: str, pattern: str) -> bool:
    """Whether a pattern means a parameter: its own name, or that of a module that it is part of.

    Example:
        >>> [is_named("blocks.0.linear.bias", p) for p in ("blocks", "*.linear", "*.bias", "bias")]
        [True, True, True, False]
    """
    parts = name.split(".")
    names = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return pattern in names or any(fnmatchcase(one, pattern) for one in names)
