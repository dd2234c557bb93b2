"""The edges of the support when all columns have one covariance: exact.

With poles π_j = c s_j at the covariance's eigenvalues s_j of share m_j, the inverse of the
solution is x(v) = v + Σ_j m_j s_j v/(v − π_j), and a real x lies outside the support exactly
where it is taken with x'(v) > 0 (Silverstein and Choi 1995). Since
1 − x'(v) = Σ_j (m_j π_j²/c)/(v − π_j)² is convex between two poles, each interval between
poles holds at most one gap of the support, whose ends are bracketed.
"""

from collections.abc import Callable

import numpy as np

from shoal.spectra.populations import Array, Commuting

__all__ = ["single_class_edges"]


def single_class_edges(population: Commuting, ratio: float) -> tuple[Array, Array]:
    """The edges x, in increasing order, and their v; a bulk lies between each two.

    A first edge of exactly 0 is a hard one, at which the density is infinite.
    """
    positive = population.values[:, 0] > 0
    values, shares = population.values[positive, 0], population.shares[positive]
    poles, weights = ratio * values, shares * ratio * values**2

    def excess(v: Array) -> Array:  # −x'(v)
        return np.asarray((weights / (v[:, None] - poles) ** 2).sum(1) - 1)

    def slope(v: Array) -> Array:
        return np.asarray(-(weights / (v[:, None] - poles) ** 3).sum(1))

    reach = np.sqrt(weights.sum())
    if abs(shares.sum() - ratio) < 1e-13 * ratio:  # as many directions as columns
        first = 0.0
    else:
        # the nearest pole alone, and all of them there, bound the first edge
        near = poles[0] - np.sqrt(weights[0])
        first = float(_bisect(excess, np.array([poles[0] - reach]), np.array([near]))[0])
    last = float(
        _bisect(
            lambda v: -excess(v),
            np.array([poles[-1] + np.sqrt(weights[-1])]),
            np.array([poles[-1] + reach]),
        )[0]
    )
    # the two poles next to it alone close an interval for certain if their least sum does
    roots = np.cbrt(weights)
    candidate = (roots[:-1] + roots[1:]) ** 3 < np.diff(poles) ** 2
    lower, upper = poles[:-1][candidate], poles[1:][candidate]
    lowest = _bisect(slope, lower, upper)
    open_ = excess(lowest) < 0
    lower, lowest, upper = lower[open_], lowest[open_], upper[open_]
    left = _bisect(lambda v: -excess(v), lower, lowest)
    right = _bisect(excess, lowest, upper)
    inner = np.stack([left, right], 1).reshape(-1)
    v = np.concatenate([[first], inner, [last]])
    x = v * (1 + (shares * values / (v[:, None] - poles)).sum(1))
    return np.abs(x), v


def _bisect(function: Callable[[Array], Array], lower: Array, upper: Array) -> Array:
    """The zeros of increasing functions, each in its interval, to the last bit."""
    lower, upper = lower.copy(), upper.copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(200):
            middle = (lower + upper) / 2
            if not ((middle > lower) & (middle < upper)).any():
                break
            above = function(middle) > 0
            upper = np.where(above, middle, upper)
            lower = np.where(above, lower, middle)
    return (lower + upper) / 2
