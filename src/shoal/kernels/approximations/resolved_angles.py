r"""Angles at which one series does for a kernel, however large its inputs are.

An analytic activation of an argument of standard deviation $\tau$ looks like one with kinks if its
details, of size $w$, are small beside $\tau$: its kernel is then nearly singular at angles up to
about $w/\tau$ from 0 and π, which few pairs of inputs have. One with kinks is singular at 0 and π
themselves, where norms are equal.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.panels import breaks, reach
from shoal.core.caches import cached
from shoal.gaussian.quadrature import finest_panel
from shoal.kernels.approximations.surface import Span, nearby
from shoal.kernels.calculi.own import Own, Variances
from shoal.kernels.function import KernelFunction, kernels_in

_FINEST = 0.05  # details, in standard deviations, that series of some hundred terms resolve
SMOOTH_ANGLES: Span = (0.25, math.pi - 0.25)  # where kinks away from zero do no harm
_INSET = 0.125  # beyond, sums over Hermite coefficients are short


def resolved_angles(function: KernelFunction, norm: float, angles: Span) -> Span:
    """The part of a range of angles that one series may do for, given the largest norm."""
    seen = _seen(nearby(function), norm)
    if any(_fine(phi, std) for phi, std in seen):
        return common_angles(angles, (_INSET, math.pi - _INSET))
    if angles[0] > 0 and angles[1] < math.pi:
        return angles
    kinks = any(phi.kinks for phi, _ in seen)
    return common_angles(angles, SMOOTH_ANGLES) if kinks else angles


def common_angles(first: Span, second: Span) -> Span:
    """The angles that are in both ranges."""
    return max(first[0], second[0]), min(first[1], second[1])


@cached
def _seen(function: KernelFunction, norm: float) -> list[tuple[Activation, float]]:
    """Activations and the largest standard deviations of their arguments, given the norm."""
    scales = _Scales(torch.tensor([norm**2], dtype=torch.float64), differentiable=False)
    kernels_in(function.architecture, scales, function)
    return scales.seen


@dataclass(frozen=True, eq=False)
class _Scales(Own):
    """The calculus of single inputs, which notes what activations see.

    Attributes:
        seen: Activations and the largest standard deviations of their arguments.
    """

    seen: list[tuple[Activation, float]] = field(default_factory=list)

    def squares(self, phi: Activation, variance: Tensor, *, mean: bool) -> Variances:
        """Mean squares, and means, of an activation alone."""
        self.seen.append((phi, math.sqrt(float(variance.max()))))
        return super().squares(phi, variance, mean=mean)


def _fine(phi: Activation, std: float) -> bool:
    """Whether an analytic activation has details that are small beside its argument."""
    if phi.positively_homogeneous or breaks(phi, reach(phi)):
        return False
    return finest_panel(phi, std) < _FINEST
