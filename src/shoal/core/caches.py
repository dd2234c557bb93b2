"""Results that are kept for later calls."""

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_R = TypeVar("_R")

_CLEAR: list[Callable[[], None]] = []


def cached(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keep the latest results of a function of hashable arguments.

    Exceptions are not kept. Activations and architectures are good arguments: equal ones have equal
    values, attributes of classes included.
    """
    kept = lru_cache(64)(function)  # results of up to a few megabytes each
    _CLEAR.append(kept.cache_clear)
    return cast("Callable[_P, _R]", kept)


def clear_caches() -> None:
    """Delete all cached results: fitted series, tables, panels, kinks.

    Each function keeps its 64 latest results. Later results are the same, and take the time of a
    first call.

    Example:
        >>> import shoal
        >>> shoal.core.clear_caches()
    """
    for clear in _CLEAR:
        clear()
