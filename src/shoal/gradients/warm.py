"""Warm starts: where to begin a solve if similar ones came before it."""

import torch
from torch import Tensor

__all__ = ["Recall", "SolveLog", "WarmStart"]

from dataclasses import dataclass, field

from shoal.solvers import Solution

# Polynomial extrapolation through the last solutions, newest first.
_COEFFICIENTS = ((1.0,), (2.0, -1.0), (3.0, -3.0, 1.0), (4.0, -6.0, 4.0, -1.0))


class Recall:
    """The last solutions of a slowly changing problem, and an extrapolation of them.

    Which degree is extrapolated with is decided by hindsight: the one that would have come
    closest to the newest solution.
    """

    def __init__(self, order: int = 3) -> None:
        self.order = order
        self.past: list[Tensor] = []
        self.degree = 0

    def clear(self) -> None:
        """Forget everything."""
        self.past, self.degree = [], 0

    def guess(self, like: Tensor) -> Tensor | None:
        """Where to start, or ``None`` if nothing of that shape, dtype and device is known."""
        if not self.past or not _alike(self.past[0], like):
            return None
        return self._extrapolate(self.degree)

    def remember(self, value: Tensor) -> None:
        """Add the newest solution."""
        value = value.detach()
        if self.past and not _alike(self.past[0], value):
            self.clear()
        if self.past:
            misses = [
                torch.linalg.vector_norm(self._extrapolate(degree) - value)
                for degree in range(len(self.past))
            ]
            best = int(torch.stack(misses).nan_to_num(nan=torch.inf).argmin())
            # a degree higher is possible now than before: try it if the highest was the best
            self.degree = min(best + (best == len(self.past) - 1), self.order)
        self.past = [value, *self.past][: self.order + 1]

    def _extrapolate(self, degree: int) -> Tensor:
        coefficients = _COEFFICIENTS[min(degree, len(self.past) - 1)]
        guess = self.past[0] * coefficients[0]
        for factor, value in zip(coefficients[1:], self.past[1:], strict=False):
            guess = guess.add_(value, alpha=factor)
        return guess


@dataclass(eq=False)
class WarmStart:
    """What the forward and the backward solves of a network recall."""

    forward: Recall = field(default_factory=Recall)
    backward: Recall = field(default_factory=Recall)

    def clear(self) -> None:
        """Forget everything."""
        self.forward.clear()
        self.backward.clear()


@dataclass(eq=False)
class SolveLog:
    """The outcome of the last forward and of the last backward solve."""

    forward: Solution | None = None
    backward: Solution | None = None


def _alike(first: Tensor, second: Tensor) -> bool:
    return (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device)
