r"""Duals at many points: one table in $(\log a, \log b, \theta)$, evaluated everywhere.

The table holds the dual divided by $\sqrt{\mathbb{E}\varphi(u)^2\,\mathbb{E}\varphi(v)^2}$, so its
error is the relative one. An activation that is analytic, or analytic on both sides of zero, has a
dual that is analytic in the three variables up to $\theta = 0$ and $\pi$; kinks elsewhere make a
layer there, and no table is made.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.panels import breaks, jump, reach, vanishes
from shoal.approximation import Chebyshev, fit
from shoal.exceptions import AccuracyError
from shoal.gaussian.composites import Derivative, Square
from shoal.gaussian.domain import Covariance, correlation
from shoal.gaussian.mixed import mixed_dual
from shoal.gaussian.polar import resolving_rule
from shoal.gaussian.smoothing import smoothed

__all__ = ["MANY", "Tables"]

MANY = 1024  # points from which on a table pays
_WIDTH = 4.0  # of a bin, in log₂ of the variance
_STEP = 0.5  # what the ends of a table are multiples of
_FIRST_BIN, _BINS = -6, 10  # tables are made for all but the outermost: from 2^-22 to 2^10
_BLOCK = 1 << 16  # points that are evaluated together
_CHECKS = 32  # points at which a table is compared with the other quadrature


@dataclass(frozen=True)
class _Table:
    """The normalized dual, and the logarithms of the norms that it was divided by."""

    normalized: Chebyshev
    norm_u: Chebyshev
    norm_v: Chebyshev

    def __call__(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        cosine, sine = correlation(a, b, c)
        log_a, log_b = a.log2(), b.log2()
        norm = torch.exp(self.norm_u(log_a) + self.norm_v(log_b))
        return self.normalized(log_a, log_b, torch.atan2(sine, cosine)) * norm


@dataclass(frozen=True, eq=False)
class Tables:
    """$D_{jk}$ by tables wherever one can be had and pays, and by quadrature elsewhere.

    The variances are cut into bins of a factor 16, around 1/16, 1, 16, ...; each pair of bins with
    many points has its table.
    """

    phi: Activation
    orders: tuple[int, int]
    tables: dict[int, _Table]  # by pair of bins

    @classmethod
    def of(
        cls, phi: Activation, j: int, k: int, pair: Covariance, tolerance: float
    ) -> "Tables | None":
        """The tables for some covariances; ``None`` if there are too few of them."""
        if math.prod(pair.shape) < MANY:
            return None
        counts = torch.zeros(_BINS**2, dtype=torch.int64, device=pair.a.device)
        for index in pair.blocks(_BLOCK):
            a, b, _ = _ordered(j, k, *pair[index])
            counts += torch.bincount(_pair_of_bins(a, b).reshape(-1), minlength=_BINS**2)
        ends = _range(pair)
        many = (counts >= MANY).nonzero()[:, 0].tolist() if _is_smooth(phi, max(j, k)) else []
        high, low = max(j, k), min(j, k)
        spans = {n: (_span(n // _BINS, *ends), _span(n % _BINS, *ends)) for n in many}
        made = {n: _table(phi, high, low, *span, tolerance) for n, span in spans.items()}
        kept = {n: table for n, table in made.items() if table is not None}
        return cls(phi, (j, k), kept)

    def __call__(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Evaluate at vectors of covariances."""
        a, b, c = _ordered(*self.orders, a, b, c)
        where, result = _pair_of_bins(a, b), torch.empty_like(a)
        rest = torch.ones_like(a, dtype=torch.bool)
        for n, table in self.tables.items():
            inside = where == n
            if bool(inside.any()):
                result[inside] = table(a[inside], b[inside], c[inside])
                rest &= ~inside
        if bool(rest.any()):
            high, low = max(self.orders), min(self.orders)
            result[rest] = mixed_dual(self.phi, high, low, a[rest], b[rest], c[rest])
        return result


