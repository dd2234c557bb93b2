"""The time and the memory that functions take, on a CPU or on a GPU."""

import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from shoal.core.torch_compat import TorchDispatchMode, pytree

_Result = TypeVar("_Result")


def timed(function: Callable[[], _Result], device: torch.device) -> tuple[_Result, float]:
    """The result of a function, and the seconds until the device has finished it."""
    begin = now(device)
    result = function()
    return result, now(device) - begin


def best_times(
    functions: Mapping[str, Callable[[], object]], device: torch.device, *, repeats: int = 5
) -> dict[str, float]:
    """The shortest of several times of each function, in seconds.

    Runs of the functions are interleaved; each runs once before.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for attempt in range(repeats + 1):
        for name, function in functions.items():
            seconds = timed(function, device)[1]
            if attempt:
                times[name].append(seconds)
    return {name: min(each) for name, each in times.items()}


def now(device: torch.device) -> float:
    """The time at which a device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak_memory(function: Callable[[], _Result], device: torch.device) -> tuple[_Result, int]:
    """The result of a function, and the most bytes that it held at once.

    On a GPU, PyTorch's allocator counts them. Elsewhere they are the bytes of all tensors that its
    operations made and that were alive at once, without the working memory of each operation.

    Args:
        function: The function, which is called once.
        device: The device where it computes.

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
        self.references: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and count its results."""
        result = func(*args, **(kwargs or {}))
        arguments = {storage.data_ptr() for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage.data_ptr() not in arguments:  # neither a view nor an operation in place
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        place, size = storage.data_ptr(), storage.nbytes()

        def forget(_: object) -> None:
            if self.references.pop(place, None) is not None:
                self.bytes -= size

        if place not in self.references:
            self.references[place] = weakref.ref(storage, forget)
            self.bytes += size
            self.peak = max(self.peak, self.bytes)


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    """The storages of all dense tensors in arguments or results."""
    return [
        leaf.untyped_storage()
        for leaf in pytree.tree_leaves(tree)
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided
    ]
