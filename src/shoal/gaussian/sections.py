r"""Duals at few variances and many covariances: one series in the angle per pair of variances.

The nodes of an approximation in norms and angles are such points, and solving an equation there
asks for the same variances again and again, with other covariances.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.closed_forms.correlation import correlation
from shoal.activations.panels import breaks, jump, reach
from shoal.approximation import fit_together
from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError
from shoal.gaussian.composites import Derivative, Square
from shoal.gaussian.condensed import CondensedRule
from shoal.gaussian.domain import Covariance
from shoal.gaussian.mehler import collapsed
from shoal.gaussian.mixed import mixed_dual
from shoal.gaussian.polar import PolarRule, resolving_rule
from shoal.gaussian.quadrature import window_edges
from shoal.gaussian.smoothing import smoothed

__all__ = ["CUTS", "Sections", "grid_rule", "part_of", "tabulable"]

CUTS = (0.0, 0.25, math.pi - 0.25, math.pi)  # of the angle: at large variances its ends are rough
_MARGIN = 1e-6  # the angle of a point may be rounded to the other side of a cut
_MIDDLE = 1  # the part of the angle where its sine is not small
_SMALLEST, _LARGEST = 2.0**-22, 2.0**26  # variances beyond are integrated pair by pair
_MOST_VARIANCES = 256
_FEW = 32  # points of a part for which no series is made
_PAIR = 1e6  # values of φ that cost as much as a few integrals of one pair
_MOST_POINTS = 1 << 21
_FIRST, _USUAL, _DEGREE = 16, 64, 256  # degrees: the least, of most activations, the largest
_CHECKS = 12  # points at which sections are compared with the other quadrature


@dataclass(frozen=True, eq=False)
class Sections:
    """$D_{jj}$ at all pairs of some variances, as series in the angle where these pay."""

    phi: Activation
    order: int
    variances: Tensor  # ascending
    parts: dict[int, Tensor]  # coefficients by part of the angle, of the pairs i >= j in rows

    @classmethod
    def of(cls, phi: Activation, j: int, pair: Covariance, tolerance: float) -> "Sections | None":
        """Those for some covariances; ``None`` if there are too many variances or it fails."""
        if math.prod(pair.shape) > _MOST_POINTS:
            return None
        distinct = torch.cat([collapsed(pair.a), collapsed(pair.b)]).double().unique()
        distinct = distinct[(distinct >= _SMALLEST) & (distinct <= _LARGEST)]
        if not 0 < len(distinct) <= _MOST_VARIANCES:
            return None
        a, b, c = pair[()]
        counts = part_of(a, b, c).flatten().bincount(minlength=len(CUTS) - 1).tolist()
        values = tuple(distinct.tolist())
        wanted = [p for p, n in enumerate(counts) if _pays(phi, j, values, p, n, tolerance)]
        made = {part: _series(phi, j, values, part, tolerance) for part in wanted}
        kept = {part: series for part, series in made.items() if series is not None}
        if not kept or len(kept) < len(made):
            return None
        return cls(phi, j, distinct, {part: s.to(a.device) for part, s in kept.items()})

    def __call__(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Evaluate at vectors of covariances."""
        a, b = torch.maximum(a, b), torch.minimum(a, b)  # so that the result is symmetric
        rest = (b < self.variances[0]) | (a > self.variances[-1])
        last = len(self.variances) - 1
        i, j = (torch.searchsorted(self.variances, t).clamp(max=last) for t in (a, b))
        number, part = _number(i, j), part_of(a, b, c)
        cosine, sine = correlation(a, b, c)
        angle, result = torch.atan2(sine, cosine), torch.empty_like(a)
        for p, coefficients in self.parts.items():
            inside = (part == p) & ~rest
            if bool(inside.any()):
                low, high = _span(p)
                x = angle[inside]
                t = (((x - low) - (high - x)) / (high - low)).clamp(-1.0, 1.0)
                result[inside] = _clenshaw(coefficients, number[inside], t)
        for p in {0, 1, 2} - self.parts.keys():
            rest |= part == p
        if bool(rest.any()):
            result[rest] = mixed_dual(self.phi, self.order, self.order, a[rest], b[rest], c[rest])
        return result


def tabulable(phi: Activation, order: int, part: int) -> bool:
    """Whether duals are analytic on a part of the angle: without deltas, and near 0 and π ...

    ... with kinks at zero only, since others make a layer there.
    """
    places = breaks(phi, reach(phi))
    if any(jump(phi, x, n) for x in places for n in range(order)):
        return False
    return part == _MIDDLE or not any(places)


