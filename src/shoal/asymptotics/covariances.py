r"""Covariances that know their structure: multiples of the identity, diagonals, low rank, full.

Whatever the theory asks of a covariance (traces, $\operatorname{tr}(C_a C_b)$, products, draws) is
computed without a dense matrix where the structure allows it. All numbers are float64, on the CPU.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from numbers import Real

import torch
from torch import Tensor

from shoal.asymptotics.arguments import Numbers, numbers
from shoal.core.checks import float_dtype, float_tensor, instance, integer, real, room

FORMS = ("scalar", "diagonal", "full", "low-rank")  # of the covariances of samples


class Covariance(ABC):
    """A symmetric, positive semidefinite matrix. Subclass it for a structure of your own."""

    dimension: int  # the number of rows

    @abstractmethod
    def variances(self) -> Tensor:
        """The variances of the coordinates, of shape (dimension,)."""

    @abstractmethod
    def apply(self, v: Tensor) -> Tensor:
        """The product with a vector, or with the columns of a matrix, in float64."""

    @abstractmethod
    def draw(
        self, count: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """Rows that are independent and normal with this covariance and mean zero.

        They are drawn in float64 and then rounded to ``dtype``.
        """

    def trace(self) -> float:
        """The sum of the variances."""
        return float(self.variances().sum())

    def inner(self, other: "Covariance") -> float:
        """The trace of the product with another covariance."""
        check_dimension("other", other, self.dimension)
        return self._inner(other)

    def _inner(self, other: "Covariance") -> float:
        return float((self.dense() * other.dense()).sum())

    def dense(self) -> Tensor:
        """The matrix."""
        return self.apply(torch.eye(self.dimension, dtype=torch.float64))

    def eigenvalues(self) -> Tensor:
        """All eigenvalues, the smallest first."""
        values: Tensor = torch.linalg.eigvalsh(self.dense())
        return values.clamp_min(0.0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dimension={self.dimension})"


@dataclass(frozen=True)
class ScalarCovariance(Covariance):
    """A multiple of the identity.

    Args:
        variance: Of every coordinate, not negative.
        dimension: The number of rows.

    Example:
        >>> ScalarCovariance(2.0, dimension=3).inner(DiagonalCovariance([1.0, 2.0, 3.0]))
        12.0
    """

    variance: float
    dimension: int

    def __post_init__(self) -> None:
        variance = real("variance", self.variance, at_least=0.0)
        set_fields(
            self, variance=variance, dimension=integer("dimension", self.dimension, at_least=1)
        )

    def variances(self) -> Tensor:  # noqa: D102
        return torch.full((self.dimension,), self.variance, dtype=torch.float64)

    def apply(self, v: Tensor) -> Tensor:  # noqa: D102
        return self.variance * check_columns(v, self.dimension)

    def draw(  # noqa: D102
        self, count: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        return rounded(normal(count, self.dimension, generator) * math.sqrt(self.variance), dtype)

    def trace(self) -> float:  # noqa: D102
        return self.variance * self.dimension

    def _inner(self, other: Covariance) -> float:
        return self.variance * other.trace()

    def eigenvalues(self) -> Tensor:  # noqa: D102
        return self.variances()


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
        checked = non_negative("values", values)
        set_fields(self, values=checked, dimension=len(checked))

    def variances(self) -> Tensor:  # noqa: D102
        return self.values

    def apply(self, v: Tensor) -> Tensor:  # noqa: D102
        return scale_rows(self.variances(), check_columns(v, self.dimension))

    def draw(  # noqa: D102
        self, count: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        return rounded(normal(count, self.dimension, generator) * self.variances().sqrt(), dtype)

    def _inner(self, other: Covariance) -> float:
        return float(self.variances() @ other.variances())

    def eigenvalues(self) -> Tensor:  # noqa: D102
        return self.variances().sort().values


@dataclass(frozen=True, eq=False, repr=False)
class LowRankCovariance(Covariance):
    r"""$F F^\top + \operatorname{diag}(d)$, which is never formed unless ``dense`` is called.

    Args:
        factor: $F$, of shape (dimension, rank).
        diagonal: $d$, not negative: a number for all coordinates, or one for each.

    Example:
        >>> import torch
        >>> LowRankCovariance(torch.ones(4, 1), 0.5).eigenvalues()
        tensor([0.5000, 0.5000, 0.5000, 4.5000], dtype=torch.float64)
    """

    factor: Tensor
    diagonal: Tensor

    def __init__(self, factor: Numbers, diagonal: float | Numbers = 0.0) -> None:
        columns = numbers("factor", factor).double()
        if columns.dim() != 2:
            raise ValueError(
                f"factor must have shape (dimension, rank), got {tuple(columns.shape)}"
            )
        rows = len(columns)
        if isinstance(diagonal, Real):
            diagonal = [real("diagonal", diagonal, at_least=0.0)] * rows
        values = non_negative("diagonal", diagonal)
        if len(values) != rows:
            raise ValueError(
                f"diagonal must have as many entries as factor has rows, {rows}, got {len(values)}"
            )
        set_fields(self, factor=columns, diagonal=values, dimension=rows)

    def variances(self) -> Tensor:  # noqa: D102
        return self.factor.square().sum(1) + self.diagonal

    def apply(self, v: Tensor) -> Tensor:  # noqa: D102
        v = check_columns(v, self.dimension)
        return self.factor @ (self.factor.T @ v) + scale_rows(self.diagonal, v)

    def draw(  # noqa: D102
        self, count: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        rows = normal(count, self.factor.shape[1], generator) @ self.factor.T
        if bool(self.diagonal.any()):
            rows += normal(count, self.dimension, generator) * self.diagonal.sqrt()
        return rounded(rows, dtype)

    def _inner(self, other: Covariance) -> float:
        low_rank = (self.factor * other.apply(self.factor)).sum()
        return float(self.diagonal @ other.variances() + low_rank)

    def eigenvalues(self) -> Tensor:  # noqa: D102
        if self.factor.shape[1] >= self.dimension or bool(
            (self.diagonal != self.diagonal[0]).any()
        ):
            return super().eigenvalues()
        squares = torch.zeros_like(self.diagonal)
        squares[-self.factor.shape[1] :] = torch.linalg.svdvals(self.factor).square().flip(0)
        return squares + self.diagonal


@dataclass(frozen=True, eq=False, repr=False)
class FullCovariance(Covariance):
    r"""Any covariance matrix, also a singular one.

    A matrix counts as symmetric and semidefinite if it is so up to $p\,\epsilon\,\|C\|_F$, where
    $\epsilon$ is the resolution of its dtype. Draws use its Cholesky factor, or if it is singular
    the root from its eigenvectors.

    Args:
        matrix: Of shape (dimension, dimension).
    """

    matrix: Tensor

    def __init__(self, matrix: Numbers) -> None:
        given = numbers("matrix", matrix)
        if given.dim() != 2 or given.shape[0] != given.shape[1]:
            raise ValueError(f"matrix must be square, got shape {tuple(given.shape)}")
        tolerance = len(given) * torch.finfo(given.dtype).eps * float(given.double().norm())
        checked = semidefinite(given.double(), tolerance)
        set_fields(self, matrix=checked, dimension=len(checked))

    def variances(self) -> Tensor:  # noqa: D102
        return self.matrix.diagonal().clamp_min(0.0)

    def apply(self, v: Tensor) -> Tensor:  # noqa: D102
        return self.matrix @ check_columns(v, self.dimension)

    def draw(  # noqa: D102
        self, count: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        return rounded(normal(count, self.dimension, generator) @ self._root.T, dtype)

    @cached_property
    def _root(self) -> Tensor:
        """Some R with R Rᵀ equal to the matrix."""
        root: Tensor
        root, info = torch.linalg.cholesky_ex(self.matrix)
        if int(info) > 0:
            values, vectors = torch.linalg.eigh(self.matrix)
            root = vectors * values.clamp_min(0.0).sqrt()
        return root

    def _inner(self, other: Covariance) -> float:
        if isinstance(other, FullCovariance):
            return float((self.matrix * other.matrix).sum())
        return other.inner(self)

    def dense(self) -> Tensor:  # noqa: D102
        return self.matrix


def sample_covariance(centered: Tensor, scale: float, form: str, rank: int | None) -> Covariance:
    """The covariance of samples, or the part of it that has this form.

    Args:
        centered: At least two samples in rows, less their mean.
        scale: What to multiply the covariance with.
        form: One of ``FORMS``.
        rank: For ``"low-rank"`` alone: how many principal components to keep, with the variances
            of the coordinates that they leave as the diagonal; all of them by default.
    """
    count, dimension = centered.shape
    factor = scale / (count - 1)
    if form == "scalar":
        return ScalarCovariance(factor * float(centered.square().sum()) / dimension, dimension)
    if form == "diagonal":
        return DiagonalCovariance(factor * centered.square().sum(0))
    if form == "full":
        return FullCovariance(factor * (centered.T @ centered))
    return _low_rank(math.sqrt(factor) * centered, rank)


def _low_rank(centered: Tensor, rank: int | None) -> LowRankCovariance:
    if rank is None:
        return LowRankCovariance(centered.T)
    most = min(centered.shape)
    if integer("rank", rank, at_least=1) > most:
        raise ValueError(
            f"rank must be <= {most}, the smaller of samples and dimension, got {rank}"
        )
    _, values, rows = torch.linalg.svd(centered, full_matrices=False)
    factor = (values[:rank, None] * rows[:rank]).T
    rest = centered.square().sum(0) - factor.square().sum(1)
    return LowRankCovariance(factor, rest.clamp_min(0.0))


def as_covariance(name: str, value: object, dimension: int) -> Covariance:
    """A number, a vector of variances, a matrix or a covariance, as a covariance."""
    if isinstance(value, Real) and not isinstance(value, bool):
        result: Covariance = ScalarCovariance(real(name, value, at_least=0.0), dimension)
    elif isinstance(value, Covariance):
        result = value
    else:
        tensor = numbers(name, value)
        if tensor.dim() not in (1, 2):
            raise ValueError(f"{name} must be vectors or matrices, got {tuple(tensor.shape)}")
        result = (
            DiagonalCovariance(non_negative(name, tensor))
            if tensor.dim() == 1
            else FullCovariance(tensor)
        )
    return check_dimension(name, result, dimension)


def check_dimension(name: str, value: Covariance, dimension: int) -> Covariance:
    """Return a covariance of this dimension, or say why it is none."""
    if not isinstance(value, Covariance):
        raise TypeError(f"{name} must be a Covariance, got {type(value).__name__}")
    if value.dimension != dimension:
        raise ValueError(f"{name} must have dimension {dimension}, got {value.dimension}")
    return value


def check_columns(v: Tensor, dimension: int) -> Tensor:
    """Return columns of this dimension in float64, or say why they are none."""
    v = float_tensor("v", v)
    if v.dim() not in (1, 2) or len(v) != dimension:
        raise ValueError(f"v must have {dimension} rows, got shape {tuple(v.shape)}")
    return v.double()


def semidefinite(matrix: Tensor, tolerance: float) -> Tensor:
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


def non_negative(name: str, value: object) -> Tensor:
    """Return a vector without negative entries, or say why it is none."""
    tensor = numbers(name, value).double()
    if tensor.dim() != 1:
        raise ValueError(f"{name} must be a vector, got shape {tuple(tensor.shape)}")
    if float(tensor.min()) < 0:
        raise ValueError(f"{name} must be >= 0, got {float(tensor.min()):g}")
    return tensor


def scale_rows(scales: Tensor, v: Tensor) -> Tensor:
    """Multiply the rows of a vector or matrix."""
    return scales * v if v.dim() == 1 else scales[:, None] * v


def normal(count: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Standard normal rows."""
    count = integer("count", count, at_least=0)
    room("count", count, dimension)
    instance("generator", generator, torch.Generator)
    return torch.randn(count, dimension, generator=generator, dtype=torch.float64)


def rounded(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows in a floating-point dtype."""
    return rows.to(float_dtype("dtype", dtype))


def set_fields(value: Covariance, **fields: object) -> None:
    """Set the fields of a frozen value while it is made."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)
