"""The edges of the support of a limiting law.

When all columns have one covariance they are exact. With poles π_j = c s_j at the covariance's
eigenvalues s_j of share m_j, the inverse of the solution is x(v) = v + Σ_j m_j s_j v/(v − π_j),
and a real x lies outside the support exactly where it is taken with x'(v) > 0 (Silverstein and
Choi 1995). Since 1 − x'(v) = Σ_j (m_j π_j²/c)/(v − π_j)² is convex between two poles, each
interval between poles holds at most one gap of the support, whose ends are bracketed.

When columns have several covariances, the axis is scanned. Nothing is lost between two points
outside the support: the mass below such a point is a count of signs, so two points with one count
have no spectrum between them. An edge is a fold of the real solution: it is bracketed by
bisection, and found as the point at which the solution's stability ends.
"""

from collections.abc import Callable

import numpy as np

from shoal.asymptotics.equation import Array, AxisSolutions, Equation
from shoal.core.exceptions import AccuracyError

_POINTS = 400  # of a scan
_BISECTIONS = 34  # before an edge is found by Newton's method


def single_class_edges(equation: Equation) -> tuple[Array, Array]:
    """The edges x, in increasing order, and their v; a bulk lies between each two."""
    positive, ratio = equation.values[:, 0] > 0, float(equation.ratios[0])
    values, shares = equation.values[positive, 0], equation.shares[positive]
    poles, weights = ratio * values, shares * ratio * values**2

    def excess(v: Array) -> Array:  # −x'(v)
        return np.asarray((weights / (v[:, None] - poles) ** 2).sum(1) - 1)

    def slope(v: Array) -> Array:
        return np.asarray(-(weights / (v[:, None] - poles) ** 3).sum(1))

    reach = np.sqrt(weights.sum())
    first = 0.0
    if not abs(shares.sum() - ratio) < 1e-13 * ratio:  # else as many directions as columns
        # the nearest pole alone, and all of them there, bound the first edge
        near = poles[0] - np.sqrt(weights[0])
        first = float(_bisect(excess, np.array([poles[0] - reach]), np.array([near]))[0])
    start = np.array([poles[-1] + np.sqrt(weights[-1])])
    last = float(_bisect(lambda v: -excess(v), start, np.array([poles[-1] + reach]))[0])
    # the two poles next to it alone close an interval for certain if their least sum does
    roots = np.cbrt(weights)
    candidate = (roots[:-1] + roots[1:]) ** 3 < np.diff(poles) ** 2
    lower, upper = poles[:-1][candidate], poles[1:][candidate]
    lowest = _bisect(slope, lower, upper)
    open_ = excess(lowest) < 0
    lower, lowest, upper = lower[open_], lowest[open_], upper[open_]
    left = _bisect(lambda v: -excess(v), lower, lowest)
    right = _bisect(excess, lowest, upper)
    v = np.concatenate([[first], np.stack([left, right], 1).reshape(-1), [last]])
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


