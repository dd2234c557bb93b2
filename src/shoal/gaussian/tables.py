r"""Duals at many points: one table in $(\log a, \log b, \theta)$, evaluated everywhere.

The table holds the dual divided by $\sqrt{\mathbb{E}\varphi(u)^2\,\mathbb{E}\varphi(v)^2}$, so its
error is the relative one. An activation that is analytic, or analytic on both sides of zero, has a
dual that is analytic in the three variables up to $\theta = 0$ and $\pi$; kinks elsewhere make a
layer there, and a table is made for the angles between only.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.closed_forms.correlation import correlation
from shoal.activations.panels import breaks, jump, reach, vanishes
from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError
from shoal.gaussian.domain import Covariance
from shoal.gaussian.mehler import ORDERS, expanded
from shoal.gaussian.mixed import mixed_dual
from shoal.gaussian.moments import derivative_square
from shoal.gaussian.polar import Rule, resolving_rule
from shoal.numerics import Chebyshev, fit

_Span: TypeAlias = tuple[float, float]

_MANY = 128  # points from which on tables pay ...
_FEW = 32  # ... for all boxes but those with fewer than these
_NARROW = 6.0  # a range of variances, in log₂, that needs no bins
_WIDTH = 4  # of a bin of a wide range
_STEP = 1.0  # what the ends of a range are multiples of
_SMALLEST, _LARGEST = -22.0, 26.0  # no tables are made beyond
_NOTHING = 2.0**-600  # stands in for a variance of zero
_CUTS = (0.0, 0.25, math.pi - 0.25, math.pi)  # of the angle: at large variances its ends are rough
_PARTS = len(_CUTS) - 1
_MIDDLE = 1  # the part where the sine is not small
_BLOCK = 1 << 16  # points that are evaluated together
_ORDER = ORDERS[2]  # of Hermite coefficients, which are enough for angles of 1/4 and more
_CHECKS = 32  # points at which a table is compared with the other quadrature


@dataclass(frozen=True, eq=False)
class Tables:
    """$D_{jk}$ by tables wherever one can be had and pays, and by quadrature elsewhere.

    A wide range of variances is cut into bins of a factor 16, and the angle into three parts; each
    box with many points has its table.
    """

    phi: Activation
    orders: tuple[int, int]
    edges: tuple[float, ...]  # of the bins, in log₂ of the variance
    tables: dict[int, Chebyshev]  # normalized duals, by number of the box

    @classmethod
    def of(
        cls, phi: Activation, j: int, k: int, pair: Covariance, tolerance: float
    ) -> "Tables | None":
        """The tables for some covariances; ``None`` if there are too few of them."""
        blocks = (pair[index] for index in pair.blocks(_BLOCK))
        if sum(int(((a != b) | (c != a)).sum()) for a, b, c in blocks) < _MANY:
            return None  # an input and itself need no table
        edges = _edges(pair)
        boxes = (len(edges) - 1) ** 2 * _PARTS
        counts = torch.zeros(boxes, dtype=torch.int64, device=pair.a.device)
        for index in pair.blocks(_BLOCK):
            numbers = _box_number(edges, *_ordered(j, k, *pair[index]))
            counts += torch.bincount(numbers.reshape(-1), minlength=boxes)
        high, low = max(j, k), min(j, k)
        often = (counts >= _FEW).nonzero()[:, 0].tolist()
        many = [n for n in often if tabulable(phi, high, n % _PARTS)]
        spans = {n: _spans(edges, n) for n in many}
        made = {n: _table(phi, high, low, *span, tolerance) for n, span in spans.items()}
        kept = {n: table for n, table in made.items() if table is not None}
        return cls(phi, (j, k), edges, kept)

    def __call__(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Evaluate at vectors of covariances."""
        high, low = max(self.orders), min(self.orders)
        a, b, c = _ordered(*self.orders, a, b, c)
        where, result = _box_number(self.edges, a, b, c), torch.empty_like(a)
        rest = torch.ones_like(a, dtype=torch.bool)
        for n, table in self.tables.items():
            inside = where == n
            if bool(inside.any()):
                x, y, z = a[inside], b[inside], c[inside]
                cosine, sine = correlation(x, y, z)
                normalized = table(x.log2(), y.log2(), torch.atan2(sine, cosine))
                result[inside] = normalized * _norm(self.phi, high, x) * _norm(self.phi, low, y)
                rest &= ~inside
        if bool(rest.any()):
            result[rest] = mixed_dual(self.phi, high, low, a[rest], b[rest], c[rest])
        return result


