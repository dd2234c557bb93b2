r"""Duals of broken lines, by Price's theorem along the angle.

With $\varphi'' = \sum_i J_i \delta_{\kappa_i}$, $h_i = \kappa_i/\sqrt a$, $k_i = \kappa_i/\sqrt b$

$-\frac{d}{d\theta} \mathbb{E}[\varphi'(u)\varphi'(v)] = S(\theta) = \frac{1}{2\pi}
\sum_{ij} J_i J_j \exp\Bigl(-\frac{h_i^2 + k_j^2 - 2 h_i k_j \cos\theta}{2\sin^2\theta}\Bigr)$,

and at a right angle both duals are products of means. So one integral of $S$ from there serves
both. It is smooth in $\log\theta$, also where two kinks lie close to one another.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.closed_forms import correlation
from shoal.activations.panels import gauss_legendre, reach, vanishes
from shoal.core.caches import cached

_NODES, _PANEL = 16, 1.2  # nodes of a panel, and its width in the logarithm of the angle
_LEAST = 1e-16  # an angle of zero
_TINY, _FARTHEST = 1e-150, 100.0  # a standard deviation of zero; where densities are zero
_BLOCK = 1 << 19  # numbers that are formed together


@dataclass(frozen=True)
class BrokenLine:
    r"""$\varphi(x) = \beta + m x + \tfrac12 \sum_i J_i |x - \kappa_i|$.

    Attributes:
        value: $\beta$.
        slope: $m$.
        kinks: $\kappa_i$ and $J_i$.
    """

    value: float
    slope: float
    kinks: tuple[tuple[float, float], ...]

    @cached_property
    def _bend(self) -> float:
        """The sum of all jumps, which is zero if both ends have one slope."""
        total = math.fsum(jump for _, jump in self.kinks)
        return total if abs(total) > 1e-14 * sum(abs(jump) for _, jump in self.kinks) else 0.0

    def means(self, variance: Tensor) -> tuple[Tensor, Tensor]:
        r"""$\mathbb{E}[\varphi(u)]$ and $\mathbb{E}[\varphi'(u)]$."""
        std = variance.sqrt()
        level, spread, slope = torch.zeros_like(std), torch.zeros_like(std), torch.zeros_like(std)
        for place, jump in self.kinks:
            h = _distance(place, variance)
            share = torch.erf(h / math.sqrt(2)) * (jump / 2)
            level, slope = level + place * share, slope - share
            spread = spread + jump / math.sqrt(2 * math.pi) * torch.expm1(-(h**2) / 2)
        spread = spread + self._bend / math.sqrt(2 * math.pi)
        return self.value + level + spread * std, self.slope + slope

    def at_covariances(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Both duals, given covariances; exactly symmetric. shape: (2, n)."""
        a, b = torch.maximum(a, b), torch.minimum(a, b)
        cosine, sine = correlation(a, b, c)
        return self.duals(a, b, torch.atan2(sine, cosine))

    def duals(self, a: Tensor, b: Tensor, angle: Tensor) -> Tensor:
        """The duals of the function and of its slope at some angles. shape: (2, n)."""
        least = min(1.0, *(float(t.min()) for t in (angle, math.pi - angle))) if len(angle) else 1.0
        count = math.ceil(math.log(math.pi / 2 / max(least, _LEAST)) / _PANEL)
        step = max(1, _BLOCK // (count * _NODES))
        blocks = zip(a.split(step), b.split(step), angle.split(step), strict=True)
        return torch.cat([a.new_empty(2, 0), *(self._block(*some, count) for some in blocks)], 1)

    def _block(self, a: Tensor, b: Tensor, angle: Tensor, count: int) -> Tensor:
        (mean, slope), (other, other_slope) = self.means(a), self.means(b)
        obtuse = angle > math.pi / 2
        near = torch.where(obtuse, math.pi - angle, angle).clamp(min=_LEAST)
        # from the right angle to the nearer end, in log θ; beyond it, S at π - θ
        nodes, weights = (t.to(a) for t in gauss_legendre(_NODES))
        share = (
            (2 * torch.arange(count, device=a.device)[:, None] + 1 + nodes) / (2 * count)
        ).flatten()
        length = (math.pi / 2 / near).log()
        r = (math.pi / 2) * torch.exp(-length[:, None] * share)
        weight = r * length[:, None] * (weights / (2 * count)).repeat(count)
        density = self._density(a[:, None], b[:, None], r, obtuse[:, None]).mul_(weight)
        fall = density.sum(1)
        # cos θ - cos r = 2 sin((r + θ)/2) sin((r - θ)/2)
        lever = 2 * ((r + near[:, None]) / 2).sin_() * ((r - near[:, None]) / 2).sin_()
        moved = (density * lever).sum(1)
        cosine = (math.pi / 2 - angle).sin()  # zero at a right angle
        root = a.sqrt() * b.sqrt()
        straight = slope * other_slope
        dual = mean * other + root * (cosine * straight + moved)
        return torch.stack([dual, straight + torch.where(obtuse, -fall, fall)])

    def _density(self, a: Tensor, b: Tensor, angle: Tensor, obtuse: Tensor) -> Tensor:
        """S at an angle, or at its supplement."""
        squared_sine, half = angle.sin().square_(), (angle / 2).cos().square_()
        total, mirror = torch.zeros_like(angle), torch.where(obtuse, -torch.ones_like(b), 1.0)
        for place, jump in self.kinks:
            for other, other_jump in self.kinks:
                h, k = _distance(place, a), _distance(other, b) * mirror
                # (h² + k² - 2hk cos θ) / sin²θ
                exponent = (h - k) ** 2 / squared_sine + h * k / half
                total.add_(exponent.mul_(-0.5).expm1_(), alpha=jump * other_jump)
        return total.add_(self._bend**2).div_(2 * math.pi)


def _distance(place: float, variance: Tensor) -> Tensor:
    """From zero, in standard deviations."""
    return (place / variance.sqrt().clamp(min=_TINY)).clamp(-_FARTHEST, _FARTHEST)


@cached
def broken_line(phi: Activation) -> BrokenLine | None:
    """An activation as a broken line, if it is a continuous one with kinks."""
    kinks = [(kink.location, kink.jumps[1]) for kink in phi.kinks]
    if not kinks or any(kink.jumps[0] or not kink.jumps[1] for kink in phi.kinks):
        return None
    if not vanishes(phi, 2, reach(phi)):
        return None
    far = max(abs(place) for place, _ in kinks) + 1.0
    left, right = phi(torch.tensor([-far, far], dtype=torch.float64)).tolist()
    ends = phi.derivative(torch.tensor([-far, far], dtype=torch.float64)).tolist()
    middle = math.fsum(jump * (far - place) + jump * (far + place) for place, jump in kinks)
    value = (left + right) / 2 - middle / 4
    return BrokenLine(value, sum(ends) / 2, tuple(kinks))
