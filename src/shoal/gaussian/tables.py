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
from shoal.activations.panels import breaks, jump, vanishes
from shoal.approximation import Chebyshev, fit
from shoal.exceptions import AccuracyError
from shoal.gaussian.composites import Derivative, Square
from shoal.gaussian.domain import correlation
from shoal.gaussian.mixed import mixed_dual
from shoal.gaussian.polar import resolving_rule
from shoal.gaussian.smoothing import smoothed

__all__ = ["tabulated_dual"]

_SMALLEST, _LARGEST = 2.0**-20, 2.0**10  # variances that tables cover
_STEP = 0.5  # tables begin and end at multiples of this in log₂ of the variance
_BLOCK = 1 << 16  # points that are evaluated together
_CHECKS = 32  # points at which a table is compared with the other quadrature


def tabulated_dual(
    phi: Activation, j: int, k: int, a: Tensor, b: Tensor, c: Tensor, *, tolerance: float
) -> Tensor | None:
    """$D_{jk}$ at vectors of covariances by a table, or ``None`` if no table can be had."""
    if j < k:
        j, k, a, b = k, j, b, a
    elif j == k:
        a, b = torch.maximum(a, b), torch.minimum(a, b)
    smooth = all(x == 0 for x in breaks(phi)) and not any(
        jump(phi, 0.0, order) for order in range(j if breaks(phi) else 0)
    )
    covered = ((torch.minimum(a, b) >= _SMALLEST) & (torch.maximum(a, b) <= _LARGEST)).nonzero()
    if not smooth or vanishes(phi, j) or vanishes(phi, k) or len(covered) < len(a) // 2:
        return None
    inside = covered[:, 0]
    span_a, span_b = _span(a[inside]), _span(b[inside])
    table = _table(phi, j, k, span_a, span_b, tolerance)
    if table is None:
        return None
    result = torch.empty_like(a)
    for block in inside.split(_BLOCK):
        result[block] = table(a[block], b[block], c[block])
    if len(inside) < len(a):
        outside = torch.ones_like(a, dtype=torch.bool).index_fill_(0, inside, False)
        result[outside] = mixed_dual(phi, j, k, a[outside], b[outside], c[outside])
    return result


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
    phi: Activation,
    j: int,
    k: int,
    span_a: tuple[float, float],
    span_b: tuple[float, float],
    tolerance: float,
) -> _Table | None:
    """Fit a table to the given spans of log₂ of the variances."""
    try:
        rule = resolving_rule(phi, j, k, 2 ** span_a[1], 2 ** span_b[1], tolerance / 32)

        def normalized(log_a: Tensor, log_b: Tensor, angle: Tensor) -> Tensor:
            values = rule.dual_grid(phi, j, k, log_a.exp2(), log_b.exp2(), angle)
            return values / (_norm(phi, j, log_a)[:, None, None] * _norm(phi, k, log_b)[:, None])

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
    except AccuracyError:
        return None
    table = _Table(dual.compress(tolerance / 4), norm_u, norm_v)
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


def _span(variance: Tensor) -> tuple[float, float]:
    """The range of log₂ of the variances, rounded outwards so that calls share their tables."""
    low, high = float(variance.min()), float(variance.max())
    start = _STEP * math.floor(math.log2(low) / _STEP)
    return start, max(start + _STEP, _STEP * math.ceil(math.log2(high) / _STEP))
