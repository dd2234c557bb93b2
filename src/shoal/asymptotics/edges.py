"""The edges of the support.

When all columns have one covariance they are exact. With poles π_j = c s_j at the covariance's
eigenvalues s_j of share m_j, the inverse of the solution is x(v) = v + Σ_j m_j s_j v/(v − π_j),
and a real x lies outside the support exactly where it is taken with x'(v) > 0 (Silverstein and
Choi 1995). Since 1 − x'(v) = Σ_j (m_j π_j²/c)/(v − π_j)² is convex between two poles, each
interval between poles holds at most one gap of the support, whose ends are bracketed.

When columns have several covariances, edges are folds of the real solution: outside the support
the equation has a real stable solution v(x), and the support begins where it folds back. The
search scans the axis, and finishes each edge by Newton's method in the direction of the fold,
where x is a smooth function of position on the curve with x' = 0. Nothing is lost between two
points outside the support: the mass below such a point is a count of signs, so two points with
one count have no spectrum between them.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shoal.asymptotics.equation import Equation
from shoal.asymptotics.populations import Array, Commuting, Values
from shoal.core.exceptions import AccuracyError

_EPS = float(np.finfo(float).eps)


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


class _Point(NamedTuple):
    x: float
    v: Values
    inside: bool
    below: float  # the mass below, known outside of the support


class Scan:
    """Points of the axis, inside and outside of the support, and the search between them.

    ``atom`` is the mass of the eigenvalues zero, in units of n/p.
    """

    def __init__(self, equation: Equation, *, points: int, atom: float) -> None:
        self.equation = equation
        self._points: list[_Point] = []
        self._count = points
        self._known: dict[tuple[float, float], tuple[float, Array]] = {}  # edges between points
        self._atom = atom

    def include(self, x: float) -> None:
        """Take a further point into the scan."""
        self._add(np.array([x]))

    def edges(self, hard: bool) -> tuple[Array, Array]:
        """The edges and their v; with ``hard`` the first one is 0."""
        if not self._points:
            top = self.equation.bound
            self._add(np.geomspace(self._bottom(top, hard), top, self._count))
        self._split_crowded_gaps()
        self._open_minima()
        edges = [(0.0, np.zeros(len(self.equation.ratios)))] if hard else []
        edges += [
            self._edge(left, right)
            for left, right in pairwise(self._points)
            if left.inside != right.inside
        ]
        edges.sort(key=lambda edge: edge[0])
        if len(edges) % 2:
            raise AccuracyError("the edges of the support could not be paired")
        return np.array([x for x, _ in edges]), np.stack([v for _, v in edges])

    def _bottom(self, top: float, hard: bool) -> float:
        """A point below the whole support, or, at a hard edge, deep in its lowest part."""
        if hard:
            return 1e-9 * top
        x = 1e-2 * top
        while x > 1e-14 * top:
            points = self.equation.on_axis(np.array([x]))
            # rounding makes zero eigenvalues of singular covariances uncertain: go no lower
            if not points.inside[0] and abs(self._below(points.v[0].real) - self._atom) < 1e-9:
                return x
            x /= 4
        raise AccuracyError("the support comes too near to zero to be resolved")

    def _below(self, v: Array) -> float:
        """The mass below a point outside the support, in units of n/p (see `Component`)."""
        equation = self.equation
        load = -equation.ratios / v
        count = equation.ratios[v > 0].sum() - equation.population.negative(load)
        return float(round(count, 12))

    def _add(self, grid: Array) -> None:
        v, inside = self.equation.on_axis(grid)
        for x, value, within in zip(grid, v, inside, strict=True):
            below = np.nan if within else self._below(value.real)
            self._points.append(_Point(float(x), value, bool(within), below))
        self._points.sort(key=lambda point: point.x)

    def _split_crowded_gaps(self) -> None:
        """Bisect between points outside the support until no mass hides between two of them."""
        for _ in range(60):
            middles = [
                np.sqrt(left.x * right.x)
                for left, right in pairwise(self._points)
                if not left.inside and not right.inside and left.below != right.below
            ]
            if not middles:
                return
            self._add(np.array(middles))
        raise AccuracyError("a part of the support is too narrow to be resolved")

    def _open_minima(self) -> None:
        """Descend into the minima of the density until a gap opens or the minimum is smooth."""
        for _ in range(40):
            new = list(self._beside_minima())
            if not new:
                return
            self._add(np.array(new))

    def _beside_minima(self) -> Iterator[float]:
        for left, middle, right in zip(
            self._points, self._points[1:], self._points[2:], strict=False
        ):
            if not (left.inside and middle.inside and right.inside):
                continue
            low, a, b = (self._density(point) for point in (middle, left, right))
            # a smooth minimum is flat at the scale of the points; a closing gap never is
            if low < min(a, b) and low < 0.98 * max(a, b) and right.x - left.x > 1e-9 * right.x:
                yield np.sqrt(left.x * middle.x)
                yield np.sqrt(middle.x * right.x)

    def _density(self, point: _Point) -> float:
        return float(self.equation.ratios @ (-1 / point.v).imag)

    def _edge(self, left: _Point, right: _Point) -> tuple[float, Array]:
        """The edge between a point outside and one inside, found once."""
        pair = left.x, right.x
        if pair not in self._known:
            self._known[pair] = self._search(left, right)
        return self._known[pair]

    def _search(self, left: _Point, right: _Point) -> tuple[float, Array]:
        """The edge by bisection until a fold is found."""
        out, within = (right, left) if left.inside else (left, right)
        for step in range(1, 40):
            x = np.array([np.sqrt(out.x * within.x)])
            points, ok = self.equation.polish(out.v[None], x)
            if not ok[0]:
                points, ok = self.equation.polish(within.v[None], x)
            if not ok[0]:
                points = self.equation.on_axis(x)
            point = _Point(float(x[0]), points.v[0], bool(points.inside[0]), np.nan)
            out, within = (out, point) if point.inside else (point, within)
            if step % 3 == 0:
                with suppress(AccuracyError):
                    return fold(self.equation, out.x, out.v.real, within.x)
        return fold(self.equation, out.x, out.v.real, within.x)


def fold(equation: Equation, outside: float, v: Array, inside: float) -> tuple[float, Array]:
    """The edge between a point outside the support, with its solution, and one inside."""
    curve = _Curve(equation, v, outside)
    position, slope = 0.0, curve.slope
    # near the fold x is a parabola of the position: this would reach the inner point
    step = (inside - outside) / slope
    for _ in range(60):
        before, slope_before = position, slope
        moved = curve.move(position + step)
        if not moved:
            step /= 2
            continue
        position, slope = position + step, curve.slope
        if slope == slope_before or abs(slope) <= 1e-13 * curve.unit:
            break
        step = -slope * (position - before) / (slope - slope_before)
        if abs(step) <= 4 * _EPS * np.abs(curve.v).max():
            break
    x = curve.x
    slack = 1e-12 * abs(outside)
    between = min(inside, outside) - slack <= x <= max(inside, outside) + slack
    if not (abs(slope) < 1e-6 * curve.unit and between):
        raise AccuracyError(f"an edge of the support near {outside:.6g} was not found")
    return x, curve.v


class _Curve:
    """The real solutions (v, x) near a fold, by their position along a fixed direction."""

    def __init__(self, equation: Equation, v: Array, x: float) -> None:
        self.equation, self.v, self.x = equation, v, x
        _, jacobian, _ = equation.residual(v[None], np.array([x]))
        tangent = np.linalg.solve(jacobian[0], np.ones(len(v)))
        self.direction = tangent / np.linalg.norm(tangent)
        self.origin = v.copy()
        self.slope = 1 / float(np.linalg.norm(tangent))
        self.unit = self.slope

    def move(self, position: float) -> bool:
        """Go to a position; the slope dx/dposition is then up to date."""
        v, x = self.v.copy(), self.x
        size = len(v)
        for _ in range(30):
            difference, jacobian, noise = self.equation.residual(v[None], np.array([x]))
            bordered = np.zeros((size + 1, size + 1))
            bordered[:size, :size], bordered[:size, size] = jacobian[0], -1
            bordered[size, :size] = self.direction
            left = self.direction @ (v - self.origin) - position
            try:
                step, tangent = np.linalg.solve(
                    bordered, np.stack([[*difference[0], left], [*np.zeros(size), 1]], 1)
                ).T
            except np.linalg.LinAlgError:
                return False
            v, x = v - step[:size], x - step[size]
            exact = np.abs(difference[0]) <= 4 * noise[0]
            placed = abs(left) <= 4 * _EPS * np.abs(v).max()
            if (np.abs(step[:size]) <= 1e-14 * np.abs(v)).all() or (exact.all() and placed):
                self.v, self.x, self.slope = v, float(x), float(tangent[size])
                return True
        return False
