"""Eigenvalues that the low-rank part of an equivalent detaches from the bulk.

The equivalent is s·(XᵀX + V B Vᵀ) + shift with X = Z + M Jᵀ/√p, where the columns of Z are
centered. So in units of s it is ZᵀZ + U S Uᵀ with U = [J/√p, ZᵀM, ψ], and an isolated
eigenvalue z is a zero of det(I + S Γ(z)), Γ = Uᵀ(ZᵀZ − z)^{-1}U. Its limit is block diagonal:
c_a u_a on the classes, Mᵀ(I − (I + Σ_b c_b u_b C_b)^{-1})M on the means, and
Σ_a 2 T_aa c_a u_a on ψ; see docs/spectra.md.

Γ increases with z between two parts of the support. So do the eigenvalues of the symmetric
matrix [[Γ, I], [I, −S]], which is singular exactly at the isolated eigenvalues: each of them
is bracketed, and none is missed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from shoal.exceptions import ConvergenceError
from shoal.spectra.law import Law

__all__ = ["LowRank", "Spike", "Transition", "isolated", "transitions"]

Array = NDArray[np.float64]


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
            low-rank part: multiplied by 1/strength, that would just reach the transition.
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
    """The low-rank part in units of the slope of XᵀX: means, and the form on [J/√p, ψ]."""

    means: Array  # (p, K)
    form: Array  # (K + 1, K + 1): B
    products: Array  # (K,): T_aa

    @property
    def matrix(self) -> Array:
        """S on [J/√p, ZᵀM, ψ]."""
        size = self.means.shape[1]
        result = np.zeros((2 * size + 1, 2 * size + 1))
        result[:size, :size] = self.form[:size, :size] + self.means.T @ self.means
        result[:size, -1] = result[-1, :size] = self.form[:size, size]
        result[-1, -1] = self.form[size, size]
        result[:size, size : 2 * size] = result[size : 2 * size, :size] = np.eye(size)
        return result


class _Function:
    """Γ with its derivative, and the pencil [[Γ, I], [I, −S]], as functions of z."""

    def __init__(self, law: Law, part: LowRank) -> None:
        self.law, self.part = law, part
        self.matrix = part.matrix
        self.rank = len(self.matrix)
        self._forms = law.population.forms(part.means)
        self._gram = part.means.T @ part.means

    def gamma(self, z: float) -> tuple[Array, Array]:
        """Γ(z) and Γ'(z)."""
        law, classes = self.law, self.part.means.shape[1]
        u, slope = law.diagonals(z)
        form, form_slope = self._forms(law.ratios * u, law.ratios * slope)
        results = []
        for diagonal, block in ((u, self._gram - form), (slope, form_slope)):
            own = law.class_ratios * diagonal[law.index]
            result = np.zeros((self.rank, self.rank))
            result[np.arange(classes), np.arange(classes)] = own
            result[classes : 2 * classes, classes : 2 * classes] = block
            result[-1, -1] = 2 * self.part.products @ own
            results.append(result)
        return results[0], results[1]

    def pencil(self, z: float) -> Array:
        """The matrix that is singular at isolated eigenvalues and increases with z."""
        identity = np.eye(self.rank)
        return np.block([[self.gamma(z)[0], identity], [identity, -self.matrix]])

    def eigenvalues(self, z: float) -> Array:
        """The pencil's eigenvalues, increasing with z one by one."""
        return np.linalg.eigvalsh(self.pencil(z))

    def alignment(self, z: float, branch: int) -> tuple[float, ...]:
        """Squared cosines of the eigenvector of a zero with the classes' indicators."""
        gamma, slope = self.gamma(z)
        identity = np.eye(self.rank)
        pencil = np.block([[gamma, identity], [identity, -self.matrix]])
        y = np.linalg.eigh(pencil)[1][: self.rank, branch]
        classes = len(self.law.index)
        projected = (gamma @ y)[:classes] ** 2 / self.law.class_ratios
        return tuple(float(value) for value in projected / (y @ slope @ y))


def isolated(law: Law, part: LowRank) -> list[Spike]:
    """All isolated eigenvalues in units of the slope, in increasing order."""
    function = _Function(law, part)
    found: list[Spike] = []
    for lower, upper in _gaps(function):
        first, last = function.eigenvalues(lower), function.eigenvalues(upper)
        for branch in np.flatnonzero((first < 0) & (last > 0)):
            value = _zero(function, int(branch), lower, upper)
            found.append(Spike(value, function.alignment(value, int(branch))))
    return sorted(found, key=lambda spike: spike.value)


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
        for index, strength in enumerate(_strengths(function, edge, sign)):
            value = beyond[index] if index < len(beyond) else None
            result.append(Transition(edge, float(strength), value))
    return result


def _strengths(function: _Function, edge: float, sign: int) -> Array:
    """The positive eigenvalues of −SΓ at an outer edge, where ±Γ is positive definite."""
    law = function.law
    if edge == 0 and (law.atom > 0 or (law.support[:, 0] == 0).any()):
        # Γ is infinite: whatever is negative detaches
        gamma = function.gamma(-1e-13 * law.scale)[0]
    else:
        gamma = function.gamma(edge)[0]
    values, vectors = np.linalg.eigh(sign * gamma)
    root = vectors * np.sqrt(np.maximum(values, 0))
    strengths = np.linalg.eigvalsh(-sign * root.T @ function.matrix @ root)[::-1]
    return strengths[strengths > 1e-9 * max(1.0, float(np.abs(strengths).max(initial=0.0)))]


def _support(law: Law) -> list[tuple[float, float]]:
    parts = [(float(lower), float(upper)) for lower, upper in law.support]
    if law.atom > 0 and not (parts and parts[0][0] == 0):
        parts.insert(0, (0.0, 0.0))
    return parts


def _gaps(function: _Function) -> Iterator[tuple[float, float]]:
    """The intervals of the axis between the parts of the support, with ends that have a Γ."""
    law, parts = function.law, _support(function.law)
    tiny = 1e-13 * law.scale  # off an atom, or a hard edge, at zero
    count = function.rank  # of negative eigenvalues of the pencil at ±∞, where Γ = 0
    low, high = parts[0][0] or -tiny, parts[-1][1] or tiny
    far = law.scale
    while (function.eigenvalues(low - far) < 0).sum() != count:
        far = _further(far)
    yield low - far, low
    for (_, left), (right, _) in zip(parts, parts[1:], strict=False):
        yield left or tiny, right
    far = law.scale
    while (function.eigenvalues(high + far) < 0).sum() != count:
        far = _further(far)
    yield high, high + far


def _further(far: float) -> float:
    if far > 1e200:
        raise ConvergenceError("an isolated eigenvalue is too large to be found")
    return 4 * far


def _zero(function: _Function, branch: int, lower: float, upper: float) -> float:
    """The zero of one eigenvalue of the pencil between two points outside the support."""

    def eigenvalue(z: float) -> float:
        return float(function.eigenvalues(z)[branch])

    return float(brentq(eigenvalue, lower, upper, xtol=1e-13 * abs(upper - lower), rtol=1e-13))
