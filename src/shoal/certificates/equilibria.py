r"""The equilibrium of a recurrent layer, with bounds of how far it is from the true one.

For $Z = \varphi(W Z + J)$ and any $\hat Z$, $\|Z - \hat Z\|_F \le \|\varphi(W \hat Z + J) -
\hat Z\|_F / (1 - L \|W\|)$. The residual is computed in floating point, and a bound of its rounding
is added. Likewise for the adjoint $b = a + W^\top D b$. Samples are rows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.activations import Activation, Smoothness
from shoal.certificates.enclosures import (
    TINY,
    evaluate,
    exact,
    gamma,
    norm_upper,
    row_norms,
    smoothness,
    spectral_norm,
)
from shoal.core.rounding import ROUND_UP, UNIT, down, up

_FREE = 1e-280  # squared distances below it, where squares lose digits, are taken for zero
_TINY_ROOT = 1e-150  # more than underflows of squared adjoints
_STEPS = 5000  # enough for all digits at a gain of 0.993


class NotContractingError(ArithmeticError):
    """The recurrent layer cannot be proved to be a contraction.

    Attributes:
        gain: A bound of its Lipschitz constant.
    """

    def __init__(self, gain: float) -> None:
        super().__init__(f"the gain of the recurrent layer is only known to be below {gain:.4g}")
        self.gain = gain


class Enclosed(NamedTuple):
    """A matrix with one row for each sample, as computed, and its error in the Frobenius norm."""

    value: Tensor
    error: float


class Crossings:
    r"""A bound of the weight of units that cross a kink, by how far preactivations can move.

    If preactivations at distances $d_r$ from the nearest kink move by at most $\beta$ together, the
    units that cross have $\sum_r d_r^2 \le \beta^2$. Of all such sets, the one with the largest
    weight $\sum_r w_r^2$ is a knapsack, which is bounded by its linear relaxation: units in the
    order of $w_r^2/d_r^2$, the last one in part. The bound increases with $\beta$.

    Args:
        distances: $d_r$, float64; a row for each sample.
        weights: $w_r$, of the same shape.
    """

    def __init__(self, distances: Tensor, weights: Tensor) -> None:
        cost, value = distances.square(), weights.square()
        cost = torch.where(cost < _FREE, 0.0, cost)
        ratio = torch.where(cost > 0, value / cost, math.inf)
        order = ratio.argsort(dim=1, descending=True)
        start = torch.zeros(len(cost), 1, dtype=cost.dtype)
        self._costs = torch.cat([start, cost.gather(1, order).cumsum(1)], 1)
        self._values = torch.cat([start, value.gather(1, order).cumsum(1)], 1)
        self._growth = 1 + gamma(4 * cost.shape[1] + 64)

    def weight(self, move: Tensor) -> Tensor:
        r"""An upper bound of $(\sum_r w_r^2)^{1/2}$ for each sample.

        Args:
            move: $\beta$, one for each sample.
        """
        budget = (move.square() * self._growth)[:, None]
        last = self._costs.shape[1] - 1
        count = torch.searchsorted(self._costs, budget, right=True).sub(1).clamp(0, last)
        following = (count + 1).clamp(max=last)
        cost, value = self._costs.gather(1, count), self._values.gather(1, count)
        step = self._costs.gather(1, following) - cost
        share = torch.where(step > 0, (budget - cost) / step, torch.ones_like(step)).clamp(0, 1)
        total = value + share * (self._values.gather(1, following) - value)
        return (total[:, 0] * self._growth).sqrt() * self._growth

    def weight_within_step(self, moves: Tensor, stride: float) -> Tensor:
        """The same for the units that cross a kink within a step of gradient descent.

        Args:
            moves: How far preactivations may be from the computed ones, at both ends of the step.
            stride: How far they may be from each other.
        """
        return self.weight(torch.minimum(moves + stride, math.sqrt(2) * moves) * ROUND_UP)


@dataclass(frozen=True)
class EnclosedEquilibrium:
    r"""An equilibrium and its adjoints; all numbers are upper bounds.

    Attributes:
        features: The computed $\hat Z$ and its error; shape (samples, width).
        preactivation_error: The error of the preactivations.
        weight_norm: $\|W\|_2$.
        features_norm: $\|Z\|_2$.
        sample_norms: $\|z_i\|$ for each sample.
        slopes: $\varphi'$ at the computed preactivations.
        adjoints: The computed $b_i$; shape (outputs, samples, width).
        adjoint_norms: $\|b_i\|$ for each sample.
        adjoint_peak: The largest weight of a unit in any $b_i$, all outputs together.
        adjoint_error: The error of the adjoints, given the computed slopes.
        slope_error: The error of the slopes.
        crossings: The weight of units that cross a kink in the adjoints.
        smooth: The activation's constants.
        proved: Whether all these bounds are proved.
    """

    features: Enclosed
    preactivation_error: float
    weight_norm: float
    features_norm: float
    sample_norms: Tensor
    slopes: Tensor
    adjoints: Tensor
    adjoint_norms: Tensor
    adjoint_peak: float
    adjoint_error: float
    slope_error: float
    crossings: Crossings
    smooth: Smoothness
    proved: bool

    def adjoint_moves(
        self, moves: Tensor, *, readout: Fraction, recurrent: Fraction, gap: Fraction
    ) -> Tensor:
        """How far the adjoint of each sample may be from the computed one.

        Args:
            moves: How far its preactivations may be from the computed ones.
            readout: How far the readout may be from its start.
            recurrent: The same for the recurrent weights.
            gap: By how much the gain is below one, at least.
        """
        smooth, sizes = self.smooth, self.adjoint_norms
        turned = smooth.jump * self.crossings.weight(moves)
        if smooth.curvature:
            turned = turned + smooth.curvature * self.adjoint_peak * moves
        turned = torch.minimum(turned, 2 * smooth.lipschitz * sizes) + self.slope_error * sizes
        total = up(readout) + smooth.lipschitz * up(recurrent) * sizes
        total = total + self.weight_norm * turned + self.adjoint_error
        return total / down(gap) * ROUND_UP

    def crossing_weight(self, moves: Tensor, stride: float, adjoint_moves: Tensor) -> Fraction:
        """The weight of units that cross a kink within a step, in the adjoint of any sample.

        Args:
            moves: How far preactivations may be from the computed ones, at both ends of the step.
            stride: How far they may be from each other.
            adjoint_moves: How far adjoints may be from the computed ones.
        """
        weight = self.crossings.weight_within_step(moves, stride) + adjoint_moves
        return exact(up(float(weight.max()) * ROUND_UP))


def enclose_equilibrium(
    weight: Tensor, injection: Enclosed, readout: Tensor, phi: Activation
) -> EnclosedEquilibrium:
    """Solve for the equilibrium and the adjoint, and bound their errors.

    Args:
        weight: The effective $W$ in float64, which may be off by one rounding per entry.
        injection: The injected inputs.
        readout: The effective readout, of shape (outputs, width).
        phi: The activation.

    Raises:
        NotContractingError: If the layer is not known to be a contraction.
    """
    smooth = smoothness(phi)
    size = norm_upper(weight)
    norm = up(spectral_norm(weight) + 2 * UNIT * size)
    gain = up(smooth.lipschitz * norm)
    if not gain < 1 or math.isinf(smooth.lipschitz):
        raise NotContractingError(math.inf if math.isnan(gain) else gain)

    def preactivation(z: Tensor) -> Tensor:
        return torch.addmm(injection.value, z, weight.T)

    z = _iterate(lambda z: phi(preactivation(z)), phi(injection.value))
    inner = preactivation(z)
    rounding = gamma(weight.shape[1] + 4) * (size * norm_upper(z) + norm_upper(injection.value))
    inner_error = up(rounding + injection.error) + TINY
    at = evaluate(phi, inner)
    residual = norm_upper(at.values - z) * (1 + 2 * UNIT)
    residual += smooth.lipschitz * inner_error + norm_upper(at.error)
    error = up(up(residual) / (1 - gain) * (1 + 8 * UNIT))
    pairs = [_adjoint(weight, at.slopes, row.expand_as(z), size) for row in readout]
    adjoints, total = torch.stack([b for b, _ in pairs]), _TINY_ROOT
    for _, adjoint_residual in pairs:
        total = math.hypot(total, adjoint_residual) * (1 + 1e-12)
    adjoint_error = up(total / (1 - gain) * (1 + 8 * UNIT))
    weights = adjoints.square().sum(0).sqrt() * (1 + gamma(len(readout) + 8))
    return EnclosedEquilibrium(
        features=Enclosed(z, error),
        preactivation_error=up(inner_error + norm * error),
        weight_norm=norm,
        features_norm=up(spectral_norm(z) + error),
        sample_norms=row_norms(z) + error,
        slopes=at.slopes,
        adjoints=adjoints,
        adjoint_norms=row_norms(weights) + adjoint_error,
        adjoint_peak=up(float(weights.max()) + adjoint_error),
        adjoint_error=adjoint_error,
        slope_error=up(float(at.slope_error.max())),
        crossings=Crossings(_kink_distances(inner, smooth), weights),
        smooth=smooth,
        proved=at.proved,
    )


def _iterate(apply: Callable[[Tensor], Tensor], state: Tensor) -> Tensor:
    """Iterate until nothing more is gained."""
    best = math.inf
    for _ in range(_STEPS):
        new = apply(state)
        change = float((new - state).abs().max())
        if change == 0 or (change < 1e-12 * float(new.abs().max()) and change >= best):
            break
        state, best = new, change
    return state


def _adjoint(weight: Tensor, slopes: Tensor, start: Tensor, size: float) -> tuple[Tensor, float]:
    r"""$b_i = a + W^\top D_i b_i$ for one output, and a bound of its residual."""

    def apply(b: Tensor) -> Tensor:
        return start + (slopes * b) @ weight

    b = _iterate(apply, start.clone())
    scale = norm_upper(start) + size * norm_upper(slopes * b) + norm_upper(b)
    return b, norm_upper(apply(b) - b) + gamma(len(weight) + 8) * scale


def _kink_distances(inner: Tensor, smooth: Smoothness) -> Tensor:
    """How far each preactivation is from the nearest kink, rounded down."""
    if not smooth.kinks:
        return torch.full_like(inner, 1e300)
    places = torch.tensor(smooth.kinks, dtype=inner.dtype)
    return (inner[..., None] - places).abs().min(-1).values * (1 - 4 * UNIT)
