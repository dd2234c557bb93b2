"""The columns that the equivalents of one data set have in common, and their factorization."""

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Basis"]

_BLOCK = 2**26  # bytes of float64 rows at a time, where the data are float32


class _Reflections(NamedTuple):
    """Householder reflections, in LAPACK's form, and the triangle that they leave."""

    vectors: Tensor
    scales: Tensor
    triangle: Tensor


class Basis:
    r"""$B = [X, U]$, whose $n$ rows are samples: $X$ the inputs, $U$ a few columns more.

    A matrix $\alpha X X^T + U S U^T$ is the small matrix $\alpha R_X R_X^T + R_U S R_U^T$ seen
    through the orthogonal factor of $B = QR$. So one factorization, which is stable whatever the
    rank of $B$ and the signs of $S$, serves all such matrices, and costs as much memory as $B$.
    If $B$ has as many columns as rows there is nothing to gain, and $Q = I$.

    Factors are in float64 whatever the inputs: a kernel's largest eigenvalue is of the order of
    $n$ times the smallest, too much for float32.

    Attributes:
        inputs: $X$, of shape (n, p).
        columns: $U$, of shape (n, r).
    """

    def __init__(self, inputs: Tensor, columns: Tensor) -> None:
        self.inputs = inputs
        self.columns = columns

    @property
    def samples(self) -> int:
        """The number of rows."""
        return len(self.inputs)

    @property
    def rank(self) -> int:
        """The size of the small matrix, and a bound on the rank of the large one."""
        return min(self.samples, self.inputs.shape[1] + self.columns.shape[1])

    def compress(self, scale: float, core: Tensor) -> Tensor:
        r"""$Q^T (\alpha X X^T + U S U^T) Q$ without its zeros, of size ``rank``, in float64."""
        features = self.inputs.shape[1]
        if self._reflections is None:
            rows = torch.cat((self.inputs.double(), self.columns.double()), dim=1)
        else:
            rows = self._reflections.triangle
        left, right = rows[:, :features], rows[:, features:]
        return scale * left @ left.T + right @ core @ right.T

    def rotate(self, vectors: Tensor, *, back: bool = False) -> Tensor:
        """$Q^T$ (or ``back`` $Q$) times columns of float64, $Q$ being square."""
        if self._reflections is None:
            return vectors
        factors, scales, _ = self._reflections
        return torch.ormqr(factors, scales, vectors, transpose=not back)

    def product(self, scale: float, core: Tensor, vectors: Tensor) -> Tensor:
        r"""$(\alpha X X^T + U S U^T) v$ in the dtype of $v$, maybe wider than that of $X$."""
        inner = vectors.new_zeros(self.inputs.shape[1], vectors.shape[1])
        blocks = self._blocks(vectors.dtype)
        for rows in blocks:
            inner += self.inputs[rows].to(vectors).T @ vectors[rows]
        columns = self.columns.to(vectors)
        result = columns @ (core.to(vectors) @ (columns.T @ vectors))
        for rows in blocks:
            result[rows] += scale * (self.inputs[rows].to(vectors) @ inner)
        return result

    def _blocks(self, dtype: torch.dtype) -> list[slice]:
        size = self.samples
        if dtype != self.inputs.dtype:
            size = max(1, _BLOCK // (self.inputs.shape[1] * dtype.itemsize))
        return [slice(start, start + size) for start in range(0, self.samples, size)]

    @cached_property
    def _reflections(self) -> _Reflections | None:
        features, extra = self.inputs.shape[1], self.columns.shape[1]
        if features + extra >= self.samples:
            return None
        both = torch.cat((self.inputs.double(), self.columns.double()), dim=1)
        vectors, scales = torch.geqrf(both)
        return _Reflections(vectors, scales, vectors[: features + extra].triu())
