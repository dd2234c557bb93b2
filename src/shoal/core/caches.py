"""Results that are kept for later calls: one store of all of them, of a bounded size."""

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import wraps
from threading import RLock
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")

_MOST = 2**29  # bytes of all results together
_LEAST = 2**10  # bytes that each counts for, with its key
_NOTHING = (type, ModuleType, FunctionType, BuiltinFunctionType, torch.dtype, torch.device)


class _Key:
    """A function and its arguments; hashes of activations take long, and may change later."""

    __slots__ = ("number", "parts")

    def __init__(self, *parts: Hashable) -> None:
        self.parts, self.number = parts, hash(parts)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.parts == other.parts


class _Store:
    """Results by functions and arguments; those unused for longest make room for others."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.clear()

    def clear(self) -> None:
        """Forget everything; also after a fork, as another thread may have held the lock."""
        self.lock = RLock()  # comparing keys may run a user's code
        self.entries: OrderedDict[_Key, tuple[object, int]] = OrderedDict()
        self.size = 0

    def get(self, key: _Key) -> tuple[object, int] | None:
        """A result and its size, which is then the one used last."""
        with self.lock:
            found = self.entries.get(key)
            if found is not None:
                self.entries.move_to_end(key)
            return found

    def put(self, key: _Key, value: object) -> None:
        """Keep a result, unless it is larger than the store."""
        size = _LEAST + _bytes(value, set())
        with self.lock:
            if key in self.entries or size > self.most:
                return
            self.entries[key] = value, size
            self.size += size
            while self.size > self.most:
                self.size -= self.entries.popitem(last=False)[1][1]


_STORE = _Store(_MOST)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_STORE.clear)


def cached(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keep the results of a function of hashable arguments, as long as there is room for them.

    Exceptions are not kept. Activations and what is made of them are good arguments: those that
    are equal have equal values, attributes of classes included.
    """

    @wraps(function)
    def kept(*arguments: _P.args, **options: _P.kwargs) -> _R:
        key = _Key(function, arguments, tuple(sorted(options.items())))
        found = _STORE.get(key)
        if found is not None:
            return found[0]  # type: ignore[return-value]
        value = function(*arguments, **options)
        _STORE.put(key, value)
        return value

    return kept


def clear_caches() -> None:
    """Forget all results that are kept for later calls: fitted series, tables, panels, kinks.

    They hold 512 MiB at most, and make room for others by themselves. What is computed afterwards
    is the same, and takes the time of a first call.

    Example:
        >>> import shoal
        >>> shoal.core.clear_caches()
    """
    _STORE.clear()


def _bytes(value: object, seen: set[int]) -> int:
    """The memory that a value and all it is made of take, each part counted once."""
    if id(value) in seen or isinstance(value, _NOTHING):
        return 0
    seen.add(id(value))
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        if storage.data_ptr() in seen:
            return 0
        seen.add(storage.data_ptr())
        return storage.nbytes()
    if isinstance(value, np.ndarray):
        return _bytes(value.base, seen) if value.base is not None else value.nbytes
    parts: Iterable[object] = vars(value).values() if hasattr(value, "__dict__") else ()
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    return sys.getsizeof(value) + sum(_bytes(part, seen) for part in parts)
