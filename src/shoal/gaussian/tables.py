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
from shoal.gaussian.domain import correlation
from shoal.gaussian.mixed import mixed_dual
from shoal.gaussian.polar import resolving_rule
from shoal.gaussian.smoothing import smoothed

__all__ = ["MANY", "tabulated_dual"]

MANY = 1024  # points from which on a table pays
_WIDTH = 4.0  # of a bin, in log₂ of the variance
_FIRST_BIN, _LAST_BIN = -5, 2  # bins that tables are made for: variances from 2^-22 to 2^10
_BLOCK = 1 << 16  # points that are evaluated together
_CHECKS = 32  # points at which a table is compared with the other quadrature


def tabulated_dual(
    phi: Activation, j: int, k: int, a: Tensor, b: Tensor, c: Tensor, *, tolerance: float
) -> Tensor:
    """$D_{jk}$ at vectors of covariances, by tables wherever one can be had and pays.

    The variances are cut into bins of a factor 16, around 1/16, 1, 16, ...; each pair of bins with
    many points has its table, and the remaining points are integrated.
    """
    if j < k:
        j, k, a, b = k, j, b, a
    elif j == k:
        a, b = torch.maximum(a, b), torch.minimum(a, b)
    result = torch.empty_like(a)
    bins = torch.stack([_bin(a), _bin(b)], dim=1)
    pairs, member, counts = bins.unique(dim=0, return_inverse=True, return_counts=True)
    for index, (pair, count) in enumerate(zip(pairs.tolist(), counts.tolist(), strict=True)):
        inside = (member == index).nonzero()[:, 0]
        table = _table(phi, j, k, *pair, tolerance) if _pays(phi, j, pair, count) else None
        for block in inside.split(_BLOCK):
            points = a[block], b[block], c[block]
            result[block] = mixed_dual(phi, j, k, *points) if table is None else table(*points)
    return result


def _bin(variance: Tensor) -> Tensor:
    """The bin of each variance; zero has one of its own."""
    exponent = variance.clamp(min=2.0**-600).log2()
    return ((exponent + _WIDTH / 2) / _WIDTH).floor().to(torch.int64)


def _pays(phi: Activation, j: int, pair: list[int], count: int) -> bool:
    """Whether a table is worth its making, and the dual is smooth enough for one."""
    if count < MANY or min(pair) < _FIRST_BIN or max(pair) > _LAST_BIN:
        return False
    places = breaks(phi, reach(phi))
    return all(x == 0 and not any(jump(phi, x, order) for order in range(j)) for x in places)


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


@lru_cache(maxsize=64)
def _table(
    phi: Activation, j: int, k: int, bin_a: int, bin_b: int, tolerance: float
) -> _Table | None:
    """Fit a table to two bins, or return ``None`` if it is not accurate."""
    span_a, span_b = ((_WIDTH * (n - 0.5), _WIDTH * (n + 0.5)) for n in (bin_a, bin_b))
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
