"""Matrices that are easy to invert: diagonal ones, and multiples of one plus a low rank."""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.checks import real, shaped
from shoal.linalg.operator import Operator

__all__ = ["DROPPED", "Diagonal", "LowRank"]

DROPPED = 1e-12  # eigenvalues, relative to the largest, that are rounding


@dataclass(frozen=True, eq=False, repr=False)
class Diagonal(Operator):
    """A diagonal matrix.

    Attributes:
        values: The diagonal. shape: (n,)
    """

    values: Tensor

    def __post_init__(self) -> None:
        shaped("values", self.values, None)

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return torch.Size((len(self.values), len(self.values)))

    @property
    def _entries(self) -> Tensor:
        return self.values

    def diagonal(self) -> Tensor:
        """The diagonal."""
        return self.values

    def _product(self, vectors: Tensor) -> Tensor:
        return vectors * self.values[:, None]

    def solve(self, vectors: Tensor) -> Tensor:
        """The inverse times columns."""
        shaped("vectors", vectors, len(self.values), None)
        return vectors / self.values[:, None]

    def root(self, vectors: Tensor) -> Tensor:
        """The root times columns."""
        shaped("vectors", vectors, len(self.values), None)
        return vectors * self.values.sqrt()[:, None]

    def logdet(self) -> float:
        """The logarithm of the determinant."""
        return float(self.values.log().sum())


@dataclass(frozen=True, eq=False, repr=False)
class LowRank(Operator):
    r"""$U \Theta U^T + \rho (I - U U^T)$, where $U$ has orthonormal columns.

    Attributes:
        vectors: $U$. shape: (n, r)
        values: $\Theta$, positive. shape: (r,)
        outside: $\rho > 0$.
    """

    vectors: Tensor
    values: Tensor
    outside: float

    def __post_init__(self) -> None:
        shaped("vectors", self.vectors, None, None)
        shaped("values", self.values, self.vectors.shape[1])
        real("outside", self.outside, above=0)

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return torch.Size((len(self.vectors), len(self.vectors)))

    @property
    def _entries(self) -> Tensor:
        return self.vectors

    def diagonal(self) -> Tensor:
        """The diagonal."""
        inside = (self.vectors.square() * (self.values - self.outside)).sum(1)
        return inside + self.outside

    @classmethod
    def shifted(cls, vectors: Tensor, values: Tensor, shift: float) -> "LowRank":
        r"""$U \Theta U^T + \rho I$ with $\Theta \geq 0$, and $\rho$ a shift above rounding.

        Without a ridge the shift may be zero: what the columns leave is then not known to be less
        than the rounding of what they hold.
        """
        shaped("values", values, None)
        shift = real("shift", shift, at_least=0)
        largest = float(values.max()) if len(values) else 0.0
        outside = max(shift, DROPPED * largest) or 1.0  # of a matrix of zeros: any
        return cls(vectors, values + outside, outside)

    def solve(self, vectors: Tensor) -> Tensor:
        """The inverse times columns."""
        return self._function(vectors, 1 / self.values, 1 / self.outside)

    def root(self, vectors: Tensor) -> Tensor:
        """The root times columns."""
        return self._function(vectors, self.values.sqrt(), self.outside**0.5)

    def logdet(self) -> float:
        """The logarithm of the determinant."""
        others = len(self.vectors) - len(self.values)
        inside = self.values.log().sum()
        return float(inside + others * self.values.new_tensor(self.outside).log())

    def _product(self, vectors: Tensor) -> Tensor:
        return self._function(vectors, self.values, self.outside)

    def _function(self, vectors: Tensor, inside: Tensor, outside: float) -> Tensor:
        shaped("vectors", vectors, len(self.vectors), None)
        parts = (inside - outside)[:, None] * (self.vectors.T @ vectors)
        return outside * vectors + self.vectors @ parts
