r"""The equilibrium of a recurrent layer, with bounds of how far it is from the true one.

For $Z = \varphi(W Z + J)$ and any $\hat Z$, $\|Z - \hat Z\|_F \le \|\varphi(W \hat Z + J) -
\hat Z\|_F / (1 - L \|W\|)$. The residual is computed in floating point; what its rounding may hide
is added to it. Likewise for the adjoint $b = a + W^\top D b$. Samples are rows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.certificates.evidence.activations import Smoothness, evaluate, smoothness
from shoal.certificates.evidence.enclosures import spectral_norm
from shoal.certificates.evidence.kinks import Crossings
from shoal.certificates.evidence.rounding import (
    ROUND_UP,
    TINY,
    UNIT,
    down,
    exact,
    gamma,
    norm_upper,
    row_norms,
    up,
)

_TINY_ROOT = 1e-150  # more than what is lost where squares of adjoints underflow
_STEPS = 5000  # what a gain of 0.993 needs for all digits


class NotContractingError(ArithmeticError):
    """The recurrent layer is not a contraction, as far as can be proved.

    Attributes:
        gain: A bound of its Lipschitz constant.
    """

    def __init__(self, gain: float) -> None:
        super().__init__(f"the gain of the recurrent layer is only known to be below {gain:.4g}")
        self.gain = gain


@dataclass(frozen=True)
class Injection:
    """What the inputs add to a recurrent layer, as it was computed.

    Attributes:
        value: One row for each sample.
        error: How far it may be from the true one, in the Frobenius norm.
    """

    value: Tensor
    error: float


@dataclass(frozen=True)
class Equilibrium:
    r"""An equilibrium and its adjoint, with bounds. All norms are upper bounds.

    Attributes:
        features: $\hat Z$; shape (samples, width).
        feature_error: $\|Z - \hat Z\|_F$ is at most this.
        preactivation_error: The same for what the activation is applied to.
        weight_norm: $\|W\|_2$.
        features_norm: $\|Z\|_2$.
        sample_norms: $\|z_i\|$ for each sample.
        slopes: $\varphi'$ at the computed preactivations.
        adjoints: The computed $b_i$; shape (outputs, samples, width).
        adjoint_norms: $\|b_i\|$ for each sample.
        adjoint_peak: The largest weight of a unit in any $b_i$, all outputs together.
        adjoint_error: How far the computed adjoints may be from those of the computed slopes.
        slope_error: How far the computed slopes may be off.
        crossings: What units that cross a kink can weigh in the adjoints.
        smooth: The activation's constants.
        proved: Whether all these bounds are proved.
    """

    features: Tensor
    feature_error: float
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
        """What units that cross a kink within a step can weigh in the adjoint of any sample.

        Args:
            moves: How far preactivations may be from the computed ones, at both ends of the step.
            stride: How far they may be from each other.
            adjoint_moves: How far adjoints may be from the computed ones.
        """
        weight = self.crossings.weight(within_step(moves, stride)) + adjoint_moves
        return exact(up(float(weight.max()) * ROUND_UP))


def within_step(moves: Tensor, stride: float) -> Tensor:
    """How far kinks that are crossed in a step may be from the computed preactivations."""
    return torch.minimum(moves + stride, math.sqrt(2) * moves) * ROUND_UP


def find_equilibrium(
    weight: Tensor, injection: Injection, readout: Tensor, phi: Activation
) -> Equilibrium:
    """Solve for the equilibrium and the adjoint, and bound their errors.

    Args:
        weight: The effective $W$ in float64, which may be off by one rounding per entry.
        injection: What the inputs add.
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

    z = _settled(lambda z: phi(preactivation(z)), phi(injection.value))
    inner = preactivation(z)
    rounding = gamma(weight.shape[1] + 4) * (size * norm_upper(z) + norm_upper(injection.value))
    inner_error = up(rounding + injection.error) + TINY
    found = evaluate(phi, inner)
    residual = norm_upper(found.values - z) * (1 + 2 * UNIT)
    residual += smooth.lipschitz * inner_error + norm_upper(found.error)
    error = up(up(residual) / (1 - gain) * (1 + 8 * UNIT))
    adjoints, adjoint_error = _adjoints(weight, found.slopes, readout, gain, size)
    weights = adjoints.square().sum(0).sqrt() * (1 + gamma(len(readout) + 8))
    distances = kink_distances(inner, smooth)
    return Equilibrium(
        features=z,
        feature_error=error,
        preactivation_error=up(inner_error + norm * error),
        weight_norm=norm,
        features_norm=up(spectral_norm(z) + error),
        sample_norms=row_norms(z) + error,
        slopes=found.slopes,
        adjoints=adjoints,
        adjoint_norms=row_norms(weights) + adjoint_error,
        adjoint_peak=up(float(weights.max()) + adjoint_error),
        adjoint_error=adjoint_error,
        slope_error=up(float(found.slope_error.max())),
        crossings=Crossings(distances, weights),
        smooth=smooth,
        proved=found.proved,
    )


def _settled(apply: Callable[[Tensor], Tensor], state: Tensor) -> Tensor:
    """Iterate until nothing more is gained."""
    best = math.inf
    for _ in range(_STEPS):
        new = apply(state)
        change = float((new - state).abs().max())
        if change == 0 or (change < 1e-12 * float(new.abs().max()) and change >= best):
            break
        state, best = new, change
    return state


def _adjoints(
    weight: Tensor, slopes: Tensor, readout: Tensor, gain: float, size: float
) -> tuple[Tensor, float]:
    r"""$b_i = a + W^\top D_i b_i$ for each output; shape (outputs, samples, width); its error."""
    results, total = [], _TINY_ROOT
    for row in readout:
        b, residual = _adjoint(weight, slopes, row.expand_as(slopes), size)
        total = math.hypot(total, residual) * (1 + 1e-12)
        results.append(b)
    return torch.stack(results), up(total / (1 - gain) * (1 + 8 * UNIT))


def _adjoint(weight: Tensor, slopes: Tensor, start: Tensor, size: float) -> tuple[Tensor, float]:
    def turn(b: Tensor) -> Tensor:
        return start + (slopes * b) @ weight

    b = _settled(turn, start.clone())
    scale = norm_upper(start) + size * norm_upper(slopes * b) + norm_upper(b)
    return b, norm_upper(turn(b) - b) + gamma(len(weight) + 8) * scale


def kink_distances(inner: Tensor, smooth: Smoothness) -> Tensor:
    """How far each preactivation is from the nearest kink, rounded down."""
    if not smooth.kinks:
        return torch.full_like(inner, 1e300)
    places = torch.tensor(smooth.kinks, dtype=inner.dtype)
    return (inner[..., None] - places).abs().min(-1).values * (1 - 4 * UNIT)
