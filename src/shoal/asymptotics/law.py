"""The limiting law of the eigenvalues of XᵀX, for columns of several covariances."""

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.asymptotics.edges import scanned_edges, single_class_edges
from shoal.asymptotics.equation import Array, Equation, Values
from shoal.core.checks import items, real_array

_EPS = float(np.finfo(float).eps)
_TABLE = 97  # points of a bulk from which solutions nearby start


class Law:
    """The limit of the spectrum of XᵀX, X of n_a columns N(0, C_a/p) for each class a.

    Args:
        covariances: One per class: the eigenvalues or diagonal, of shape (p,), of matrices that are
            all diagonal in one basis, or symmetric matrices of shape (p, p) with common
            eigenvectors.
        counts: The n_a; they need not be whole.

    Attributes:
        index: For each class, the place of its covariance among the distinct ones.
        ratios: n_a/p of the distinct covariances; ``class_ratios`` has one for each class.
        atom: The share of eigenvalues zero.
        edges: The edges of the support in increasing order; a bulk lies between each two. A first
            edge of exactly 0 is a hard one, at which the density is infinite.

    Raises:
        ConvergenceError: The equation was not solved somewhere.
    """

    def __init__(self, covariances: Sequence[Array], counts: Array) -> None:
        covariances, counts = _checked(covariances, counts)
        size = len(covariances[0])
        distinct, self.index = _distinct(covariances)
        rows, self._basis = _common_eigenvalues(distinct)
        values, self._groups, number = np.unique(
            rows, axis=0, return_inverse=True, return_counts=True
        )
        self._groups = self._groups.reshape(-1)
        self.ratios = np.bincount(self.index, counts) / size
        self.class_ratios = counts / size
        self.equation = Equation(values, number / size, self.ratios)
        _check_overlap(values)
        self._dimension = size / float(counts.sum())  # p/n
        missing, hard = _missing_rank(values, number / size, self.ratios)
        self.atom = missing * self._dimension
        self.scale = self.equation.bound or 1.0  # the support does not reach it
        if not self.equation.bound:
            self.edges, self.edge_solutions = np.empty(0), np.empty((0, len(self.ratios)))
        elif len(distinct) == 1:
            self.edges, solutions = single_class_edges(self.equation)
            self.edge_solutions = solutions[:, None]
        else:
            self.edges, self.edge_solutions = scanned_edges(self.equation, missing, hard=hard)

    @property
    def support(self) -> Array:
        """The intervals of the support, of shape (bulks, 2), the eigenvalues zero left out."""
        return self.edges.reshape(-1, 2)

    @cached_property
    def cumulated(self) -> Array:
        """The share of eigenvalues up to each of the edges, counted by signs."""
        below = [self.atom]
        for upper, lower in zip(self.edges[1:-1:2], self.edges[2::2], strict=True):
            middle = np.array([(upper + lower) / 2])
            points = self.equation.on_axis(middle)
            below += [float(self.equation.mass_below(points.v, middle)[0]) * self._dimension] * 2
        return np.array([*below, 1.0])[: len(self.edges)]

    def density(self, x: Array) -> Array:
        """The density of the eigenvalues that are not atoms."""
        result = np.zeros_like(x)
        within = self._bulk(x) >= 0
        v = self._solutions(x[within])
        result[within] = (-1 / v).imag @ self.ratios * self._dimension / np.pi
        if len(self.edges) and self.edges[0] == 0:
            result[x == 0] = np.inf
        return result

    def cdf(self, x: Array) -> Array:
        """The share of eigenvalues up to x."""
        result = np.where(x >= 0, self.atom, 0.0)
        place = np.searchsorted(self.edges, x, "right")
        passed = place > 0
        result[passed] = self.cumulated[place[passed] - 1]
        within = self._bulk(x) >= 0
        below = self.equation.mass_below(self._solutions(x[within]), x[within])
        result[within] = below * self._dimension
        return result

    def quantile(self, level: Array) -> Array:
        """The least x with cdf(x) ≥ level, by safeguarded Newton steps in each bulk."""
        result = np.zeros_like(level)
        starts = self.cumulated[::2]
        bulk = np.searchsorted(starts, level, "left") - 1
        if self.atom == 0:  # at level zero, the lowest edge
            bulk = np.maximum(bulk, 0)
        for index, (lower, upper) in enumerate(self.support.tolist()):
            chosen = bulk == index
            if chosen.any():
                result[chosen] = self._inverse(level[chosen], index, _Chart(lower, upper))
        return result

    def _inverse(self, level: Array, index: int, chart: "_Chart") -> Array:
        """Where the distribution has these levels in a bulk."""
        grid, table = self._table[index]
        shares = self.equation.mass_below(table, chart.point(grid)) * self._dimension
        shares[0], shares[-1] = self.cumulated[2 * index : 2 * index + 2]
        shares = np.maximum.accumulate(shares)
        angle = np.interp(level, shares, grid)
        place = np.clip(np.searchsorted(shares, level, "left"), 1, len(grid) - 1)
        low, high = grid[place - 1], grid[place]
        for _ in range(30):
            x = chart.point(angle)
            v = self._solutions(x)
            excess = self.equation.mass_below(v, x) * self._dimension - level
            slope = (-1 / v).imag @ self.ratios * self._dimension / np.pi * chart.speed(angle)
            low, high = np.where(excess < 0, angle, low), np.where(excess < 0, high, angle)
            with np.errstate(all="ignore"):
                step = angle - excess / slope
            following = np.where((step > low) & (step < high), step, (low + high) / 2)
            if (np.abs(following - angle) < 1e-14).all() or (np.abs(excess) < 4 * _EPS).all():
                break
            angle = following
        return chart.point(np.where(level <= shares[0], 0.0, angle))

    def stieltjes(self, z: Values) -> Values:
        """The limit of (1/n) tr (XᵀX − z)^{-1} off the real axis."""
        upper = np.where(z.imag < 0, z.conj(), z)
        if not self.equation.bound:
            return -1 / z
        total = (-1 / self.equation.solve_upper(upper)) @ self.ratios * self._dimension
        return np.where(z.imag < 0, total.conj(), total)

    def outside(self, x: float, guess: Array | None = None) -> Array:
        """The v at a real x off the support, ``guess`` being those nearby."""
        if (self.edges == x).any():
            return np.asarray(self.edge_solutions[self.edges == x][0])
        if not self.equation.bound:
            return np.full(len(self.ratios), x)
        start = None if guess is None else guess[None]
        points = self.equation.on_axis(np.array([x]), start)
        if points.inside[0]:
            raise ValueError(f"x must lie outside the support, got {x:g}")
        return np.asarray(points.v.real[0])

    def slopes(self, x: float, v: Array) -> Array:
        """The derivatives of the u at a real x outside the support and off its edges."""
        _, jacobian, _ = self.equation.residual(v[None], np.array([x]))
        return np.asarray(np.linalg.solve(jacobian[0], np.ones(len(v))) / v**2)

    def forms(self, vectors: Array) -> Any:
        """For columns M: u, u' ↦ MᵀRM and MᵀR(Σ_b c_b u'_b C_b)RM."""
        rotated = vectors if self._basis is None else self._basis.T @ vectors
        size, values = vectors.shape[1], self.equation.values
        grams = np.zeros((len(values), size, size))
        np.add.at(grams, self._groups, rotated[:, :, None] * rotated[:, None, :])

        def evaluate(u: Array, slope: Array) -> tuple[Array, Array]:
            inverse = 1 / (1 + values @ (self.ratios * u))
            change = inverse**2 * (values @ (self.ratios * slope))
            return np.tensordot(inverse, grams, 1), np.tensordot(change, grams, 1)

        return evaluate

    def _bulk(self, x: Array) -> NDArray[np.intp]:
        """The place of the bulk that each x lies strictly inside of, or -1."""
        if not len(self.edges):
            return np.full(len(x), -1)
        place = np.searchsorted(self.edges, x, "left")
        within = (place % 2 == 1) & (x < self.edges[np.minimum(place, len(self.edges) - 1)])
        return np.where(within, place // 2, -1)

    @cached_property
    def _table(self) -> list[tuple[Array, Values]]:
        """Angles of each bulk, and the solutions there."""
        tables = []
        for lower, upper in self.support.tolist():
            grid = np.linspace(0, np.pi, _TABLE)
            inner = self.equation.on_axis(_Chart(lower, upper).point(grid[1:-1])).v
            tables.append((grid, np.concatenate([inner[:1], inner, inner[-1:]])))
        return tables

    def _solutions(self, x: Array) -> Values:
        """The solutions at points inside of bulks."""
        bulk = self._bulk(x)
        v = np.empty((len(x), len(self.ratios)), complex)
        for index in np.unique(bulk[bulk >= 0]):
            chosen = bulk == index
            grid, table = self._table[index]
            angle = _Chart(*self.support[index]).angle(x[chosen])
            guess = np.stack([np.interp(angle, grid, column) for column in table.T], 1)
            v[chosen] = self.equation.on_axis(x[chosen], guess).v
        outside = bulk < 0
        if outside.any():
            v[outside] = self.equation.on_axis(x[outside]).v
        return v


class _Chart(NamedTuple):
    """The interval between two edges as angles 0 to π, which turns the square roots smooth."""

    lower: float
    upper: float

    def point(self, angle: Array) -> Array:
        """The x of an angle."""
        return np.asarray(self.lower + (self.upper - self.lower) * np.sin(angle / 2) ** 2)

    def angle(self, x: Array) -> Array:
        """The angle of an x."""
        part = (x - self.lower) / (self.upper - self.lower)
        return np.asarray(2 * np.arcsin(np.sqrt(np.clip(part, 0, 1))))

    def speed(self, angle: Array) -> Array:
        """dx/dangle."""
        return np.asarray((self.upper - self.lower) * np.sin(angle) / 2)


def _missing_rank(values: Array, shares: Array, ratios: Array) -> tuple[float, bool]:
    """How far columns exceed the rank of X, over p; and whether 0 is a hard edge.

    Generic columns in subspaces have the rank min over sets S of classes of
    Σ_{a∉S} n_a + dim Σ_{a∈S} range C_a (Rado's theorem). The edge is hard at a tie.
    """
    classes = range(len(ratios))
    positive = values > 0
    whole = float(shares[positive.any(1)].sum())
    # where all ranges are the same, no other sets than none and all have the least
    common = all(abs(shares[positive[:, a]].sum() - whole) < 1e-14 for a in classes)
    sizes = {0, len(ratios)} if common else range(len(ratios) + 1)
    excess = sorted(
        float(ratios[list(chosen)].sum() - shares[positive[:, list(chosen)].any(1)].sum())
        for size in sizes
        for chosen in combinations(classes, size)
    )
    total = float(ratios.sum())
    hard = len(excess) > 1 and excess[-1] - excess[-2] < 1e-12 * total
    return (excess[-1] if excess[-1] > 1e-12 * total else 0.0), hard


def _check_overlap(values: Array) -> None:
    """Refuse covariances whose equations fall apart."""
    reached = values[:, 0] > 0
    for _ in range(values.shape[1]):  # the directions that the first class reaches through others
        reached |= (values[:, (values[reached] > 0).any(0)] > 0).any(1)
    if values.any() and not ((values[reached] > 0).any(0)).all():
        raise ValueError(
            "covariances must overlap: some are zero, or orthogonal to those of all other classes"
        )


def _checked(covariances: Sequence[Array], counts: Array) -> tuple[list[Array], Array]:
    """The arguments of a law as arrays, or an error that names the fault."""
    arrays = [real_array("covariances", one) for one in items("covariances", covariances)]
    shapes = {array.shape for array in arrays}
    sizes = {shape[0] for shape in shapes if shape and len(set(shape)) == 1 and len(shape) <= 2}
    if len(sizes) != 1 or 0 in sizes or not all(s and set(s) == sizes for s in shapes):
        raise ValueError(f"covariances must have shapes (p,) or (p, p), got {sorted(shapes)}")
    for array in arrays:
        if not np.isfinite(array).all():
            raise ValueError("covariances must be finite, got NaN or infinity among their entries")
        if array.ndim == 2 and np.abs(array - array.T).max() > 1e-10 * np.abs(array).max():
            raise ValueError("covariances must be symmetric")
    numbers = real_array("counts", counts)
    if numbers.shape != (len(arrays),) or not ((numbers > 0) & np.isfinite(numbers)).all():
        raise ValueError(
            f"counts must be one positive number for each of {len(arrays)} covariances, "
            f"got {numbers.tolist()}"
        )
    return arrays, numbers


def _distinct(covariances: Sequence[Array]) -> tuple[list[Array], NDArray[np.intp]]:
    """The covariances that differ, and for each class which of them it has."""
    distinct: list[Array] = []
    index = []
    for covariance in covariances:
        same = [k for k, other in enumerate(distinct) if np.array_equal(other, covariance)]
        if not same:
            distinct.append(covariance)
        index.append(same[0] if same else len(distinct) - 1)
    return distinct, np.array(index)


def _common_eigenvalues(covariances: Sequence[Array]) -> tuple[Array, Array | None]:
    """The tuples of eigenvalues in the directions of one basis; ``None``: the coordinates."""
    basis = None
    if all(covariance.ndim == 1 for covariance in covariances):
        values = np.stack(covariances)
    else:
        matrices = np.stack([c if c.ndim == 2 else np.diag(c) for c in covariances])
        # a random combination has an eigenvalue twice only where all of the covariances have
        mixing = np.random.default_rng(0).uniform(1, 2, len(matrices))
        scales = np.maximum(np.abs(matrices).max(axis=(1, 2)), np.finfo(float).tiny)
        basis = np.linalg.eigh(np.tensordot(mixing / scales, matrices, 1))[1]
        rotated = basis.T @ matrices @ basis
        values = np.diagonal(rotated, axis1=1, axis2=2).copy()
        remainder = np.linalg.norm(rotated - values[:, :, None] * np.eye(len(basis)), axis=(1, 2))
        if np.any(remainder > 1e-11 * np.linalg.norm(rotated, axis=(1, 2))):
            raise ValueError(
                "covariances must have common eigenvectors: take one covariance for all classes, "
                "or diagonal ones"
            )
        for row in values:
            row[np.abs(row) < len(row) * _EPS * np.abs(row).max(initial=0.0)] = 0
            scale = row.max(initial=0.0) or 1.0
            np.copyto(row, np.round(row / scale, 12) * scale)  # one value per eigenspace
    for row in values:
        if row.min() < -1e-10 * np.abs(row).max():
            raise ValueError(
                f"covariances must be semidefinite, got the eigenvalue {row.min():.3g}"
            )
    return np.maximum(values, 0).T, basis
