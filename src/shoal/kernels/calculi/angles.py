r"""Covariances of inputs of one norm, as functions of their angle, accurate at all angles.

A covariance is a variance $A$ times $\cos\psi$, kept as $\sin^2\tfrac\psi2$ and
$\cos^2\tfrac\psi2$: sums of covariances are sums of both, and the smaller one keeps its digits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.gaussian.moments import mean as activation_mean
from shoal.kernels.approximations.section import HalfAngle, section
from shoal.kernels.calculi.own import loop_variance
from shoal.kernels.fixed_points import solve
from shoal.kernels.recursions import Loop, OfVectors, Pushed, Scalar


class NoAngleError(Exception):
    """A variance is zero, and no angle means anything there."""


@dataclass(frozen=True, eq=False)
class _Rotated:
    """Features of one variance and mean, at some angles."""

    variance: float
    half: HalfAngle
    mean: float = 0.0


@dataclass(frozen=True, eq=False)
class Angles(OfVectors):
    """The calculus of inputs of one norm at some angles; nothing is differentiable.

    Attributes:
        squared_norm: That of all inputs.
        half: The angles.
    """

    squared_norm: float
    half: HalfAngle

    def start(self, *, gated: bool) -> tuple[_Rotated, float]:
        """The inputs, or their directions."""
        own, scale = (1.0, self.squared_norm) if gated else (self.squared_norm, 1.0)
        return _Rotated(own, self.half), scale

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
        """The sum of features and of what a layer makes of them; their means have no angle."""
        mean = skip * below.mean + gain * pushed.mean
        if not skip:
            return _Rotated(gain**2 * pushed.variance, pushed.half, mean)
        shares = [(skip**2 * below.variance, below.half), (gain**2 * pushed.variance, pushed.half)]
        return _Rotated(*_sum(shares, 2 * skip * gain * below.mean * pushed.mean), mean)

    def push(self, phi: Activation, state: _Rotated, *, mean: bool) -> Pushed[_Rotated]:
        """Duals of an activation and of its derivative at one variance."""
        if state.variance == 0:
            raise NoAngleError
        duals = section(phi, state.variance)
        variance = torch.tensor(state.variance, dtype=torch.float64)
        average = float(activation_mean(phi, variance)) if mean else 0.0
        pushed = _Rotated(duals.square, duals.passed(state.half), average)
        return Pushed(pushed, lambda: duals.slope(state.half.angle))

    def fixed_point(self, loop: Loop, injected: _Rotated) -> _Rotated:
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
