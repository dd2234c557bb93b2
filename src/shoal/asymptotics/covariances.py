r"""Covariances of the classes of a mixture: diagonal ones, which are cheap, and full ones.

All numbers are float64, on the CPU.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.checks import float_tensor, real, unmasked

Numbers = Tensor | NDArray[Any] | Sequence[float]

FORMS = ("scalar", "diagonal", "full")
"""The forms of covariances that are fitted to samples."""


class Covariance(ABC):
    """A symmetric, positive semidefinite matrix.

    Attributes:
        dimension: The number of rows.
    """

    dimension: int

    @abstractmethod
    def variances(self) -> Tensor:
        """The variances of the coordinates, of shape (dimension,)."""

    @abstractmethod
    def apply(self, v: Tensor) -> Tensor:
        """The product with a vector, or with the columns of a matrix, in float64."""

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Rows that are independent and normal with this covariance and mean zero."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The matrix."""

    def trace(self) -> float:
        """The sum of the variances."""
        return float(self.variances().sum())

    def inner(self, other: "Covariance") -> float:
        """The trace of the product with another covariance."""
        if other.dimension != self.dimension:
            raise ValueError(f"other must have dimension {self.dimension}, got {other.dimension}")
        if isinstance(self, FullCovariance) and isinstance(other, FullCovariance):
            return float((self.matrix * other.matrix).sum())
        return float(self.variances() @ other.variances())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dimension={self.dimension})"


@dataclass(frozen=True, eq=False, repr=False)
class DiagonalCovariance(Covariance):
    """Independent coordinates.

    Args:
        values: Their variances, not negative.

    Example:
        >>> DiagonalCovariance([1.0, 2.0, 3.0]).trace()
        6.0
    """

    values: Tensor

    def __init__(self, values: Numbers) -> None:
        tensor = numbers("values", values).double()
        if tensor.dim() != 1:
            raise ValueError(f"values must be a vector, got shape {tuple(tensor.shape)}")
        if float(tensor.min()) < 0:
            raise ValueError(f"values must be >= 0, got {float(tensor.min()):g}")
        object.__setattr__(self, "values", tensor)
        object.__setattr__(self, "dimension", len(tensor))

    def variances(self) -> Tensor:  # noqa: D102
        return self.values

    def apply(self, v: Tensor) -> Tensor:  # noqa: D102
        return self.values * v if v.dim() == 1 else self.values[:, None] * v

    def draw(self, count: int, generator: torch.Generator) -> Tensor:  # noqa: D102
        return _normal(count, self.dimension, generator) * self.values.sqrt()

    def dense(self) -> Tensor:  # noqa: D102
        return self.values.diag()


@dataclass(frozen=True, eq=False, repr=False)
class FullCovariance(Covariance):
    r"""Any covariance matrix, also a singular one.

    A matrix counts as symmetric and semidefinite if it is so up to $p\,\epsilon\,\|C\|_F$, where
    $\epsilon$ is the resolution of its dtype. Draws use its Cholesky factor, or if it is singular
    the root from its eigenvectors.

    Args:
        matrix: The matrix, of shape (dimension, dimension).
    """

    matrix: Tensor

    def __init__(self, matrix: Numbers) -> None:
        tensor = numbers("matrix", matrix)
        if tensor.dim() != 2 or tensor.shape[0] != tensor.shape[1]:
            raise ValueError(f"matrix must be square, got shape {tuple(tensor.shape)}")
        tolerance = len(tensor) * torch.finfo(tensor.dtype).eps * float(tensor.double().norm())
        object.__setattr__(self, "matrix", _semidefinite(tensor.double(), tolerance))
        object.__setattr__(self, "dimension", len(tensor))

    def variances(self) -> Tensor:  # noqa: D102
        return self.matrix.diagonal().clamp_min(0.0)

    def apply(self, v: Tensor) -> Tensor:  # noqa: D102
        return self.matrix @ v

    def draw(self, count: int, generator: torch.Generator) -> Tensor:  # noqa: D102
        return _normal(count, self.dimension, generator) @ self._root.T

    def dense(self) -> Tensor:  # noqa: D102
        return self.matrix

    @cached_property
    def _root(self) -> Tensor:
        """Some R with R Rᵀ equal to the matrix."""
        root: Tensor
        root, info = torch.linalg.cholesky_ex(self.matrix)
        if int(info) > 0:
            values, vectors = torch.linalg.eigh(self.matrix)
            root = vectors * values.clamp_min(0.0).sqrt()
        return root


