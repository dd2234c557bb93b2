"""Matrices that are easy to invert: diagonal ones, and multiples of one plus a low rank."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shoal.numerics.operator import Operator

_NUMBERS = 2**27  # of columns that are converted together


@dataclass(frozen=True, eq=False, repr=False)
class DiagonalOperator(Operator):
    """A diagonal matrix.

    Attributes:
        values: The diagonal. shape: (n,)
    """

    values: Tensor

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return torch.Size((len(self.values), len(self.values)))

    @property
    def _entries(self) -> Tensor:
        return self.values

    def _product(self, vectors: Tensor) -> Tensor:
        return vectors * self.values[:, None]

    def solve(self, vectors: Tensor) -> Tensor:
        """The inverse times columns."""
        return vectors / self.values[:, None]


@dataclass(frozen=True, eq=False, repr=False)
class LowRankPlusIdentity(Operator):
    r"""$s (FF^T + \rho I)$ for columns $F$ of any kind, which may be kept in half precision.

    Whatever the columns are rounded to, this is a matrix of the same kind, and its inverse is
    exact: by Woodbury's identity $v - F (F^T F + \rho I)^{-1} F^T v$ over $s\rho$, summed in
    float64.

    Attributes:
        columns: $F$, in any floating-point dtype. shape: (n, r)
        gram: $F^T F$ of the columns as they are rounded, in float64. shape: (r, r)
        outside: $\rho > 0$.
        scale: $s > 0$.
    """

    columns: Tensor
    gram: Tensor
    outside: float
    scale: float = 1.0

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return torch.Size((len(self.columns), len(self.columns)))

    @property
    def _entries(self) -> Tensor:
        return self.gram

    @cached_property
    def _factor(self) -> Tensor:
        inside = self.gram.clone()
        inside.diagonal().add_(self.outside)
        factor: Tensor = torch.linalg.cholesky(inside)
        return factor

    def solve(self, vectors: Tensor) -> Tensor:
        """The inverse times columns."""
        inside = torch.cholesky_solve(self._projected(vectors), self._factor)
        return self._combined(vectors, -inside).div_(self.scale * self.outside)

    def _product(self, vectors: Tensor) -> Tensor:
        return self._combined(self.outside * vectors, self._projected(vectors)).mul_(self.scale)

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows of the columns in float64, and their places."""
        step = max(1, _NUMBERS // max(1, self.columns.shape[1]))
        for start in range(0, len(self.columns), step):
            rows = slice(start, start + step)
            yield rows, self.columns[rows].double()

    def _projected(self, vectors: Tensor) -> Tensor:
        result = vectors.new_zeros(self.columns.shape[1], vectors.shape[1])
        for rows, part in self._parts():
            result += part.T @ vectors[rows]
        return result

    def _combined(self, vectors: Tensor, inside: Tensor) -> Tensor:
        result = torch.empty_like(vectors)
        for rows, part in self._parts():
            result[rows] = vectors[rows] + part @ inside
        return result
