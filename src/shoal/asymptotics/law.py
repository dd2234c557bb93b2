"""The limiting law of the eigenvalues of XᵀX, for columns of several covariances."""

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations

import numpy as np
import scipy  # whose parts are imported where they are first used
from numpy.typing import NDArray

from shoal.asymptotics.edges import Scan, single_class_edges
from shoal.asymptotics.equation import Equation
from shoal.asymptotics.panels import Bulk, Chart, GapFoundError
from shoal.asymptotics.populations import Array, Commuting, Population, Values, reduced
from shoal.core.checks import items, real_array
from shoal.core.exceptions import AccuracyError

_MASS_TOLERANCE = 1e-7


class _Component:
    """The law of classes that are linked by covariances which are not orthogonal."""

    def __init__(self, population: Population, ratios: Array, dimension: float) -> None:
        self.equation = Equation(population, ratios)
        self.weights = ratios * dimension  # n_a/n
        self._dimension = dimension  # p/n
        missing, hard = _missing_rank(population, ratios)
        self.atom = missing * dimension  # of eigenvalues zero
        self.bulks: list[Bulk] = []
        self.edges, self.edge_solutions = np.empty(0), np.empty((0, len(ratios)))
        if population.norm > 0:
            self._find(hard)

    def _find(self, hard: bool) -> None:
        population, ratios = self.equation.population, self.equation.ratios
        if isinstance(population, Commuting) and len(ratios) == 1:
            self.edges, solutions = single_class_edges(population, float(ratios[0]))
            self.edge_solutions = solutions[:, None]
            self.bulks = [self._bulk(*pair) for pair in self.edges.reshape(-1, 2)]
        else:
            points = 400 if population.batched else 40
            scan = Scan(self.equation, points=points, atom=self.atom / self._dimension)
            known: dict[tuple[float, float], Bulk] = {}  # a gap that is found changes one of them
            for _ in range(200):
                self.edges, self.edge_solutions = scan.edges(hard)
                try:
                    for lower, upper in self.edges.reshape(-1, 2).tolist():
                        if (lower, upper) not in known:
                            known[lower, upper] = self._bulk(lower, upper)
                    self.bulks = [known[lower, upper] for lower, upper in self.edges.reshape(-1, 2)]
                    break
                except GapFoundError as gap:
                    scan.include(gap.x)
            else:
                raise AccuracyError("the gaps of the support could not all be found")
        self._certify()

    def _bulk(self, lower: float, upper: float) -> Bulk:
        return Bulk(self.equation, self.weights, Chart(float(lower), float(upper)))

    def _certify(self) -> None:
        """Compare the quadrature of each bulk with the mass that its two edges say it has."""
        below = np.array(
            [
                self.below(v) if x > 0 else self.atom
                for x, v in zip(self.edges, self.edge_solutions, strict=True)
            ]
        )
        outer = [self.atom, *below[1:-1], float(self.weights.sum())]
        if np.abs(np.subtract(outer, below)).max(initial=0.0) > _MASS_TOLERANCE:
            raise AccuracyError(f"the outer edges leave out spectrum: masses {below} below edges")
        for index, bulk in enumerate(self.bulks):
            expected = below[2 * index + 1] - below[2 * index]
            if abs(bulk.mass - expected) > _MASS_TOLERANCE:
                lower, upper = bulk.chart
                raise AccuracyError(
                    f"the bulk from {lower:.6g} to {upper:.6g} must have mass {expected:.9f}, "
                    f"its density has {bulk.mass:.9f}"
                )

    def below(self, v: Array) -> float:
        """The mass below a point outside the support, from the signs at its solution.

        It is what the argument of the limit of det(XᵀX − z) counts: columns with u_a < 0, less
        the directions in which I + Σ_b c_b u_b C_b is negative.
        """
        negative = self.equation.population.negative(-self.equation.ratios / v)
        return float(self.weights[v > 0].sum() - self._dimension * negative)


