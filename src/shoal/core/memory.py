"""How much memory a function takes at its peak, besides what was there before."""

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from shoal.core.torch_internals import TorchDispatchMode, results_of, storage_id

_Result = TypeVar("_Result")


def peak_memory(function: Callable[[], _Result], device: torch.device) -> tuple[_Result, int]:
    """What a function returns, and the most bytes that it held at once.

    On a GPU it is what PyTorch's allocator counts. Elsewhere it is the bytes of all tensors that
    its operations made and that were alive at once; what an operation needs for itself while it
    runs does not count, nor does memory that is not of tensors.

    Args:
        function: What is run, once.
        device: Where it computes.

    Example:
        >>> x = torch.zeros(1000, dtype=torch.float64)
        >>> peak_memory(lambda: float((x + 1).exp().sum()), x.device)[1]  # x + 1, its exponential
        16000
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        result = function()
        torch.cuda.synchronize(device)
        return result, torch.cuda.max_memory_allocated(device) - before
    with _Alive() as alive:
        result = function()
    return result, alive.peak


class _Alive(TorchDispatchMode):
    """Counts the bytes of storages that operations made and that are still alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.peak = 0
        self.known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and count what it made."""
        result = func(*args, **(kwargs or {}))
        if not _returns_arguments(func):
            for one in result if isinstance(result, tuple | list) else (result,):
                if isinstance(one, Tensor) and one.layout == torch.strided:
                    self._count(one.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        place, size = storage_id(storage), storage.nbytes()

        def forget(_: object) -> None:
            if self.known.pop(place, None) is not None:
                self.bytes -= size

        if place not in self.known:
            self.known[place] = weakref.ref(storage, forget)
            self.bytes += size
            self.peak = max(self.peak, self.bytes)


@cache
def _returns_arguments(operation: Any) -> bool:
    """Whether an operation returns views of its arguments, or these themselves, changed."""
    return any(one.alias_info is not None for one in results_of(operation))


def memory_words(count: float) -> str:
    """Bytes in words.

    Example:
        >>> memory_words(1010), memory_words(2048)
        ('1010 B', '2 KiB')
    """
    units = iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while count >= 1024 and unit != "GiB":
        count, unit = count / 1024, next(units)
    return f"{count:.0f} {unit}" if count >= 1000 else f"{count:.3g} {unit}"