def _ordered(j: int, k: int, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments with more derivatives first, then the larger variance, for symmetric results."""
    if j == k:
        return torch.maximum(a, b), torch.minimum(a, b), c
    return (b, a, c) if j < k else (a, b, c)


def _edges(pair: Covariance) -> tuple[float, ...]:
    """The bins of the variances; their ends are rounded outwards so that tables are shared."""
    low = min(float(t.detach().min()) for t in (pair.a, pair.b))
    high = max(float(t.detach().max()) for t in (pair.a, pair.b))
    first = _STEP * math.floor(math.log2(max(low, _NOTHING)) / _STEP)
    last = max(_STEP * math.ceil(math.log2(max(high, _NOTHING)) / _STEP), first + _STEP)
    if last - first <= _NARROW:
        return first, last
    cuts = range(math.ceil(_SMALLEST), math.floor(_LARGEST) + 1, _WIDTH)
    return first, *(float(cut) for cut in cuts if first < cut < last), last


def _box_number(edges: tuple[float, ...], a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The number of the box of each pair."""
    inner = a.new_tensor(edges[1:-1])
    first, second = (torch.bucketize(t.log2(), inner) for t in (a, b))
    return (first * (len(edges) - 1) + second) * _PARTS + _part(a, b, c)


def tabulable(phi: Activation, order: int, part: int) -> bool:
    """Whether duals are analytic on a part of the angle: without deltas, and near 0 and π ...

    ... with kinks at zero only, since others make a layer there.
    """
    places = breaks(phi, reach(phi))
    if any(jump(phi, x, n) for x in places for n in range(order)):
        return False
    return part == _MIDDLE or not any(places)


def _part(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The part of the angle, 0, 1 or 2, of each pair."""
    bound = math.cos(_CUTS[1]) * a.sqrt() * b.sqrt()
    return 1 - (c > bound).long() + (c < -bound).long()


def _rule(
    phi: Activation, orders: tuple[int, int], spans: tuple[_Span, _Span, _Span], tolerance: float
) -> Rule:
    """Sums of Hermite coefficients, if they are as accurate in a box, or a quadrature."""
    largest = torch.tensor([2.0 ** span[1] for span in spans[:2]], dtype=torch.float64)
    share = max(abs(math.cos(angle)) for angle in spans[2]) ** _ORDER
    rests = [
        expanded(phi, n, t, _ORDER).rest for n, t in zip(orders, largest[:, None], strict=True)
    ]
    if share * float(rests[0] * rests[1]) <= tolerance:
        return partial(_hermite_sums, phi, orders)
    return resolving_rule(phi, orders, (float(largest[0]), float(largest[1])), tolerance)


def _hermite_sums(
    phi: Activation, orders: tuple[int, int], a: Tensor, b: Tensor, angle: Tensor
) -> Tensor:
    """$D_{jk}$ at all of them. shape: (len(a), len(b), len(angle))."""
    left, right = (expanded(phi, n, t, _ORDER) for n, t in zip(orders, (a, b), strict=True))
    powers = angle.cos() ** torch.arange(_ORDER + 1, dtype=torch.float64)[:, None]
    return (left.coefficients[:, None] * right.coefficients) @ powers


def _spans(edges: tuple[float, ...], number: int) -> tuple[_Span, _Span, _Span]:
    """The box of a number."""
    bins, part = divmod(number, _PARTS)
    first, second = divmod(bins, len(edges) - 1)
    margin = 1e-6  # the angle of a point may be rounded to the other side of a cut
    angles = (max(0.0, _CUTS[part] - margin), min(math.pi, _CUTS[part + 1] + margin))
    return (edges[first], edges[first + 1]), (edges[second], edges[second + 1]), angles


@cached  # images of many variances need hundreds, again and again
def _table(
    phi: Activation,
    j: int,
    k: int,
    span_a: _Span,
    span_b: _Span,
    span_angle: _Span,
    tolerance: float,
) -> Chebyshev | None:
    """Fit a table to spans of log₂ of the variances and of the angle; ``None`` if it fails."""
    if min(span_a[0], span_b[0]) < _SMALLEST or max(span_a[1], span_b[1]) > _LARGEST:
        return None
    if vanishes(phi, j, reach(phi)) or vanishes(phi, k, reach(phi)):
        return None

    def normalized(log_a: Tensor, log_b: Tensor, angle: Tensor) -> Tensor:
        a, b = log_a.exp2(), log_b.exp2()
        return rule(a, b, angle) / (_norm(phi, j, a)[:, None, None] * _norm(phi, k, b)[:, None])

    box = (span_a, span_b, span_angle)
    try:
        rule = _rule(phi, (j, k), box, tolerance / 32)
        full = fit(normalized, box, tolerance=tolerance / 2, max_degree=(64, 64, 128))
        table = full.compress(tolerance / 4)
    except AccuracyError:
        return None
    return table if _agrees(table, phi, j, k, tolerance) else None


def _agrees(table: Chebyshev, phi: Activation, j: int, k: int, tolerance: float) -> bool:
    """Whether the table agrees with the other quadrature at points off its grid."""
    unit = torch.quasirandom.SobolEngine(3, scramble=True, seed=0).draw(
        _CHECKS, dtype=torch.float64
    )
    low, high = torch.tensor(table.box, dtype=torch.float64).T
    log_a, log_b, angle = (low + (high - low) * unit).T
    a, b = log_a.exp2(), log_b.exp2()
    exact = mixed_dual(phi, j, k, a, b, angle.cos() * (a * b).sqrt())
    difference = table(log_a, log_b, angle) - exact / (_norm(phi, j, a) * _norm(phi, k, b))
    return float(difference.abs().max()) <= tolerance


def _norm(phi: Activation, order: int, variance: Tensor) -> Tensor:
    """The root of the mean square of a derivative."""
    return derivative_square(phi, order, variance).sqrt()
