"""How long functions take, on a CPU or on a GPU, which goes on by itself."""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

_Result = TypeVar("_Result")


def timed(function: Callable[[], _Result], device: torch.device) -> tuple[_Result, float]:
    """What a function returns, and the seconds until the device has finished it."""
    begin = now(device)
    result = function()
    return result, now(device) - begin


def best_times(
    functions: Mapping[str, Callable[[], object]], device: torch.device, *, repeats: int = 5
) -> dict[str, float]:
    """The shortest of several times of each function, in seconds.

    The functions take turns, so that all see the same machine; each runs once before.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for attempt in range(repeats + 1):
        for name, function in functions.items():
            seconds = timed(function, device)[1]  # what it returned is let go of
            if attempt:
                times[name].append(seconds)
    return {name: min(each) for name, each in times.items()}


def now(device: torch.device) -> float:
    """The time, when all that was asked of a device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
