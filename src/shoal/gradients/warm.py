"""Warm starts: where to begin a solve if similar ones came before it."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.solvers import Solution

__all__ = ["Recall", "SolveLog", "WarmStart"]

# Polynomial extrapolation through the last solutions, newest first.
_COEFFICIENTS = ((1.0,), (2.0, -1.0), (3.0, -3.0, 1.0), (4.0, -6.0, 4.0, -1.0))


class _Past(NamedTuple):
    """A solution and its right-hand side."""

    value: Tensor
    right: Tensor | None

    def scaled_to(self, right: Tensor) -> Tensor:
        """The solution for the part of another right-hand side that is parallel to its own."""
        if self.right is None:
            return self.value
        own = (self.right * self.right).sum(1, keepdim=True)
        both = (self.right * right).sum(1, keepdim=True)
        return self.value * (both / torch.where(own > 0, own, 1.0))


class Recall:
    """The last solutions of a slowly changing problem, and an extrapolation of them.

    Which degree is extrapolated with is decided by hindsight: the one that would have come
    closest to the newest solution.
    """

    def __init__(self, order: int = 3) -> None:
        self.order = order
        self.past: list[_Past] = []
        self.degree = 0

    def clear(self) -> None:
        """Forget everything."""
        self.past, self.degree = [], 0

    def guess(self, like: Tensor, *, linear: bool = False) -> Tensor | None:
        """Where to start, or ``None`` if nothing of that shape, dtype and device is known.

        Args:
            like: A tensor like the solution; if the problem is linear, its right-hand side.
            linear: Whether solutions are proportional to the right-hand side. Those of the past
                are then scaled to it before they are extrapolated.
        """
        if not self.past or not _alike(self.past[0].value, like):
            return None
        return self._extrapolate(self._scaled(like if linear else None), self.degree)

    def remember(self, value: Tensor, right: Tensor | None = None) -> None:
        """Add the newest solution, with its right-hand side if the problem is linear."""
        if self.past and not _alike(self.past[0].value, value):
            self.clear()
        if self.past:
            scaled = self._scaled(right)
            misses = [
                torch.linalg.vector_norm(self._extrapolate(scaled, degree) - value)
                for degree in range(len(scaled))
            ]
            best = int(torch.stack(misses).nan_to_num(nan=torch.inf).argmin())
            # a degree higher is possible now than before: try it if the highest was the best
            self.degree = min(best + (best == len(scaled) - 1), self.order)
        self.past = [_Past(value, right), *self.past][: self.order + 1]

    def _scaled(self, right: Tensor | None) -> list[Tensor]:
        if right is None:
            return [past.value for past in self.past]
        return [past.scaled_to(right) for past in self.past]

    def _extrapolate(self, values: list[Tensor], degree: int) -> Tensor:
        coefficients = _COEFFICIENTS[min(degree, len(values) - 1)]
        guess = values[0] * coefficients[0]
        for factor, value in zip(coefficients[1:], values[1:], strict=False):
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