def grid_rule(
    phi: Activation, j: int, k: int, largest: tuple[float, float], part: int, tolerance: float
) -> PolarRule | CondensedRule:
    """The rule for duals of variances up to the largest on a part of the angle.

    Raises:
        AccuracyError: If there is none.
    """
    if part != _MIDDLE:
        return resolving_rule(phi, j, k, *largest, tolerance)
    pairs = zip((j, k), largest, strict=True)
    return CondensedRule(max(window_edges(phi, n, math.sqrt(v))[-1] for n, v in pairs))


def _pays(
    phi: Activation,
    j: int,
    variances: tuple[float, ...],
    part: int,
    points: int,
    tolerance: float,
) -> bool:
    """Whether series cost less than the quadrature of some points does in a few calls."""
    if points < _FEW or not tabulable(phi, j, part):
        return False
    try:
        rule = _rule(phi, j, variances[-1], part, tolerance)
    except AccuracyError:
        return False
    if isinstance(rule, CondensedRule):  # it hardly knows how many variances there are
        return True
    return 4 * rule.order**2 * len(variances) * _USUAL < _PAIR * points


@cached
def _rule(
    phi: Activation, j: int, largest: float, part: int, tolerance: float
) -> PolarRule | CondensedRule:
    return grid_rule(phi, j, j, (largest, largest), part, tolerance / 32)


def part_of(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The part of the angle, 0, 1 or 2, of each pair."""
    bound = math.cos(CUTS[1]) * a.sqrt() * b.sqrt()
    return 1 - (c > bound).long() + (c < -bound).long()


def _span(part: int) -> tuple[float, float]:
    return max(0.0, CUTS[part] - _MARGIN), min(math.pi, CUTS[part + 1] + _MARGIN)


def _number(i: Tensor, j: Tensor) -> Tensor:
    """The number of the pair i >= j in the lower half of a matrix."""
    return i * (i + 1) // 2 + j


def _clenshaw(coefficients: Tensor, number: Tensor, t: Tensor) -> Tensor:
    """The series of each point's own pair."""
    twice, first, second = 2 * t, torch.zeros_like(t), torch.zeros_like(t)
    for row in coefficients[1:].flip(0):
        first, second = twice * first + (row[number] - second), first
    return t * first + (coefficients[0][number] - second)


@cached
def _series(
    phi: Activation, j: int, variances: tuple[float, ...], part: int, tolerance: float
) -> Tensor | None:
    """The coefficients on one part of the angle; ``None`` if they are not accurate."""
    v = torch.tensor(variances, dtype=torch.float64)
    square = Square(Derivative(phi, j) if j else phi)
    try:
        norm = smoothed(square, torch.zeros_like(v), v).sqrt()
        rule = _rule(phi, j, variances[-1], part, tolerance)
    except AccuracyError:
        return None
    size = torch.outer(norm, norm)[..., None]
    if not bool((size > 0).all()):
        return None
    try:
        found = fit_together(
            lambda angle: rule.square_grid(phi, j, v, angle) / size,
            (_span(part),),
            tolerance=2 * tolerance,  # a quarter for what is cut off; the whole is compared below
            max_degree=_DEGREE,
            first_degree=_FIRST,
            check_points=0,
        )
    except AccuracyError:
        return None
    i, k = torch.tril_indices(len(v), len(v))
    series = (found.coefficients * size)[i, k].T.contiguous()
    return series if _agrees(phi, j, v, norm, _span(part), series, tolerance) else None


def _agrees(
    phi: Activation,
    j: int,
    v: Tensor,
    norm: Tensor,
    span: tuple[float, float],
    series: Tensor,
    tolerance: float,
) -> bool:
    """Whether the series agree with the other quadrature at points off their nodes."""
    generator = torch.Generator().manual_seed(0)
    i, k = (torch.randint(len(v), (_CHECKS,), generator=generator) for _ in range(2))
    t = 2 * torch.rand(_CHECKS, dtype=torch.float64, generator=generator) - 1
    angle = (span[0] + span[1]) / 2 + t * (span[1] - span[0]) / 2
    exact = mixed_dual(phi, j, j, v[i], v[k], angle.cos() * (v[i] * v[k]).sqrt())
    found = _clenshaw(series, _number(torch.maximum(i, k), torch.minimum(i, k)), t)
    return float(((found - exact).abs() / (norm[i] * norm[k])).max()) <= tolerance
