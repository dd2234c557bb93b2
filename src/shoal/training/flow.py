r"""Gradient flow.

$\dot\theta = -\nabla\Phi(\theta)$ is integrated by the pair of Dormand and Prince of orders 5 and
4, with steps of its own between the times that are asked for.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.exceptions import ConvergenceError
from shoal.training.objective import Evaluation, Objective


class LostEquilibriumError(ConvergenceError):
    """There is no equilibrium, or none was found, where a step leads."""


# Dormand and Prince 1980: stages, and the difference of the two orders' weights.
_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
_SAFETY, _SHRINK, _GROW = 0.9, 0.2, 5.0
_FIRST = 0.1  # the first step, in units of the time in which the loss falls
_SHORTEST = 1e-10  # of the time between two steps


class _Attempt(NamedTuple):
    """A step that was tried.

    Attributes:
        excess: By what factor its error is too large; if it is, the weights are where they were.
        slopes: The gradients at its end, if it is not.
        converged: Whether all equilibria were found.
    """

    excess: float
    slopes: list[Tensor]
    converged: bool


class Flow:
    r"""Gradient flow from one time to the next.

    A step is accepted if its error is below ``rtol`` times the distance that the weights have come
    from their start.

    Args:
        interval: The time between two steps.
        rtol: The tolerance.
    """

    def __init__(self, interval: float, rtol: float) -> None:
        self.interval, self.rtol = interval, rtol
        self.size = math.inf  # of the next internal step

    @torch.no_grad()
    def advance(self, objective: Objective, now: Evaluation) -> bool:
        """Integrate over the interval.

        Returns:
            Whether all equilibria on the way were found, where the network does not raise.

        Raises:
            LostEquilibriumError: If no step is short enough to keep the equilibrium.
            ConvergenceError: If none is for another reason.
        """
        if math.isinf(self.size) and now.square_gradient > 0:
            self.size = _FIRST * now.loss / now.square_gradient
        left, slope, converged = self.interval, now.gradients, True
        while left > 0:
            # a rest of rounding would be a step of its own
            last = self.size >= left * (1 - 1e-12)
            size = left if last else self.size
            tried = self._attempt(objective, slope, size)
            factor = min(max(_SAFETY * max(tried.excess, 1e-10) ** -0.2, _SHRINK), _GROW)
            if tried.excess > 1:
                self.size = size * min(factor, 1.0)
                if self.size < _SHORTEST * self.interval:
                    raise self._failure(tried)
                continue
            self.size = max(self.size, size * factor) if last else size * factor
            left, slope = 0.0 if last else left - size, tried.slopes
            converged = converged and tried.converged
        return converged

    def _failure(self, tried: _Attempt) -> ConvergenceError:
        """What to say if even a very short step is too long."""
        words = f"the flow cannot be followed to {self.rtol:g}: its steps are below {self.size:.2g}"
        if not tried.converged:
            return LostEquilibriumError(f"{words}, and an equilibrium is lost where they lead")
        return ConvergenceError(
            f"{words}, the loss is lost, or rtol is below what equilibria and dtype can resolve"
        )

    def _attempt(self, objective: Objective, slope: list[Tensor], size: float) -> _Attempt:
        """Try a step."""
        weights = objective.parameters
        before = [w.clone() for w in weights]
        slopes, converged = [slope], True
        try:
            for row in _STAGES:
                _copy(weights, before)
                for factor, stage in zip(row, slopes, strict=True):
                    _add(weights, stage, -size * factor)
                found = objective.shared()
                converged = converged and found.converged
                if not found.finite:
                    return self._reject(weights, before, math.inf, converged)
                slopes.append(found.gradients)
        except ConvergenceError:  # the equilibrium is lost where the step leads: a shorter one
            return self._reject(weights, before, math.inf, False)
        error = [torch.zeros_like(w) for w in weights]
        for factor, stage in zip(_ERROR, slopes, strict=True):
            _add(error, stage, size * factor)
        step = [w - b for w, b in zip(weights, before, strict=True)]
        allowed = self.rtol * (self._way(objective) + _length(step))
        excess = _length(error) / allowed if allowed > 0 else 0.0
        if not excess <= 1:  # or NaN
            return self._reject(weights, before, excess, converged)
        return _Attempt(excess, slopes[-1], converged)

    @staticmethod
    def _reject(
        weights: list[Tensor], before: list[Tensor], excess: float, converged: bool
    ) -> _Attempt:
        _copy(weights, before)
        return _Attempt(excess if math.isfinite(excess) else math.inf, [], converged)

    @staticmethod
    def _way(objective: Objective) -> float:
        return math.hypot(*objective.distances().values())

    def output_error(self, objective: Objective, now: Evaluation) -> float:
        """The tolerance, by how outputs react to weights along the gradient."""
        error = math.sqrt(2 * now.loss * objective.divisor)
        if error == 0:
            return 0.0
        reaction = math.sqrt(now.square_gradient) * objective.divisor / error
        return reaction * self.rtol * self._way(objective)

    def state(self) -> dict[str, Tensor]:
        """The size of the next internal step."""
        return {"size": torch.tensor(self.size, dtype=torch.float64)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state."""
        self.size = float(state["size"])


def _copy(tensors: list[Tensor], others: list[Tensor]) -> None:
    for tensor, other in zip(tensors, others, strict=True):
        tensor.copy_(other)


def _add(tensors: list[Tensor], others: list[Tensor], factor: float) -> None:
    for tensor, other in zip(tensors, others, strict=True):
        tensor.add_(other, alpha=factor)


def _length(tensors: list[Tensor]) -> float:
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors]
    return float(torch.linalg.vector_norm(torch.stack(norms)))
