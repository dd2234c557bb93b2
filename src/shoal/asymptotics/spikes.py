"""Eigenvalues that the low-rank part of an equivalent detaches from the bulk.

The equivalent is s·(XᵀX + V B Vᵀ) + shift with X = Z + M Jᵀ/√p, where the columns of Z are
centered, and V = [J/√p, F], F made from the deviations of the squared norms from their classes'
means. In units of s it is ZᵀZ + U S Uᵀ with U = [J/√p, ZᵀM, F], and an isolated eigenvalue z is
a zero of det(I + S Γ(z)), Γ = Uᵀ(ZᵀZ − z)^{-1}U, whose limit docs/equivalents.md gives.

Γ increases with z between two parts of the support, and so do the eigenvalues of the symmetric
matrix [[Γ, I], [I, −S]], which is singular exactly at the isolated eigenvalues: their number in
a gap is the number of negative eigenvalues lost across it, so that none is missed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy  # whose parts are imported where they are first used

from shoal.asymptotics.equation import Array
from shoal.asymptotics.law import Law
from shoal.core.exceptions import AccuracyError, ConvergenceError


@dataclass(frozen=True)
class Spike:
    """An isolated eigenvalue.

    Attributes:
        value: Its limit. An eigenvalue of multiplicity two is listed twice.
        alignment: For each class, the squared cosine between the eigenvector and the class's
            indicator; their sum is the part of the eigenvector that is constant on classes.
    """

    value: float
    alignment: tuple[float, ...]


@dataclass(frozen=True)
class Transition:
    """A direction that may detach an eigenvalue at an outer edge of the spectrum.

    Attributes:
        edge: The edge: the lowest or the highest point of bulk and atoms.
        strength: An eigenvalue leaves the edge when this exceeds one. It is linear in the
            low-rank part U S Uᵀ: times 1/strength, that would just reach the transition.
        value: The detached eigenvalue; ``None`` below the transition.
    """

    edge: float
    strength: float
    value: float | None

    @property
    def detached(self) -> bool:
        """Whether there is an isolated eigenvalue."""
        return self.value is not None


@dataclass(frozen=True)
class LowRank:
    """The low-rank part, in units of the slope of XᵀX.

    Column f of F is loadings_af times the deviation of ‖x‖² in class a, plus independent noise.

    Attributes:
        means: M, of shape (p, K).
        images: C_a μ_a, of shape (p, K).
        form: B on [J/√p, F].
        variances: p times the variance of ‖x − E x‖² in each class, 2 T_aa for Gaussians.
        loadings: Factors of the deviations. shape: (K, columns of F)
        noise: p times the variances of the noise, of the same shape.
    """

    means: Array
    images: Array
    form: Array
    variances: Array
    loadings: Array
    noise: Array

    @property
    def matrix(self) -> Array:
        """S on U = [J/√p, ZᵀM, F]."""
        classes = self.means.shape[1]
        size = len(self.form) + classes
        places = np.r_[:classes, 2 * classes : size]  # of J/√p and F
        result = np.zeros((size, size))
        result[np.ix_(places, places)] = self.form
        result[:classes, :classes] += self.means.T @ self.means
        result[:classes, classes : 2 * classes] = np.eye(classes)
        result[classes : 2 * classes, :classes] = np.eye(classes)
        return result


class _Function:
    """Γ with its derivative, and the pencil [[Γ, I], [I, −S]] up to a congruence, at given z.

    U is taken in units in which its columns are of one size, and S in those that undo them.
    """

    def __init__(self, law: Law, part: LowRank) -> None:
        self.law, self.part = law, part
        self.rank = len(part.matrix)
        self._nearby: Array | None = None  # the solution at the last z
        self._forms = law.forms(np.hstack([part.means, part.images]))
        self._gram = part.means.T @ part.means
        # p times the variance of 2 μ_aᵀz_i/√p
        self._mixed = 4 / len(part.means) * (part.means * part.images).sum(0)
        # Far out −z Γ(z) is UᵀU: with columns of U of one size, S and Γ have no units of the data.
        self._units = np.ones(self.rank)
        far = 1e3 * law.scale
        sizes = far * np.diag(self.gamma(-far))
        self._units = np.sqrt(law.scale / np.where(sizes > 0, sizes, law.scale))
        self.matrix = part.matrix / np.outer(self._units, self._units)

    def gamma(self, z: float) -> Array:
        """Γ(z)."""
        u = -1 / self._solution(z)
        return self._value_and_slope(u, np.zeros_like(u))[0]

    def slope(self, z: float) -> Array:
        """Γ'(z)."""
        v = self._solution(z)
        return self._value_and_slope(-1 / v, self.law.slopes(z, v))[1]

    def _solution(self, z: float) -> Array:
        self._nearby = self.law.outside(z, self._nearby)
        return self._nearby

    def _value_and_slope(self, u: Array, slope: Array) -> tuple[Array, Array]:
        """Γ and its derivative along a change of u."""
        law, part = self.law, self.part
        forms, change = self._forms(u, slope)
        load, load_change = (law.class_ratios * v[law.index] for v in (u, slope))  # c_a u_a
        size, classes = part.means.shape
        means, images = slice(0, classes), slice(classes, 2 * classes)
        # the part 2 μ_aᵀz_i/√p of the deviations, with ZᵀM and with itself
        cross = 2 / np.sqrt(size) * forms[means, images]
        cross_change = -2 / np.sqrt(size) * change[means, images]
        both, moved = (
            4 / size * forms[images, images],
            -4 / size * change[images, images],
        )
        product = np.outer(load, load)
        product_change = np.outer(load, load_change) + np.outer(load_change, load)
        value = self._assembled(
            load, self._gram - forms[means, means], cross * load, both * product
        )
        derivative = self._assembled(
            load_change,
            change[means, means],
            cross_change * load + cross * load_change,
            moved * product + both * product_change,
        )
        return value, derivative

    def _assembled(self, load: Array, means: Array, cross: Array, both: Array) -> Array:
        """Γ, or its derivative, from its blocks on classes and means."""
        part, classes = self.part, len(load)
        first, second, last = (
            slice(0, classes),
            slice(classes, 2 * classes),
            slice(2 * classes, None),
        )
        result = np.zeros((self.rank, self.rank))
        result[first, first] = np.diag(load)
        result[second, second] = means
        result[second, last] = cross @ part.loadings
        result[last, second] = result[second, last].T
        deviations = np.diag(load * (part.variances + self._mixed)) - both
        noise = np.diag(load @ part.noise)
        result[last, last] = part.loadings.T @ deviations @ part.loadings + noise
        return result * np.outer(self._units, self._units)

    def pencil(self, z: float) -> tuple[Array, Array]:
        """[[DΓD, D], [D, −S]] and the diagonal of D, which keeps DΓD bounded at an atom."""
        gamma = self.gamma(z)
        balance = 1 / np.sqrt(1 + np.abs(np.diag(gamma)))
        scaled = balance[:, None] * gamma * balance
        outer = np.diag(balance)
        return np.block([[scaled, outer], [outer, -self.matrix]]), balance

    def eigenvalues(self, z: float) -> Array:
        """The pencil's eigenvalues; each that is negative turns positive at an isolated z."""
        return np.asarray(np.linalg.eigvalsh(self.pencil(z)[0]))

    def alignment(self, z: float, branch: int) -> tuple[float, ...]:
        """Squared cosines of the eigenvector of a zero with the classes' indicators."""
        pencil, balance = self.pencil(z)
        gamma, slope = self.gamma(z), self.slope(z)
        y = balance * np.linalg.eigh(pencil)[1][: self.rank, branch]
        classes = len(self.law.index)
        projected = (gamma @ y / self._units)[:classes] ** 2 / self.law.class_ratios
        return tuple(float(value) for value in projected / (y @ slope @ y))


