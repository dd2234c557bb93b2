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
from shoal.gaussian.broken_lines import broken_line
from shoal.gaussian.closed_forms import closed_dual, closed_form
from shoal.gaussian.grids import can_grid, grid
from shoal.gaussian.mixed import mixed_dual_at_angle
from shoal.gaussian.moments import mean_square
from shoal.numerics import Chebyshev, fit

_TOLERANCE = 4e-13
_FIRST, _LAST = 32, 4096  # degrees of the series
_CHECKS = 32  # angles, off the grid, at which the error is measured
_ODD = 1e-14  # an even (or odd) part whose mean square is relatively smaller is rounding
_NODES = 32  # of the means, besides those that the degree of the series needs
_BLOCK = 1 << 20  # numbers of a mean that are formed together


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
    """

    variance: float
    square: float
    remainder: float
    even: bool
    slope: Chebyshev

    def passed(self, half: HalfAngle) -> HalfAngle:
        """The angle between φ(u) and φ(v) if that between u and v is given."""
        angle, ratio = half.angle, self.variance / self.square
        before, after = self._mean(angle), self._mean(math.pi - angle, mirrored=True)
        sine2 = ratio * half.sine2 * before
        if self.even:  # opposite inputs have one image, where I is zero but for rounding
            sine2 = torch.where(half.sine2 > half.cosine2, -ratio * half.cosine2 * after, sine2)
        sine2 = sine2.clamp(min=0.0)  # rounding, if φ is nearly even
        return HalfAngle(sine2, self.remainder / self.square + ratio * half.cosine2 * after)

    def _mean(self, angle: Tensor, *, mirrored: bool = False) -> Tensor:
        r"""$\int_0^\theta E(s) \sin s\,ds / (1 - \cos\theta)$, also at zero; or with E(π - s)."""
        nodes, weights = gauss_legendre(_NODES + self.slope.degrees[0] // 2)
        share = (1 + nodes) / 2
        parts = []
        for some in angle.reshape(-1).split(max(1, _BLOCK // len(nodes))):
            inside = some[:, None] * share
            # sin(θt) θ / (1 - cos θ) without a division by zero
            ratio = torch.sinc(inside / math.pi) / torch.sinc(some / (2 * math.pi))[:, None] ** 2
            values = self.slope(math.pi - inside if mirrored else inside)
            parts.append((values * (2 * share * ratio)) @ (weights / 2))
        return torch.cat(parts).view(angle.shape)


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
    duals = _duals(phi, torch.tensor([variance], dtype=torch.float64))
    ends = duals(torch.tensor([0.0, math.pi], dtype=torch.float64))
    slope = _fit(lambda angle: duals(angle)[1], float(ends[1, 0]))
    square = float(mean_square(phi, torch.tensor(variance, dtype=torch.float64))[0])
    opposite = float(ends[0, 1])
    remainder = (square + opposite) / 2
    if remainder < _ODD * square:
        remainder = 0.0
    even = square - opposite < 2 * _ODD * square
    return Section(variance, square, remainder, even, slope)


def _duals(phi: Activation, variance: Tensor) -> Callable[[Tensor], Tensor]:
    """Both duals as functions of the angle. shape: (2, n)."""
    orders, closed = ((0, 0), (1, 1)), closed_form(phi)

    def in_closed_form(angle: Tensor) -> Tensor:
        assert closed is not None
        a = variance.expand_as(angle)
        triple = a, a, a * angle.cos()
        return torch.stack([closed_dual(phi, closed, order, *triple) for order in (0, 1)])

    def on_grid(angle: Tensor) -> Tensor:
        (near, far), sizes = grid(phi, orders, variance, torch.minimum(angle, math.pi - angle))
        values = torch.where(angle <= math.pi / 2, near[:, 0, 0], far[:, 0, 0])
        return values * torch.cat([sizes[0], sizes[1]])[:, None] ** 2

    def in_panels(angle: Tensor) -> Tensor:
        a = variance.expand_as(angle)
        return torch.stack([mixed_dual_at_angle(phi, j, k, a, a, angle) for j, k in orders])

    if closed is not None:
        return in_closed_form
    line = broken_line(phi)
    if line is not None:
        return lambda angle: line.duals(*(variance.expand_as(angle),) * 2, angle)
    return on_grid if can_grid(phi, orders, float(variance)) else in_panels


def _fit(function: Callable[[Tensor], Tensor], size: float) -> Chebyshev:
    if size == 0:
        return Chebyshev(((0.0, math.pi),), torch.zeros(1, dtype=torch.float64))
    return fit(
        function,
        ((0.0, math.pi),),
        tolerance=_TOLERANCE * size,
        max_degree=_LAST,
        first_degree=_FIRST,
        check_points=_CHECKS,
    )