def sample_covariance(centered: Tensor, scale: float, form: str) -> Covariance:
    """The covariance of samples, or the part of it that has this form.

    Args:
        centered: At least two samples in rows, less their mean.
        scale: A factor of the covariance.
        form: One of ``FORMS``.
    """
    count, dimension = centered.shape
    factor = scale / (count - 1)
    if form == "full":
        return FullCovariance(factor * (centered.T @ centered))
    variances = factor * centered.square().sum(0)
    return DiagonalCovariance(
        variances if form == "diagonal" else variances.mean().expand(dimension)
    )


def as_covariance(name: str, value: object, dimension: int) -> Covariance:
    """A number, a vector of variances, a matrix or a covariance, as a covariance."""
    if isinstance(value, Real) and not isinstance(value, bool):
        result: Covariance = DiagonalCovariance([real(name, value, at_least=0.0)] * dimension)
    elif isinstance(value, Covariance):
        result = value
    else:
        tensor = numbers(name, value)
        if tensor.dim() not in (1, 2):
            raise ValueError(f"{name} must be vectors or matrices, got {tuple(tensor.shape)}")
        result = DiagonalCovariance(tensor) if tensor.dim() == 1 else FullCovariance(tensor)
    if result.dimension != dimension:
        raise ValueError(f"{name} must have dimension {dimension}, got {result.dimension}")
    return result


def numbers(name: str, value: object) -> Tensor:
    """Return a copy of ``value`` as a finite tensor of its dtype; integers become float64."""
    if isinstance(value, Tensor):
        tensor = value.detach()
    elif isinstance(value, np.ndarray | Sequence) and not isinstance(value, str | bytes):
        unmasked(name, value)
        try:
            array = np.array(value)
        except ValueError:
            raise ValueError(f"{name} must be rectangular, got rows of different lengths") from None
        array = array.astype(np.float64) if array.dtype.kind in "iu" else array
        if array.dtype not in (np.float16, np.float32, np.float64):
            raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
        tensor = torch.tensor(array)
    else:
        raise TypeError(f"{name} must be a tensor, an array or a sequence, got {value!r}")
    if not tensor.dtype.is_floating_point and tensor.dtype != torch.bool:
        tensor = tensor if tensor.dtype.is_complex else tensor.double()
    return float_tensor(name, tensor).cpu().clone()


def _semidefinite(matrix: Tensor, tolerance: float) -> Tensor:
    """Return a matrix made exactly symmetric, or say why it is no covariance."""
    asymmetry = float((matrix - matrix.T).abs().max())
    if asymmetry > tolerance:
        raise ValueError(
            f"matrix must be symmetric, got entries that differ by {asymmetry:.3g} from their "
            "mirror images"
        )
    matrix = (matrix + matrix.T) / 2
    # Succeeds if no eigenvalue is below -tolerance, and costs far less than the eigenvalues.
    shifted = matrix + tolerance * torch.eye(len(matrix), dtype=torch.float64)
    if int(torch.linalg.cholesky_ex(shifted).info) > 0 and bool(matrix.any()):
        smallest = float(torch.linalg.eigvalsh(matrix)[0])
        raise ValueError(f"matrix must be positive semidefinite, got the eigenvalue {smallest:.3g}")
    return matrix


def _normal(count: int, dimension: int, generator: torch.Generator) -> Tensor:
    return torch.randn(count, dimension, generator=generator, dtype=torch.float64)