def isolated(law: Law, part: LowRank) -> list[Spike]:
    """All isolated eigenvalues in units of the slope, in increasing order."""
    function = _Function(law, part)
    spikes: list[Spike] = []
    for lower, upper in _gaps(function):
        first, last = function.eigenvalues(lower), function.eigenvalues(upper)
        # within round-off of an edge an eigenvalue is not isolated
        for branch in np.flatnonzero((first < -1e-12) & (last > 1e-12)):
            value = _zero(function, int(branch), lower, upper)
            spikes.append(Spike(value, function.alignment(value, int(branch))))
    return sorted(spikes, key=lambda spike: spike.value)


def transitions(law: Law, part: LowRank, spikes: list[Spike]) -> list[Transition]:
    """The directions that may detach eigenvalues at the two outer edges, strongest first."""
    function = _Function(law, part)
    lowest, highest = _support(law)[0][0], _support(law)[-1][1]
    result = []
    for edge, sign in ((highest, -1), (lowest, 1)):
        beyond = sorted(
            (spike.value for spike in spikes if sign * (edge - spike.value) > 0),
            key=lambda value: -abs(value - edge),
        )
        strengths = _strengths(function, edge, sign)
        _check_number(edge, strengths, len(beyond))
        for index, strength in enumerate(strengths):
            value = beyond[index] if index < len(beyond) else None
            result.append(Transition(edge, float(strength), value))
    return result


