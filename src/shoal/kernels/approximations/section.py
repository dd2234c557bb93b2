r"""Duals of an activation at one variance $A$, as functions of the angle, without cancellation.

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
from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError
from shoal.gaussian.mixed import mixed_dual_at_angle
from shoal.gaussian.moments import derivative_square
from shoal.gaussian.quadrature import finest_panel
from shoal.numerics import Chebyshev, fit

_TOLERANCE = 1e-13
_DEGREE = 512
_ODD = 1e-14  # an even (or odd) part whose mean square is relatively smaller is rounding
_STRAIGHT = torch.tensor([math.pi], dtype=torch.float64)
_FINEST = 5e-4  # in standard deviations; panels below need a degree above 512
_NODES = 32  # of the means, besides those that the degree of the series needs
_CHECKS = 32  # angles, off the grid, at which the error is measured


@dataclass(frozen=True)
class HalfAngle:
    r"""An angle as $\sin^2\tfrac\theta2$ and $\cos^2\tfrac\theta2$, each with all its digits."""

    sine2: Tensor
    cosine2: Tensor

    @classmethod
    def of(cls, angle: Tensor) -> "HalfAngle":
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
class Section:
    r"""The duals of one activation at one variance.

    Attributes:
        variance: $A$.
        square: $D(0)$, the mean square of the activation.
        remainder: $R$, the mean square of the even part.
        even: Whether the activation is even, and $D(\pi) = D(0)$.
        slope: $E(θ)$.
        mean_before: $I(θ)$.
        mean_after: $J(θ)$.
    """

    variance: float
    square: float
    remainder: float
    even: bool
    slope: Chebyshev
    mean_before: Chebyshev
    mean_after: Chebyshev

    def passed(self, half: HalfAngle) -> HalfAngle:
        """The angle between φ(u) and φ(v) if that between u and v is given."""
        angle = half.angle
        ratio = self.variance / self.square
        sine2 = ratio * half.sine2 * self.mean_before(angle)
        if self.even:  # opposite inputs have one image, where I is zero but for rounding
            mirrored = -ratio * half.cosine2 * self.mean_after(angle)
            sine2 = torch.where(half.sine2 > half.cosine2, mirrored, sine2)
        sine2 = sine2.clamp(min=0.0)  # rounding, if φ is nearly even
        cosine2 = self.remainder / self.square + ratio * half.cosine2 * self.mean_after(angle)
        return HalfAngle(sine2, cosine2)


@cached
def section(phi: Activation, variance: float) -> Section:
    """Make a section; kept for later calls.

    Raises:
        AccuracyError: If the activation is too rough at this scale for series in the angle.
    """
    if phi.positively_homogeneous and variance != 1:  # then angles know nothing of the variance
        unit = section(phi, 1.0)
        square, remainder = variance * unit.square, variance * unit.remainder
        return replace(unit, variance=variance, square=square, remainder=remainder)
    _check_fineness(phi, math.sqrt(variance))
    scale = torch.tensor(variance, dtype=torch.float64)

    def slope(angle: Tensor) -> Tensor:
        spread = scale.expand_as(angle)
        return mixed_dual_at_angle(phi, 1, 1, spread, spread, angle)

    size = float(slope(torch.zeros(1, dtype=torch.float64)))
    series = _fit(slope, size)
    degree = series.degrees[0]
    mean_before = _fit(lambda angle: _mean(series, angle, degree), size)
    mean_after = _fit(
        lambda angle: _mean(lambda x: series(math.pi - x), math.pi - angle, degree), size
    )
    square = float(derivative_square(phi, 0, scale))
    opposite = float(mixed_dual_at_angle(phi, 0, 0, scale[None], scale[None], _STRAIGHT))
    remainder = (square + opposite) / 2
    if remainder < _ODD * square:
        remainder = 0.0
    even = square - opposite < 2 * _ODD * square
    return Section(variance, square, remainder, even, series, mean_before, mean_after)


def _check_fineness(phi: Activation, std: float) -> None:
    """See at once what the series would show after hundreds of evaluations.

    Details of a relative width w show in the duals at angles of that size, and a Chebyshev series
    resolves the inverse square of its degree there.
    """
    finest = finest_panel(phi, std)
    if finest < _FINEST:
        raise AccuracyError(
            f"{phi!r} has details of {finest:.1g} standard deviations, too fine for one series in "
            "the angle"
        )


def _fit(function: Callable[[Tensor], Tensor], size: float) -> Chebyshev:
    if size == 0:
        return Chebyshev(((0.0, math.pi),), torch.zeros(1, dtype=torch.float64))
    return fit(
        function,
        ((0.0, math.pi),),
        tolerance=10 * _TOLERANCE * size,
        max_degree=_DEGREE,
        check_points=_CHECKS,
    )


def _mean(slope: Callable[[Tensor], Tensor], angle: Tensor, degree: int) -> Tensor:
    r"""$\int_0^\theta E(s) \sin s\,ds / (1 - \cos\theta)$, also at zero."""
    nodes, weights = gauss_legendre(_NODES + degree // 2)
    share = (1 + nodes) / 2
    inside = angle[:, None] * share
    # sin(θt) θ / (1 - cos θ) without a division by zero
    density = (
        share * 2 * torch.sinc(inside / math.pi) / torch.sinc(angle / (2 * math.pi))[:, None] ** 2
    )
    return (slope(inside) * density) @ (weights / 2)
