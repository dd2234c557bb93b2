"""Matrices that are easy to invert: diagonal ones, and multiples of one plus a low rank."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shoal.core.checks import real, shaped
from shoal.core.processes import ALONE, Processes
from shoal.numerics.operator import Operator

_NUMBERS = 2**27  # of columns that are converted together
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
class Columns(Operator):
    r"""$s (FF^T + \rho I)$ for columns $F$ of any kind, which may be kept in half precision.

    Whatever the columns are rounded to, this is a matrix of the same kind, and its inverse is
    exact: by Woodbury's identity $v - F (F^T F + \rho I)^{-1} F^T v$ over $s\rho$, summed in
    float64. Several processes may share the rows of $F$.

    Attributes:
        columns: $F$, in any floating-point dtype, or this process's rows of it. shape: (n, r)
        gram: $F^T F$ of the columns as they are rounded, in float64. shape: (r, r)
        outside: $\rho > 0$.
        scale: $s > 0$.
        processes: Those that share the rows, each having its :meth:`~Processes.part`.
        size: $n$, where rows are shared.
    """

    columns: Tensor
    gram: Tensor
    outside: float
    scale: float = 1.0
    processes: Processes = ALONE
    size: int | None = None

    def __post_init__(self) -> None:
        own = None if self.size is None else len(range(self.size)[self.processes.part(self.size)])
        shaped("columns", self.columns, own, None)
        shaped("gram", self.gram, self.columns.shape[1], self.columns.shape[1])
        real("outside", self.outside, above=0)
        real("scale", self.scale, above=0)

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        size = len(self.columns) if self.size is None else self.size
        return torch.Size((size, size))

    @property
    def _entries(self) -> Tensor:
        return self.gram

    def diagonal(self) -> Tensor:
        """The diagonal."""
        squares = self.gram.new_zeros(self.shape[0], 1)
        for rows, part in self._parts():
            squares[rows, 0] = part.square().sum(1)
        return self.scale * (self._sum(squares)[:, 0] + self.outside)

    @cached_property
    def _factor(self) -> Tensor:
        inside = self.gram.clone()
        inside.diagonal().add_(self.outside)
        factor: Tensor = torch.linalg.cholesky(inside)
        return factor

    def solve(self, vectors: Tensor) -> Tensor:
        """The inverse times columns."""
        inside = torch.cholesky_solve(self._projected(vectors), self._factor)
        result = self._combined(vectors, -inside)
        return result.div_(self.scale * self.outside)

    def root(self, vectors: Tensor) -> Tensor:
        """The root times columns."""
        values, rotation = torch.linalg.eigh(self.gram)
        values = values.clamp_min(0.0)
        # (√(θ + ρ) - √ρ) / θ, also at zero
        share = 1 / ((values + self.outside).sqrt() + self.outside**0.5)
        inside = rotation @ (share[:, None] * (rotation.T @ self._projected(vectors)))
        return self._combined(self.outside**0.5 * vectors, inside).mul_(self.scale**0.5)

    def logdet(self) -> float:
        """The logarithm of the determinant."""
        others = self.shape[0] - len(self.gram)
        outside, scale = self.gram.new_tensor([self.outside, self.scale]).log()
        inside = 2 * self._factor.diagonal().log().sum()
        return float(inside + others * outside + self.shape[0] * scale)

    def _product(self, vectors: Tensor) -> Tensor:
        result = self._combined(self.outside * vectors, self._projected(vectors))
        return result.mul_(self.scale)

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows of the columns that this process has, in float64, and which they are."""
        step = max(1, _NUMBERS // max(1, self.columns.shape[1]))
        first = self.processes.part(self.shape[0]).start
        for start in range(0, len(self.columns), step):
            part = self.columns[start : start + step].double()
            yield slice(first + start, first + start + len(part)), part

    def _sum(self, part: Tensor) -> Tensor:
        """The sum over all processes."""
        self.processes.agree({"columns": tuple(part.shape)})
        return self.processes.sum(part)

    def _projected(self, vectors: Tensor) -> Tensor:
        shaped("vectors", vectors, self.shape[0], None)
        result = vectors.new_zeros(self.columns.shape[1], vectors.shape[1])
        for rows, part in self._parts():
            result += part.T @ vectors[rows]
        return self._sum(result)

    def _combined(self, vectors: Tensor, inside: Tensor) -> Tensor:
        result = torch.zeros_like(vectors)
        for rows, part in self._parts():
            result[rows] = vectors[rows] + part @ inside
        return self._sum(result)