def _strengths(function: _Function, edge: float, sign: int) -> Array:
    """The positive eigenvalues of −SΓ at an outer edge, where ±Γ is positive definite."""
    # at an atom Γ is infinite, and whatever is negative detaches
    gamma = function.gamma(edge or -sign * _beside_zero(function.law))
    values, vectors = np.linalg.eigh(sign * gamma)
    root = vectors * np.sqrt(np.maximum(values, 0))
    strengths = np.linalg.eigvalsh(-sign * root.T @ function.matrix @ root)[::-1]
    return strengths[strengths > 1e-9 * max(1.0, float(np.abs(strengths).max(initial=0.0)))]


def _check_number(edge: float, strengths: Array, spikes: int) -> None:
    """Check that as many eigenvalues are beyond an edge as strengths are above one."""
    least, most = (int((strengths > limit).sum()) for limit in (1 + 1e-6, 1 - 1e-6))
    if not least <= spikes <= most:
        raise AccuracyError(
            f"{least} isolated eigenvalues must lie beyond the edge at {edge:.6g} of XᵀX, and "
            f"{spikes} were found: the low-rank part is too large, its strongest direction "
            f"{strengths.max(initial=0.0):.3g} times what detaches an eigenvalue. Are the means "
            "of the classes in proportion to the covariances?"
        )


def _support(law: Law) -> list[tuple[float, float]]:
    parts = [(float(lower), float(upper)) for lower, upper in law.support]
    if law.atom > 0 and not (parts and parts[0][0] == 0):
        parts.insert(0, (0.0, 0.0))
    return parts


def _gaps(function: _Function) -> Iterator[tuple[float, float]]:
    """The intervals of the axis between the parts of the support, with ends that have a Γ."""
    law, parts = function.law, _support(function.law)
    tiny = _beside_zero(law)
    count = function.rank  # of negative eigenvalues of the pencil at ±∞, where Γ = 0
    low, high = parts[0][0] or -tiny, parts[-1][1] or tiny
    far = law.scale
    while (function.eigenvalues(low - far) < 0).sum() != count:
        far = _further(far)
    yield low - far, low
    for (_, left), (right, _) in pairwise(parts):
        yield left or tiny, right
    far = law.scale
    while (function.eigenvalues(high + far) < 0).sum() != count:
        far = _further(far)
    yield high, high + far


def _beside_zero(law: Law) -> float:
    """How near to an atom or a hard edge at zero Γ is evaluated."""
    lowest = law.support[:, 0]
    return 1e-9 * float(min(lowest[lowest > 0], default=law.scale))


def _further(far: float) -> float:
    if far > 1e200:
        raise ConvergenceError("an isolated eigenvalue is too large to be found")
    return 4 * far


def _zero(function: _Function, branch: int, lower: float, upper: float) -> float:
    """The zero of one eigenvalue of the pencil between two points outside the support."""

    def eigenvalue(z: float) -> float:
        return float(function.eigenvalues(z)[branch])

    return float(
        scipy.optimize.brentq(eigenvalue, lower, upper, xtol=1e-13 * abs(upper - lower), rtol=1e-13)
    )
