r"""Matrices near $K + \lambda I$ that are easy to invert."""

import warnings
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from shoal.asymptotics import equivalent
from shoal.asymptotics.labels import Labels, class_indices, classes_of
from shoal.core.checks import integer
from shoal.kernels import KernelFunction
from shoal.learning.problem import Problem
from shoal.numerics import DiagonalOperator, LowRankPlusIdentity
from shoal.numerics.krylov import Invertible

_ROWS = 2**13  # of columns that are made together
_JITTER = 1e-10  # relative to the diagonal, or to the largest eigenvalue
_ROUNDING = 1e-12  # eigenvalues, relative to the largest, that are rounding


class Preconditioner(ABC):
    r"""How a matrix near $K + \lambda I$ is made that is easy to invert.

    Attributes:
        name: Its name in reports.
    """

    name: ClassVar[str]

    @abstractmethod
    def operator(self, problem: Problem, memory: int) -> Invertible:
        """The matrix; kernels for it are computed in ``memory`` bytes more than it has."""

    @abstractmethod
    def size_in_bytes(self, problem: Problem) -> int:
        """Bytes that making it takes."""


@dataclass(frozen=True)
class DiagonalPreconditioner(Preconditioner):
    r"""The diagonal of $K + \lambda I$."""

    name: ClassVar[str] = "diagonal"

    def operator(self, problem: Problem, memory: int) -> DiagonalOperator:  # noqa: ARG002
        """The diagonal, and one where it is zero: at inputs of zero, without a ridge."""
        diagonal = problem.diagonal + problem.ridge
        return DiagonalOperator(diagonal.where(diagonal > 0, 1.0))

    def size_in_bytes(self, problem: Problem) -> int:
        """The diagonal, twice."""
        return 2 * 8 * problem.size


@dataclass(frozen=True)
class Nystrom(Preconditioner):
    r"""The kernel projected to random samples, plus $\lambda$ and the mean of the remainder.

    Args:
        rank: Number of samples; at most all.
        seed: Seed of their choice.
        precision: The dtype of its columns. With ``torch.float16`` ten thousand of them for a
            million samples take 20 GB, and the preconditioner is as good: rounded columns give
            another matrix of the same kind, whose inverse is exact.

    Example:
        >>> import shoal
        >>> shoal.learning.ConjugateGradients(shoal.learning.Nystrom(2000)).preconditioner
        Nystrom(rank=2000, seed=0, precision=torch.float64)
    """

    rank: int = 1000
    _: KW_ONLY
    seed: int = 0
    precision: torch.dtype = torch.float64

    name: ClassVar[str] = "nystrom"

    def __post_init__(self) -> None:
        for name, least in (("rank", 1), ("seed", 0)):
            object.__setattr__(self, name, integer(name, getattr(self, name), at_least=least))
        if self.precision not in (torch.float16, torch.float32, torch.float64):
            raise ValueError(
                "precision must be torch.float16, torch.float32 or torch.float64, "
                f"got {self.precision!r}"
            )

    def operator(self, problem: Problem, memory: int) -> LowRankPlusIdentity:
        r"""The projection $FF^T$, where $F = K_{nm} L^{-T}$ with $LL^T = K_{mm}$.

        Columns are those of the kernel divided by its largest entry, which half precision has
        room for.
        """
        x, largest = problem.x, float(problem.diagonal.max()) or 1.0
        generator = torch.Generator().manual_seed(self.seed)
        places = torch.randperm(len(x), generator=generator)[: self.rank]
        chosen = x[places.to(x.device)]
        small = problem.cross(chosen, None, memory, shared=False).to_dense()
        small.diagonal().add_(_JITTER * largest)  # equal samples do no harm
        factor, width = torch.linalg.cholesky(small), len(chosen)
        columns = torch.empty(len(x), width, dtype=self.precision, device=x.device)
        gram = torch.zeros(width, width, dtype=torch.float64, device=x.device)
        step = max(1, min(_ROWS, memory // (64 * width)))
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            cross = problem.cross(x[rows], chosen, memory // 2, shared=False).to_dense()
            features = torch.linalg.solve_triangular(factor, cross.T, upper=False).T
            columns[rows] = features / largest**0.5
            rounded = columns[rows].double()
            gram.addmm_(rounded.T, rounded)
        left = float(problem.diagonal.sum() / largest - gram.trace()) / len(x)
        shift = max(max(left, 0.0) + problem.ridge / largest, _ROUNDING * float(gram.trace()))
        return LowRankPlusIdentity(columns, gram, shift or 1.0, largest)  # of zeros: any shift

    def size_in_bytes(self, problem: Problem) -> int:
        """The columns, and small matrices."""
        width = min(self.rank, problem.size)
        return self.precision.itemsize * problem.size * width + 4 * 8 * width**2


@dataclass(frozen=True, eq=False, repr=False)
class EquivalentPreconditioner(Preconditioner):
    r"""The high-dimensional equivalent of the kernel, not centered, plus $\lambda I$.

    Args:
        labels: Classes of the samples: useful for mixtures in high dimension, and harmful for
            images, whose inner products do not concentrate.
    """

    labels: Labels | None = None

    name: ClassVar[str] = "equivalent"

    def __post_init__(self) -> None:
        if self.labels is not None:
            labels = class_indices(self.labels, classes_of(self.labels))
            object.__setattr__(self, "labels", labels)

    def __repr__(self) -> str:
        shown = "" if self.labels is None else f"labels of {len(self.labels)} samples"
        return f"EquivalentPreconditioner({shown})"

    def operator(self, problem: Problem, memory: int) -> Invertible:  # noqa: ARG002
        """The equivalent, with a larger shift where it would not be positive definite."""
        if self.labels is not None and len(self.labels) != problem.size:
            raise ValueError(
                f"labels must be as many as inputs, got {len(self.labels)} for {problem.size} "
                "inputs"
            )
        if problem.size == 1 or not isinstance(problem.function, KernelFunction):
            raise ValueError(
                "preconditioner must be a Nystrom for images, and for one sample, which have no "
                "high-dimensional equivalent"
            )
        with warnings.catch_warnings():  # of misfits: a preconditioner may be wrong
            warnings.simplefilter("ignore")
            both = equivalent(problem.function, problem.x, self.labels, center=False)
        values = getattr(both, problem.which).eigvalsh()
        least, largest = float(values[0]), float(values[-1])
        # where eigenvalues are negative, as many positive ones are as wrong
        shift = max(problem.ridge, _JITTER * largest - 2 * min(least, 0.0) - max(least, 0.0))
        return _Shifted(getattr(both, problem.which), shift)

    def size_in_bytes(self, problem: Problem) -> int:
        """The inputs with a few columns, and their factors."""
        width = min(problem.size, problem.x[0].numel() + 8)
        return 8 * (5 * problem.size * width + 4 * width**2)


@dataclass(frozen=True, eq=False)
class _Shifted:
    """An operator plus a multiple of the identity."""

    matrix: Any
    shift: float

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of solutions."""
        dtype: torch.dtype = self.matrix.dtype
        return dtype

    def solve(self, vectors: Tensor) -> Tensor:
        """The inverse times columns; the accuracy of a preconditioner does not matter."""
        found: Tensor = self.matrix.solve(vectors, shift=self.shift, rtol=1.0)
        return found
