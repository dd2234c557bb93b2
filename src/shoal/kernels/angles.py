r"""Kernels of inputs of one norm, as functions of their angle, accurate at all angles.

A covariance is a variance $A$ times $\cos\psi$, kept as $\sin^2\tfrac\psi2$ and
$\cos^2\tfrac\psi2$: sums of covariances are sums of both, and the smaller one keeps its digits.

Near $\theta = 0$ the kernel of a deep network needs $D(0) - D(\theta)$ with all its digits, and
$D(0) + D(\theta)$ near $\pi$, where the duals of odd activations cancel. By Price's theorem
both are integrals of $E(\theta)$, the dual of $\varphi'$:

$D(0) - D(\theta) = 2A \sin^2\tfrac\theta2\; I(\theta)$ and
$D(0) + D(\theta) = 2R + 2A \cos^2\tfrac\theta2\; J(\theta)$,

with the means $I$, $J$ of $E$ over $[0, \theta]$ and $[\theta, \pi]$ (weighted by $\sin$), and
$R = \tfrac14 \mathbb{E}[(\varphi(u) + \varphi(-u))^2]$, which is zero if $\varphi$ is odd.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.panels import gauss_legendre
from shoal.activations.piecewise_polynomial import PiecewisePolynomial
from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError
from shoal.gaussian.closed_forms import BrokenLine, closed_dual, dual_form
from shoal.gaussian.dual import hermite_squares, in_powers
from shoal.gaussian.grids import can_grid, grid
from shoal.gaussian.mixed import mixed_dual_at_angle
from shoal.gaussian.moments import mean as activation_mean
from shoal.gaussian.moments import mean_square, slope_square
from shoal.kernels.fixed_points import solve
from shoal.kernels.pairs import loop_variance
from shoal.kernels.recursions import ActivationOutput, CellLoop, Scalar, VectorCalculus
from shoal.numerics import Chebyshev, fit

_TOLERANCE = 4e-13
_ODD = 1e-14  # an even (or odd) part whose mean square is relatively smaller is rounding
_BLOCK = 1 << 20  # numbers of a mean that are formed together


@dataclass(frozen=True)
class HalfAngle:
    r"""An angle as $\sin^2\tfrac\theta2$ and $\cos^2\tfrac\theta2$, each with all its digits."""

    sine2: Tensor
    cosine2: Tensor

    @classmethod
    def from_angle(cls, angle: Tensor) -> "HalfAngle":
        """From an angle between 0 and π."""
        return cls(torch.sin(angle / 2) ** 2, torch.sin((math.pi - angle) / 2) ** 2)

    @property
    def angle(self) -> Tensor:
        """Between 0 and π."""
        return 2 * torch.atan2(self.sine2.sqrt(), self.cosine2.sqrt())

    @property
    def cosine(self) -> Tensor:
        """The cosine of the whole angle."""
        return self.cosine2 - self.sine2


@dataclass(frozen=True, eq=False)
class AngularDuals:
    r"""The duals of one activation at one variance.

    Attributes:
        variance: $A$.
        square: $D(0)$, the mean square of the activation.
        remainder: $R$, the mean square of the even part.
        even: Whether the activation is even, and $D(\pi) = D(0)$.
        slope: $E(θ)$.
    """

    variance: float
    square: float
    remainder: float
    even: bool
    slope: Chebyshev

    def output_angle(self, half: HalfAngle) -> HalfAngle:
        """The angle between φ(u) and φ(v), given the angle between u and v."""
        angle, ratio = half.angle, self.variance / self.square
        before, after = self._mean(angle), self._mean(math.pi - angle, mirrored=True)
        sine2 = ratio * half.sine2 * before
        if self.even:  # opposite inputs have one image, where I is zero but for rounding
            sine2 = torch.where(half.sine2 > half.cosine2, -ratio * half.cosine2 * after, sine2)
        sine2 = sine2.clamp(min=0.0)  # rounding, if φ is nearly even
        return HalfAngle(sine2, self.remainder / self.square + ratio * half.cosine2 * after)

    def _mean(self, angle: Tensor, *, mirrored: bool = False) -> Tensor:
        r"""$\int_0^\theta E(s) \sin s\,ds / (1 - \cos\theta)$, also at zero; or with E(π - s)."""
        nodes, weights = gauss_legendre(32 + self.slope.degree // 2)
        share = (1 + nodes) / 2
        parts = []
        for block in angle.reshape(-1).split(max(1, _BLOCK // len(nodes))):
            inside = block[:, None] * share
            # sin(θt) θ / (1 - cos θ) without a division by zero
            ratio = torch.sinc(inside / math.pi) / torch.sinc(block / (2 * math.pi))[:, None] ** 2
            values = self.slope(math.pi - inside if mirrored else inside)
            parts.append((values * (2 * share * ratio)) @ (weights / 2))
        return torch.cat(parts).view(angle.shape)


@cached
def angular_duals(phi: Activation, variance: float) -> AngularDuals:
    """The duals of an activation at one variance; cached.

    Raises:
        AccuracyError: If the activation is too rough at this scale for series in the angle.
    """
    if phi.positively_homogeneous and variance != 1:  # then angles do not depend on the variance
        unit = angular_duals(phi, 1.0)
        square, remainder = variance * unit.square, variance * unit.remainder
        return replace(unit, variance=variance, square=square, remainder=remainder)
    duals = _duals(phi, torch.tensor([variance], dtype=torch.float64))
    ends = duals(torch.tensor([0.0, math.pi], dtype=torch.float64))
    slope = _fit(lambda angle: duals(angle)[1], float(ends[1, 0]))
    square = float(mean_square(phi, torch.tensor(variance, dtype=torch.float64))[0])
    opposite = float(ends[0, 1])
    remainder = (square + opposite) / 2
    if remainder < _ODD * square:
        remainder = 0.0
    even = square - opposite < 2 * _ODD * square
    return AngularDuals(variance, square, remainder, even, slope)


def _duals(phi: Activation, variance: Tensor) -> Callable[[Tensor], Tensor]:
    """Both duals as functions of the angle. shape: (2, n)."""
    orders, closed = ((0, 0), (1, 1)), dual_form(phi)

    def in_closed_form(angle: Tensor) -> Tensor:
        assert closed is not None
        a = variance.expand_as(angle)
        if isinstance(closed, BrokenLine):
            return closed.at_angles(a, a, angle)
        triple = a, a, a * angle.cos()
        return torch.stack([closed_dual(closed, order, *triple) for order in (0, 1)])

    def on_grid(angle: Tensor) -> Tensor:
        (near, far), sizes = grid(phi, orders, variance, torch.minimum(angle, math.pi - angle))
        values = torch.where(angle <= math.pi / 2, near[:, 0, 0], far[:, 0, 0])
        return values * torch.cat([sizes[0], sizes[1]])[:, None] ** 2

    def in_panels(angle: Tensor) -> Tensor:
        a = variance.expand_as(angle)
        return torch.stack([mixed_dual_at_angle(phi, j, k, a, a, angle) for j, k in orders])

    if closed is not None:
        return in_closed_form
    if can_grid(phi, orders, float(variance)):
        return on_grid
    if not isinstance(phi, PiecewisePolynomial):
        return in_panels
    squares = hermite_squares(phi, float(variance))
    slopes = torch.arange(len(squares)) * squares
    missing = float(slope_square(phi, variance)[0] * variance - slopes.sum())
    if not abs(missing) <= _ODD * float(slopes.sum()):
        raise AccuracyError(f"{phi!r} has too many pieces for series in the angle")
    return lambda angle: torch.stack(
        [in_powers(phi, float(variance), angle.cos(), order) for order in (0, 1)]
    )


def _fit(function: Callable[[Tensor], Tensor], size: float) -> Chebyshev:
    if size == 0:
        return Chebyshev((0.0, math.pi), torch.zeros(1, dtype=torch.float64))
    return fit(
        function,
        (0.0, math.pi),
        tolerance=_TOLERANCE * size,
        max_degree=4096,
        first_degree=32,
        check_points=32,
    )


class NoAngleError(Exception):
    """A variance is zero, where angles are undefined."""


@dataclass(frozen=True, eq=False)
class _Rotated:
    """Features of one variance and mean, at some angles."""

    variance: float
    half: HalfAngle
    mean: float = 0.0


@dataclass(frozen=True, eq=False)
class Angles(VectorCalculus):
    """The calculus of inputs of one norm at some angles; nothing is differentiable.

    Attributes:
        squared_norm: The squared norm of all inputs.
        half: The angles.
    """

    squared_norm: float
    half: HalfAngle

    def start(self, *, gated: bool) -> tuple[_Rotated, float]:
        """The inputs, or their directions."""
        variance, scale = (1.0, self.squared_norm) if gated else (self.squared_norm, 1.0)
        return _Rotated(variance, self.half), scale

    def covariance(self, state: _Rotated) -> Tensor:
        """The variance times the cosine."""
        return state.variance * state.half.cosine

    def combine(self, terms: list[tuple[Scalar, _Rotated]], constant: Scalar = 0.0) -> _Rotated:
        """The weighted sum; a constant is a covariance at the angle zero."""
        if len(terms) == 1 and not constant:
            ((factor, state),) = terms
            return _Rotated(float(factor) * state.variance, state.half)
        shares = [(float(factor) * state.variance, state.half) for factor, state in terms]
        return _Rotated(*_sum(shares, float(constant)))

    def residual(self, below: _Rotated, pushed: _Rotated, skip: float, gain: float) -> _Rotated:
        """The sum of features and of a layer's output; their means have no angle."""
        mean = skip * below.mean + gain * pushed.mean
        if not skip:
            return _Rotated(gain**2 * pushed.variance, pushed.half, mean)
        shares = [(skip**2 * below.variance, below.half), (gain**2 * pushed.variance, pushed.half)]
        return _Rotated(*_sum(shares, 2 * skip * gain * below.mean * pushed.mean), mean)

    def apply_activation(
        self, phi: Activation, state: _Rotated, *, mean: bool
    ) -> ActivationOutput[_Rotated]:
        """Duals of an activation and of its derivative at one variance."""
        if state.variance == 0:
            raise NoAngleError
        duals = angular_duals(phi, state.variance)
        variance = torch.tensor(state.variance, dtype=torch.float64)
        average = float(activation_mean(phi, variance)) if mean else 0.0
        pushed = _Rotated(duals.square, duals.output_angle(state.half), average)
        return ActivationOutput(pushed, lambda: duals.slope(state.half.angle))

    def fixed_point(self, loop: CellLoop, injected: _Rotated) -> _Rotated:
        """The angles at equilibrium, by the smaller of both halves."""
        variance = loop_variance(loop, injected.variance)
        if variance == 0:
            raise NoAngleError
        half = injected.half
        wide = half.sine2 > half.cosine2

        def complete(part: Tensor) -> _Rotated:
            part = part.clamp(0.0, 1.0)
            sine2, cosine2 = torch.where(wide, 1 - part, part), torch.where(wide, part, 1 - part)
            return _Rotated(variance, HalfAngle(sine2, cosine2))

        def equation(part: Tensor) -> tuple[Tensor, Tensor]:
            value, slope = loop(self, complete(part), injected)
            return torch.where(wide, value.half.cosine2, value.half.sine2), slope

        start = torch.where(wide, half.cosine2, half.sine2) * (injected.variance / variance)
        return complete(solve(equation, start, start, "angle", differentiable=False))

    def angle(self, state: _Rotated) -> tuple[Tensor, float]:
        """The angles of features, and their variance."""
        return state.half.angle, state.variance


def _sum(shares: list[tuple[float, HalfAngle]], constant: float) -> tuple[float, HalfAngle]:
    """The variance and the angle of a sum."""
    total = sum(variance for variance, _ in shares) + constant
    if total == 0:
        return 0.0, shares[0][1]
    sine2 = torch.stack([variance * half.sine2 for variance, half in shares]).sum(0)
    cosine2 = torch.stack([variance * half.cosine2 for variance, half in shares]).sum(0)
    return total, HalfAngle(sine2 / total, ((cosine2 + constant) / total).clamp(min=0.0))