def scanned_edges(equation: Equation, missing: float, *, hard: bool) -> tuple[Array, Array]:
    """The edges of several covariances, and their v.

    Args:
        equation: The equation.
        missing: The mass of the eigenvalues zero, in units of n/p.
        hard: Whether 0 is an edge, at which the density is infinite.
    """
    top = equation.bound
    x = np.geomspace(_bottom(equation, missing, hard=hard), top, _POINTS)
    points = equation.on_axis(x)
    for _ in range(80):
        new = _between(equation, x, points)
        if not len(new):
            break
        more = equation.on_axis(new)
        order = np.argsort(np.concatenate([x, new]), kind="stable")
        x = np.concatenate([x, new])[order]
        points = AxisSolutions(
            *(np.concatenate(pair)[order] for pair in zip(points, more, strict=True))
        )
    else:
        raise AccuracyError("a part of the support is too narrow to be resolved")
    change = np.flatnonzero(points.inside[1:] != points.inside[:-1])
    if (len(change) + hard) % 2:
        raise AccuracyError("the edges of the support could not be paired")
    swapped = points.inside[change]
    out = np.where(swapped, x[change + 1], x[change])
    within = np.where(swapped, x[change], x[change + 1])
    v = np.where(swapped[:, None], points.v[change + 1], points.v[change])
    complex_v = np.where(swapped[:, None], points.v[change], points.v[change + 1])
    for _ in range(_BISECTIONS):
        middle = np.sqrt(out * within)
        polished, ok = equation.polish(v, middle)
        retry = ~ok
        if retry.any():
            again = equation.on_axis(middle[retry], complex_v[retry])
            polished.v[retry], polished.inside[retry] = again
        inside = polished.inside
        out, within = np.where(inside, out, middle), np.where(inside, middle, within)
        v = np.where(inside[:, None], v, polished.v)
        complex_v = np.where(inside[:, None], polished.v, complex_v)
    folds = [_fold(equation, *each) for each in zip(out, within, v.real, strict=True)]
    if hard:
        folds.insert(0, (0.0, np.zeros(len(equation.ratios))))
    return np.array([edge for edge, _ in folds]), np.stack([v for _, v in folds])


def _bottom(equation: Equation, missing: float, *, hard: bool) -> float:
    """A point below the whole support, or, at a hard edge, deep in its lowest part."""
    top = equation.bound
    if hard:
        return 1e-9 * top
    x = 1e-2 * top
    while x > 1e-14 * top:
        place = np.array([x])
        points = equation.on_axis(place)
        # rounding makes zero eigenvalues of singular covariances uncertain: go no lower
        if not points.inside[0] and abs(equation.mass_below(points.v, place)[0] - missing) < 1e-9:
            return x
        x /= 4
    raise AccuracyError("the support comes too near to zero to be resolved")


def _between(equation: Equation, x: Array, points: AxisSolutions) -> Array:
    """Points to add: where mass hides between two, and beside minima that may be gaps."""
    below = np.round(equation.mass_below(points.v, x), 12)
    outside = ~points.inside
    crowded = outside[1:] & outside[:-1] & (below[1:] != below[:-1])
    middles = np.sqrt(x[1:] * x[:-1])
    density = (-1 / points.v).imag @ equation.ratios
    low, left, right = density[1:-1], density[:-2], density[2:]
    bulk = points.inside[1:-1] & points.inside[:-2] & points.inside[2:]
    # a smooth minimum is flat at the scale of the points; a closing gap never is
    minimum = bulk & (low < np.minimum(left, right)) & (low < 0.98 * np.maximum(left, right))
    minimum &= x[2:] - x[:-2] > 1e-9 * x[2:]
    crowded[:-1] |= minimum
    crowded[1:] |= minimum
    return np.asarray(middles[crowded])


def _fold(equation: Equation, outside: float, inside: float, v: Array) -> tuple[float, Array]:
    """The edge near a point outside the support, with its solution, and one inside.

    There the residual and the stability of the real solution vanish together.
    """
    x, start = outside, v.copy()
    size = len(v)
    for _ in range(20):
        difference, jacobian, _ = equation.residual(v[None], np.array([x]))
        step = 1e-6 * np.abs(v)
        moved = np.concatenate([v + np.diag(step), v - np.diag(step)])
        slopes = equation.stability(moved)
        system = np.zeros((size + 1, size + 1))
        system[:size, :size], system[:size, size] = jacobian[0], -1
        system[size, :size] = (slopes[:size] - slopes[size:]) / (2 * step)
        right = [*difference[0], equation.stability(v[None])[0]]
        change = np.linalg.solve(system, right)
        v, x = v - change[:size], x - change[size]
        if (np.abs(change[:size]) <= 1e-14 * np.abs(v)).all():
            break
    slack = 1e-6 * abs(inside - outside) + 1e-12 * abs(outside)
    low, high = sorted((inside, outside))
    if not low - slack <= x <= high + slack or not np.abs(v - start).max() < np.abs(v).max():
        raise AccuracyError(f"an edge of the support near {outside:.6g} was not found")
    return float(x), v