class Law:
    """The limit of the spectrum of XᵀX, X of n_a columns N(0, C_a/p) for each class a.

    Args:
        covariances: One per class: the eigenvalues or diagonal, of shape (p,), of matrices
            that are all diagonal in one basis, or dense symmetric matrices of shape (p, p).
        counts: The n_a; they need not be whole.

    Raises:
        AccuracyError: The mass of some part of the limit did not come out right to 1e-7.
        ConvergenceError: Its equation was not solved somewhere.
    """

    def __init__(self, covariances: Sequence[Array], counts: Array) -> None:
        covariances, counts = _checked(covariances, counts)
        size = len(covariances[0])
        distinct, self.index = _distinct(covariances)
        self.population = reduced(distinct)
        self.ratios = np.bincount(self.index, counts) / size  # of distinct covariances
        self.class_ratios = counts / size
        dimension = size / float(counts.sum())
        links = self.population.products > 1e-14 * self.population.norm**2
        number, labels = scipy.sparse.csgraph.connected_components(links, directed=False)
        self._members = [np.flatnonzero(labels == label) for label in range(number)]
        self.components = [
            _Component(
                self.population.select(tuple(members)) if number > 1 else self.population,
                self.ratios[members],
                dimension,
            )
            for members in self._members
        ]

    @property
    def atom(self) -> float:
        """The share of eigenvalues zero."""
        return sum(component.atom for component in self.components)

    @property
    def scale(self) -> float:
        """A positive number that the support does not reach."""
        return max(component.equation.bound for component in self.components) or 1.0

    @cached_property
    def support(self) -> Array:
        """The intervals of the support, of shape (bulks, 2), the eigenvalues zero left out."""
        pairs = sorted(tuple(b.chart) for c in self.components for b in c.bulks)
        merged: list[list[float]] = []
        for lower, upper in pairs:
            if merged and lower <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], upper)
            else:
                merged.append([lower, upper])
        return np.array(merged).reshape(-1, 2)

    def density(self, x: Array) -> Array:
        """The density of the eigenvalues that are not atoms."""
        result = np.zeros_like(x)
        for component in self.components:
            for bulk in component.bulks:
                chosen = (x >= bulk.chart.lower) & (x <= bulk.chart.upper)
                result[chosen] += bulk.density(x[chosen])
        return result

    def cdf(self, x: Array) -> Array:
        """The share of eigenvalues up to x."""
        result = np.where(x >= 0, self.atom, 0.0)
        for component in self.components:
            for bulk in component.bulks:
                chosen = (x > bulk.chart.lower) & (x < bulk.chart.upper)
                result[chosen] += bulk.cdf(x[chosen])
                result[x >= bulk.chart.upper] += bulk.mass
        return result

    def quantile(self, level: Array) -> Array:
        """The least x with cdf(x) ≥ level, by bisection in the intervals of the support."""
        starts = self.cdf(self.support[:, 0]) if len(self.support) else np.empty(0)
        index = np.searchsorted(starts, level, "left") - 1
        if self.atom == 0:  # of level zero, the lowest edge
            index = np.maximum(index, 0)
        result = np.zeros_like(level)
        within = index >= 0
        lower, upper = self.support[index[within]].T if within.any() else (level[:0], level[:0])
        wanted = level[within]
        chart_lower, chart_upper = lower.copy(), upper.copy()
        angles = np.stack([np.zeros_like(lower), np.full_like(lower, np.pi)])
        for _ in range(60):
            middle = angles.mean(0)
            point = chart_lower + (chart_upper - chart_lower) * np.sin(middle / 2) ** 2
            high = self.cdf(point) >= wanted
            angles = np.where(high, [angles[0], middle], [middle, angles[1]])
        result[within] = chart_lower + (chart_upper - chart_lower) * np.sin(angles[1] / 2) ** 2
        return result

    def stieltjes(self, z: Values) -> Values:
        """The limit of (1/n) tr (XᵀX − z)^{-1} off the real axis."""
        upper = np.where(z.imag < 0, z.conj(), z)
        total = np.zeros(z.shape, complex)
        for component in self.components:
            total += (-1 / component.equation.above(upper)) @ component.weights
        return np.where(z.imag < 0, total.conj(), total)

    def outside(self, x: float, guess: Sequence[Array] | None = None) -> list[Array]:
        """The v of each component at a real x off the support, ``guess`` being those nearby."""
        result = []
        for index, component in enumerate(self.components):
            v = component.edge_solutions[component.edges == x]
            if not len(v):
                start = None if guess is None else guess[index][None]
                points = component.equation.on_axis(np.array([x]), start)
                if points.inside[0]:
                    raise ValueError(f"x must lie outside the support, got {x:g}")
                v = points.v.real
            result.append(v[0])
        return result

    def diagonals(self, solutions: Sequence[Array]) -> Array:
        """The u of distinct covariances from the components' solutions."""
        result = np.empty(len(self.ratios))
        for members, v in zip(self._members, solutions, strict=True):
            result[members] = -1 / v
        return result

    def slopes(self, x: float, solutions: Sequence[Array]) -> Array:
        """The derivatives of the u at a real x outside the support and off its edges."""
        result = np.empty(len(self.ratios))
        for members, component, v in zip(self._members, self.components, solutions, strict=True):
            _, jacobian, _ = component.equation.residual(v[None], np.array([x]))
            result[members] = np.linalg.solve(jacobian[0], np.ones(len(members))) / v**2
        return result


