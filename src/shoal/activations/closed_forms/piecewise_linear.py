r"""The closed form of piecewise linear activations.

With $\varphi'' = \sum_i J_i \delta_{\kappa_i}$, Price's theorem gives

$\mathbb{E}[\varphi'(u)\varphi'(v)] = \mathbb{E}\varphi'(u)\,\mathbb{E}\varphi'(v) +
\sum_{ij} J_i J_j W(\kappa_i/\sqrt a, \kappa_j/\sqrt b)$ and

$\mathrm{Cov}(\varphi(u), \varphi(v)) = c\,\mathbb{E}\varphi'(u)\,\mathbb{E}\varphi'(v) +
\sqrt{ab} \sum_{ij} J_i J_j V(\kappa_i/\sqrt a, \kappa_j/\sqrt b)$

with the integrals $W$ and $V$ of the bivariate density over correlations
(:mod:`shoal.activations.closed_forms.orthants`). Slopes are counted from zero outwards, so nothing
cancels at variances too small to reach a kink. At larger ones the integrals are taken less their
values for kinks at zero, and these values add up to an arc-cosine dual.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations.closed_forms.base import ClosedForm
from shoal.activations.closed_forms.correlation import correlation
from shoal.activations.closed_forms.orthants import Quadrant, bell, tails

_NEAR = 1.5  # kinks within so many standard deviations make the reduced form the better one
_FARTHEST = 40.0  # standard deviations; beyond, the density is zero in float64
_SMALLEST = 1e-75  # stands in for a standard deviation of zero
_LOSS = 128.0  # units of rounding that may be lost to cancellation


@dataclass(frozen=True)
class PiecewiseLinear(ClosedForm):
    r"""Continuous functions with $\varphi'' = \sum_i J_i \delta_{\kappa_i}$.

    The error of a dual is a few units of rounding, except for a bounded activation at standard
    deviations far beyond its kinks, if the pair is nearly aligned or its variances are very
    unequal: there the terms cancel, and entries that would lose more than two digits are ``lost``.
    This supposes that the kinks are of one order of magnitude, and that the activation vanishes
    neither around zero nor at both ends.

    Attributes:
        value: That of the activation at zero.
        slope: Its slope just left of zero.
        kinks: The places $\kappa_i$, in any order, and the jumps $J_i$ of the slope.
    """

    value: float
    slope: float
    kinks: tuple[tuple[float, float], ...]
    analytic = False  # the angle has a square-root singularity at its ends

    def mean(self, a: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)]$: every kink adds a hinge that opens outwards."""
        return _in_two_forms(self._mean, self._is_near(a), a)

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathrm{Cov}(\varphi(u), \varphi(v))$, exactly symmetric."""
        a, b = torch.maximum(a, b), torch.minimum(a, b)
        return _in_two_forms(self._covariance, self._is_near(b), a, b, c)

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi'(u)\varphi'(v)]$, exactly symmetric."""
        a, b = torch.maximum(a, b), torch.minimum(a, b)
        return _in_two_forms(self._derivative_dual, self._is_near(b), a, b, c)

    @property
    def _farthest(self) -> float:
        return max(abs(place) for place, _ in self.kinks)

    @property
    def _is_bounded(self) -> bool:
        """Whether the slopes at both ends are zero, but for rounding."""
        right = self.slope + sum(jump for place, jump in self.kinks if place >= 0)
        left = self.slope - sum(jump for place, jump in self.kinks if place < 0)
        return max(abs(left), abs(right)) <= 1e-14 * sum(abs(jump) for _, jump in self.kinks)

    def _is_near(self, variance: Tensor) -> Tensor:
        """Whether all kinks are near, at these variances."""
        return _NEAR * variance.sqrt() >= self._farthest

    def lost(self, order: int, a: Tensor, b: Tensor, c: Tensor) -> Tensor | None:
        """A mask of where the terms are too much larger than their sum.

        Of a bounded activation the sum stays bounded, and the terms grow with the variances.
        """
        a, b = torch.maximum(a, b), torch.minimum(a, b)
        if not self._is_bounded or math.sqrt(float(a.max())) <= _LOSS * self._farthest:
            return None
        h, k = (_distance(self._farthest, variance) for variance in (a, b))
        unequal = torch.exp(-(k**2 - 1).clamp(min=0.0) / 2) * k / h
        if order:
            return unequal.sqrt() > _LOSS
        return unequal / torch.maximum(k, correlation(a, b, c)[1]) > _LOSS

    def _mean(self, a: Tensor, *, reduced: bool) -> Tensor:
        total, std = torch.full_like(a, self.value), _std(a)
        for place, (jump, _) in self._distances.items():
            if jump:
                density = bell(_distance(place, a) ** 2, reduced=reduced) / math.sqrt(2 * math.pi)
                hinge = density * std - place / 2 * tails(_distance(place, a), reduced=reduced)
                total.add_(hinge, alpha=jump)
        if reduced:
            total -= sum(jump * abs(place) for place, jump in self.kinks) / 2
            total += sum(jump for _, jump in self.kinks) / math.sqrt(2 * math.pi) * std
        return total

    def _mean_slope(self, a: Tensor, *, reduced: bool) -> Tensor:
        r"""$\mathbb{E}[\varphi'(u)]$: half of a tail lies on either side."""
        middle = sum(outwards for _, outwards in self._distances.values()) / 2
        total = torch.full_like(a, self.slope + (middle if reduced else 0.0))
        for place, (_, outwards) in self._distances.items():
            total.add_(tails(_distance(place, a), reduced=reduced), alpha=outwards / 2)
        return total

    @property
    def _distances(self) -> dict[float, tuple[float, float]]:
        """Jumps at each distance from zero: the sum of both sides, and their difference."""
        sums: dict[float, tuple[float, float]] = {}
        for place, jump in self.kinks:
            both, outwards = sums.get(abs(place), (0.0, 0.0))
            sums[abs(place)] = both + jump, outwards + (jump if place >= 0 else -jump)
        return sums

    def _covariance(self, a: Tensor, b: Tensor, c: Tensor, *, reduced: bool) -> Tensor:
        cosine, sine = correlation(a, b, c)
        total = torch.zeros_like(c)
        for quadrant, same, opposite in self._quadrants(a, b, reduced=reduced):
            values = (quadrant.double_integral(rho, sine) for rho in (cosine, -cosine))
            total += same * next(values) + opposite * next(values)
        removed = [(place, jump) for place, jump in self.kinks if reduced or place == 0]
        bend, shift = sum(jump for _, jump in removed), sum(x * jump for x, jump in removed)
        turn = torch.atan2(cosine, sine) / (2 * math.pi)
        # sin θ - 1 = -cos²θ / (1 + sin θ) keeps the digits of small correlations
        total += bend**2 * (cosine * turn - cosine**2 / (1 + sine) / (2 * math.pi))
        slopes = self._mean_slopes(a, b, reduced=reduced)
        return c * slopes + total.mul_(_std(a) * _std(b)) + shift**2 * turn

    def _derivative_dual(self, a: Tensor, b: Tensor, c: Tensor, *, reduced: bool) -> Tensor:
        cosine, sine = correlation(a, b, c)
        total = torch.zeros_like(c)
        for quadrant, same, opposite in self._quadrants(a, b, reduced=reduced):
            values = (quadrant.integral(rho, sine) for rho in (cosine, -cosine))
            total += same * next(values) - opposite * next(values)
        bend = sum(jump for place, jump in self.kinks if reduced or place == 0)
        total += bend**2 / (2 * math.pi) * torch.atan2(cosine, sine)
        return total + self._mean_slopes(a, b, reduced=reduced)

    def _mean_slopes(self, a: Tensor, b: Tensor, *, reduced: bool) -> Tensor:
        """The product of both, for a >= b: the kinks may be near for the larger one only."""
        near = self._is_near(a) | reduced
        return _in_two_forms(self._mean_slope, near, a) * self._mean_slope(b, reduced=reduced)

    def _quadrants(
        self, a: Tensor, b: Tensor, *, reduced: bool
    ) -> Iterator[tuple[Quadrant, float, float]]:
        """Quadrants u > p, v > q, with the products of jumps at distances p and q from zero.

        First of those on the same side of zero, then of those on opposite sides, which count as
        on the same side at the opposite correlation. Two kinks at zero are left out.
        """
        sums: dict[tuple[float, float], list[float]] = {}
        for place, jump in self.kinks:
            for other, other_jump in self.kinks:
                if place or other:
                    entry = sums.setdefault((abs(place), abs(other)), [0.0, 0.0])
                    entry[(place < 0) != (other < 0)] += jump * other_jump
        std_u, std_v = _std(a), _std(b)
        both = std_u + std_v
        for (p, q), (same, opposite) in sums.items():
            h, k = ((x / std).clamp_(max=_FARTHEST) for x, std in ((p, std_u), (q, std_v)))
            # q std_u - p std_v, of which nothing is lost where the variances are close and p = q
            gap = ((q - p) * both + (q + p) * ((a - b) / both)) / (2 * std_u * std_v)
            yield Quadrant(h, k, gap, reduced), same, opposite


def _std(variance: Tensor) -> Tensor:
    return variance.sqrt().clamp_(min=_SMALLEST)


def _distance(place: float, variance: Tensor) -> Tensor:
    """The distance of a place from zero, in standard deviations."""
    return (place / _std(variance)).clamp_(max=_FARTHEST)


def _in_two_forms(function: Callable[..., Tensor], near: Tensor, *vectors: Tensor) -> Tensor:
    """A function in its reduced form where the kinks are near, in its full one elsewhere."""
    count = int(near.sum())
    if count in (0, near.numel()):
        return function(*vectors, reduced=count > 0)
    result = torch.empty_like(vectors[0])
    for where, reduced in ((near, True), (~near, False)):
        index = where.nonzero(as_tuple=True)
        result[index] = function(*(t[index] for t in vectors), reduced=reduced)
    return result