def _ordered(j: int, k: int, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """More derivatives first, then the larger variance, so that the result is symmetric."""
    if j == k:
        return torch.maximum(a, b), torch.minimum(a, b), c
    return (b, a, c) if j < k else (a, b, c)


def _pair_of_bins(a: Tensor, b: Tensor) -> Tensor:
    """The number of the two bins of each pair; the first and the last bin have no end."""
    bins = [((t.log2() / _WIDTH + 0.5).floor() - _FIRST_BIN).clamp(0, _BINS - 1) for t in (a, b)]
    return (bins[0] * _BINS + bins[1]).to(torch.int64)


def _range(pair: Covariance) -> tuple[float, float]:
    """log₂ of the smallest and the largest variance, rounded outwards so that tables are shared."""
    low = min(float(t.detach().min()) for t in (pair.a, pair.b))
    high = max(float(t.detach().max()) for t in (pair.a, pair.b))
    ends = (math.log2(max(low, 2.0**-600)), math.log2(max(high, 2.0**-600)))
    return _STEP * math.floor(ends[0] / _STEP), _STEP * math.ceil(ends[1] / _STEP)


def _span(number: int, low: float, high: float) -> tuple[float, float] | None:
    """The part of a bin that lies between two ends; ``None`` for the outermost bins."""
    if number in (0, _BINS - 1):
        return None
    middle = _WIDTH * (number + _FIRST_BIN)
    start = max(low, middle - _WIDTH / 2)
    return start, max(min(high, middle + _WIDTH / 2), start + _STEP)


def _is_smooth(phi: Activation, order: int) -> bool:
    """Whether kinks are at zero only, and no delta is among the derivatives."""
    places = breaks(phi, reach(phi))
    return all(x == 0 and not any(jump(phi, x, n) for n in range(order)) for x in places)


@lru_cache(maxsize=64)
def _table(
    phi: Activation,
    j: int,
    k: int,
    span_a: tuple[float, float] | None,
    span_b: tuple[float, float] | None,
    tolerance: float,
) -> _Table | None:
    """Fit a table to two spans of log₂ of the variances; ``None`` if it is not accurate."""
    if span_a is None or span_b is None:
        return None
    if vanishes(phi, j, reach(phi)) or vanishes(phi, k, reach(phi)):
        return None

    def normalized(log_a: Tensor, log_b: Tensor, angle: Tensor) -> Tensor:
        values = rule.dual_grid(phi, j, k, log_a.exp2(), log_b.exp2(), angle)
        return values / (_norm(phi, j, log_a)[:, None, None] * _norm(phi, k, log_b)[:, None])

    try:
        rule = resolving_rule(phi, j, k, 2 ** span_a[1], 2 ** span_b[1], tolerance / 32)
        norm_u, norm_v = (
            fit(lambda x, n=order: _norm(phi, n, x).log(), [span], tolerance=tolerance / 16)
            for order, span in ((j, span_a), (k, span_b))
        )
        dual = fit(
            normalized,
            (span_a, span_b, (0.0, math.pi)),
            tolerance=tolerance / 2,
            max_degree=(64, 64, 128),
        )
        table = _Table(dual.compress(tolerance / 4), norm_u, norm_v)
    except AccuracyError:
        return None
    return table if _agrees(table, phi, j, k, tolerance) else None


def _agrees(table: _Table, phi: Activation, j: int, k: int, tolerance: float) -> bool:
    """Whether the table agrees with the other quadrature at points off its grid."""
    unit = torch.quasirandom.SobolEngine(3, scramble=True, seed=0).draw(
        _CHECKS, dtype=torch.float64
    )
    low, high = torch.tensor(table.normalized.box, dtype=torch.float64).T
    log_a, log_b, angle = (low + (high - low) * unit).T
    a, b = log_a.exp2(), log_b.exp2()
    c = angle.cos() * (a * b).sqrt()
    scale = _norm(phi, j, log_a) * _norm(phi, k, log_b)
    difference = (table(a, b, c) - mixed_dual(phi, j, k, a, b, c)) / scale
    return float(difference.abs().max()) <= tolerance


def _norm(phi: Activation, order: int, log_variance: Tensor) -> Tensor:
    """The root of the mean square of a derivative."""
    square = Square(Derivative(phi, order))
    return smoothed(square, torch.zeros_like(log_variance), log_variance.exp2()).sqrt()
