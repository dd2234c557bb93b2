"""Covariances, reduced to what the limiting spectrum depends on.

The limit sees the covariances C_1, …, C_K only through normalized traces of products with
(I + Σ_b y_b C_b)^{-1}. Where they commute, these are sums over their common eigenvalues.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Values = NDArray[Any]  # real or complex
Forms = Callable[[Array, Array], tuple[Array, Array]]


class Population(Protocol):
    """K covariances of one dimension p. A load is y in I + Σ_b y_b C_b, of shape (..., K)."""

    @property
    def traces(self) -> Array:
        """(1/p) tr C_a."""

    @property
    def products(self) -> Array:
        """(1/p) tr C_a C_b."""

    @property
    def norm(self) -> float:
        """The largest eigenvalue of all."""

    @property
    def batched(self) -> bool:
        """Whether many loads together cost little more than one."""

    def resolvent(self, loads: Values) -> tuple[Values, Values]:
        """(1/p) tr C_a R and (1/p) tr C_a R C_b R with R = (I + Σ_b y_b C_b)^{-1}."""

    def negative(self, load: Array) -> float:
        """The share of negative eigenvalues of I + Σ_b y_b C_b."""

    def rank(self, classes: Sequence[int]) -> float:
        """The dimension, in units of p, that the ranges of these covariances span together."""

    def forms(self, vectors: Array) -> Forms:
        """For columns M: y, y' ↦ MᵀRM and MᵀR(Σ_b y'_b C_b)RM."""

    def select(self, classes: Sequence[int]) -> "Population":
        """These covariances alone."""


class Commuting:
    """Covariances with common eigenvectors: distinct K-tuples of eigenvalues, and their shares."""

    batched = True

    def __init__(
        self,
        values: Array,
        shares: Array,
        groups: NDArray[np.intp],
        basis: Array | None = None,
    ) -> None:
        self.values = values  # (tuples, K)
        self.shares = shares  # (tuples,), with sum one
        self._groups = groups  # of each of the p directions, its tuple
        self._basis = basis  # columns: the common eigenvectors; None: the coordinates
        count, classes = values.shape
        self._first = shares[:, None] * values
        pairs = self._first[:, :, None] * values[:, None, :]
        self._second = pairs.reshape(count, classes**2)
        self.traces = self._first.sum(0)
        self.products = pairs.sum(0)
        self.norm = float(values.max(initial=0.0))

    def resolvent(self, loads: Values) -> tuple[Values, Values]:
        """See `Population.resolvent`."""
        inverse = 1 / (1 + loads @ self.values.T)
        classes = self.values.shape[1]
        second = (inverse * inverse) @ self._second
        return inverse @ self._first, second.reshape(*loads.shape[:-1], classes, classes)

    def negative(self, load: Array) -> float:
        """See `Population.negative`."""
        return float(self.shares[1 + self.values @ load < 0].sum())

    def rank(self, classes: Sequence[int]) -> float:
        """See `Population.rank`."""
        return float(self.shares[(self.values[:, list(classes)] > 0).any(1)].sum())

    def forms(self, vectors: Array) -> Forms:
        """See `Population.forms`."""
        rotated = vectors if self._basis is None else self._basis.T @ vectors
        size = vectors.shape[1]
        grams = np.zeros((len(self.shares), size, size))
        np.add.at(grams, self._groups, rotated[:, :, None] * rotated[:, None, :])

        def evaluate(load: Array, slope: Array) -> tuple[Array, Array]:
            inverse = 1 / (1 + self.values @ load)
            change = inverse**2 * (self.values @ slope)
            return np.tensordot(inverse, grams, 1), np.tensordot(change, grams, 1)

        return evaluate

    def select(self, classes: Sequence[int]) -> "Commuting":
        """See `Population.select`."""
        rows = self.values[self._groups][:, list(classes)]
        return _grouped(rows, self._basis)


class Dense:
    """Covariances without common eigenvectors: every load costs an r×r inverse, K products.

    They are seen in the r dimensions that their ranges span. In the others the resolvent is one,
    where large loads would leave nothing of it but round-off.
    """

    batched = False

    def __init__(self, matrices: Array) -> None:
        values, vectors = np.linalg.eigh(matrices.sum(0))
        self._size = matrices.shape[-1]
        self._basis = vectors[:, values > _round_off(values)]
        self._given = matrices
        matrices = self._basis.T @ matrices @ self._basis
        self.matrices = (matrices + matrices.transpose(0, 2, 1)) / 2  # (K, r, r)
        self.traces = np.trace(matrices, axis1=1, axis2=2) / self._size
        flat = self.matrices.reshape(len(matrices), -1)
        self.products = flat @ flat.T / self._size
        self.norm = max(float(np.linalg.eigvalsh(matrix)[-1]) for matrix in matrices)

    def _sum(self, load: Values) -> Values:
        total: Values = np.tensordot(load, self.matrices, 1)
        total[np.diag_indices(len(total))] += 1
        return total

    def resolvent(self, loads: Values) -> tuple[Values, Values]:
        """See `Population.resolvent`."""
        classes = len(self.matrices)
        first = np.empty(loads.shape, loads.dtype)
        second = np.empty((*loads.shape, classes), loads.dtype)
        for index, load in enumerate(loads):
            try:
                inverse = np.linalg.inv(self._sum(load))
            except np.linalg.LinAlgError:
                first[index], second[index] = np.nan, np.nan
                continue
            parts = [inverse @ matrix for matrix in self.matrices]
            first[index] = [np.trace(part) for part in parts]
            for a in range(classes):
                for b in range(a, classes):
                    second[index, a, b] = second[index, b, a] = np.vdot(parts[a].conj(), parts[b].T)
        return first / self._size, second / self._size

    def negative(self, load: Array) -> float:
        """See `Population.negative`."""
        return float(np.sum(np.linalg.eigvalsh(self._sum(load)) < 0) / self._size)

    def rank(self, classes: Sequence[int]) -> float:
        """See `Population.rank`."""
        eigenvalues = np.linalg.eigvalsh(self.matrices[list(classes)].sum(0))
        return float(np.sum(eigenvalues > _round_off(eigenvalues)) / self._size)

    def forms(self, vectors: Array) -> Forms:
        """See `Population.forms`."""
        seen = self._basis.T @ vectors
        unseen = vectors - self._basis @ seen
        others = unseen.T @ unseen

        def evaluate(load: Array, slope: Array) -> tuple[Array, Array]:
            solved = np.linalg.solve(self._sum(load), seen)
            change = np.tensordot(slope, self.matrices, 1)
            return others + seen.T @ solved, solved.T @ change @ solved

        return evaluate

    def select(self, classes: Sequence[int]) -> Population:
        """See `Population.select`."""
        return reduced(list(self._given[list(classes)]))


def reduced(covariances: Sequence[Array]) -> Population:
    """Covariances, diagonal (p,) or dense (p, p), as a population: commuting if they do."""
    if all(covariance.ndim == 1 for covariance in covariances):
        return _grouped(np.stack(covariances, 1), None)
    matrices = np.stack([c if c.ndim == 2 else np.diag(c) for c in covariances])
    # a random combination has an eigenvalue twice only where all of the covariances have
    mixing = np.random.default_rng(0).uniform(1, 2, len(matrices))
    scales = np.maximum(np.abs(matrices).max(axis=(1, 2)), np.finfo(float).tiny)
    basis = np.linalg.eigh(np.tensordot(mixing / scales, matrices, 1))[1]
    rotated = basis.T @ matrices @ basis
    diagonal = np.diagonal(rotated, axis1=1, axis2=2).copy()
    remainder = np.linalg.norm(rotated - diagonal[:, :, None] * np.eye(len(basis)), axis=(1, 2))
    if np.any(remainder > 1e-11 * np.linalg.norm(rotated, axis=(1, 2))):
        return Dense(matrices)
    for values in diagonal:
        values[np.abs(values) < _round_off(values)] = 0
        scale = values.max(initial=0.0) or 1.0
        np.copyto(values, np.round(values / scale, 12) * scale)  # one value per eigenspace
    return _grouped(diagonal.T, basis)


def _grouped(rows: Array, basis: Array | None) -> Commuting:
    values, groups, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    return Commuting(values, counts / len(rows), groups.reshape(-1), basis)


def _round_off(eigenvalues: Array) -> float:
    return float(len(eigenvalues) * np.finfo(float).eps * np.abs(eigenvalues).max(initial=0.0))
