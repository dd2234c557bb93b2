"""Results that are kept for later calls."""

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_R = TypeVar("_R")

_MOST = 64  # results of each function, of up to a few megabytes each
_CLEAR: list[Callable[[], None]] = []


def cached(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keep the latest results of a function of hashable arguments.

    Exceptions are not kept. Activations and what is made of them are good arguments: those that
    are equal have equal values, attributes of classes included.
    """
    kept = lru_cache(_MOST)(function)
    _CLEAR.append(kept.cache_clear)
    return cast("Callable[_P, _R]", kept)


def clear_caches() -> None:
    """Forget all results that are kept for later calls: fitted series, tables, panels, kinks.

    Each function keeps its 64 latest results. What is computed afterwards is the same, and takes
    the time of a first call.

    Example:
        >>> import shoal
        >>> shoal.core.clear_caches()
    """
    for clear in _CLEAR:
        clear()