def _missing_rank(population: Population, ratios: Array) -> tuple[float, bool]:
    """How far columns exceed the rank of X, over p; and whether 0 is a hard edge.

    Generic columns in subspaces have the rank min over sets S of classes of
    Σ_{a∉S} n_a + dim Σ_{a∈S} range C_a (Rado's theorem). The edge is hard at a tie.
    """
    classes = range(len(ratios))
    total = float(ratios.sum())
    whole = population.rank(tuple(classes))
    # where all ranges are the same, no other sets than none and all have the least
    common = all(population.rank((a,)) == whole for a in classes)
    sizes = {0, len(ratios)} if common else range(len(ratios) + 1)
    ranks = sorted(
        total - float(ratios[list(chosen)].sum()) + (population.rank(chosen) if chosen else 0.0)
        for size in sizes
        for chosen in combinations(classes, size)
    )
    hard = len(ranks) > 1 and ranks[1] - ranks[0] < 1e-12 * total
    missing = total - ranks[0]
    return (missing if missing > 1e-12 * total else 0.0), hard


def _checked(covariances: Sequence[Array], counts: Array) -> tuple[list[Array], Array]:
    """The arguments of a law, or what is wrong with them."""
    arrays = [real_array("covariances", one) for one in items("covariances", covariances)]
    shapes = {array.shape for array in arrays}
    sizes = {shape[0] for shape in shapes if shape and len(set(shape)) == 1 and len(shape) <= 2}
    if len(sizes) != 1 or 0 in sizes or not all(s and set(s) == sizes for s in shapes):
        raise ValueError(f"covariances must have shapes (p,) or (p, p), got {sorted(shapes)}")
    for array in arrays:
        if not np.isfinite(array).all():
            raise ValueError("covariances must be finite, got NaN or infinity among their entries")
        lowest = float((array if array.ndim == 1 else _eigenvalues(array)).min())
        if lowest < -1e-10 * np.abs(array).max():
            raise ValueError(f"covariances must be semidefinite, got the eigenvalue {lowest:.3g}")
    numbers = real_array("counts", counts)
    if numbers.shape != (len(arrays),) or not ((numbers > 0) & np.isfinite(numbers)).all():
        raise ValueError(
            f"counts must be one positive number for each of {len(arrays)} covariances, "
            f"got {numbers.tolist()}"
        )
    return [np.maximum(array, 0) if array.ndim == 1 else array for array in arrays], numbers


def _eigenvalues(matrix: Array) -> Array:
    asymmetry = float(np.abs(matrix - matrix.T).max())
    if asymmetry > 1e-10 * np.abs(matrix).max():
        raise ValueError(f"covariances must be symmetric, got entries that differ by {asymmetry:g}")
    return np.asarray(np.linalg.eigvalsh(matrix))


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
