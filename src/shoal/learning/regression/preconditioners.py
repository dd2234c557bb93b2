r"""Matrices near $K + \lambda I$ that are easy to invert."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from shoal.asymptotics import EquivalentOperator
from shoal.asymptotics.equivalent import unchecked_equivalent
from shoal.asymptotics.labels import Labels, class_indices, classes_of
from shoal.core.checks import integer
from shoal.kernels.images.function import ImageKernels
from shoal.learning.regression.problem import Problem
from shoal.numerics import Columns, Diagonal
from shoal.numerics.low_rank import DROPPED

_ROWS = 2**13  # of columns that are made together
_JITTER = 1e-10  # relative to the diagonal


class Preconditioner(ABC):
    r"""How a matrix near $K + \lambda I$ is made that is easy to invert.

    Attributes:
        name: What reports and checkpoints call it.
    """

    name: ClassVar[str]

    @abstractmethod
    def matrix(self, problem: Problem, memory: int) -> Columns | Diagonal:
        """The matrix; kernels for it are computed in ``memory`` bytes more than it has."""

    @abstractmethod
    def size_in_bytes(self, problem: Problem) -> int:
        """What making it takes."""


@dataclass(frozen=True)
class DiagonalPreconditioner(Preconditioner):
    r"""The diagonal of $K + \lambda I$."""

    name: ClassVar[str] = "diagonal"

    def matrix(self, problem: Problem, memory: int) -> Diagonal:  # noqa: ARG002
        """The diagonal, and one where it is zero: of inputs of zero, without a ridge."""
        own = problem.diagonal + problem.ridge
        return Diagonal(own.where(own > 0, 1.0))

    def size_in_bytes(self, problem: Problem) -> int:
        """The diagonal, twice."""
        return 2 * 8 * problem.size


@dataclass(frozen=True)
class Nystrom(Preconditioner):
    r"""The kernel projected to random samples, plus $\lambda$ and the mean of what is left.

    Args:
        rank: How many samples; at most all.
        seed: Of their choice.
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
        _check_choice(self)
        if self.precision not in (torch.float16, torch.float32, torch.float64):
            raise ValueError(
                "precision must be torch.float16, torch.float32 or torch.float64, "
                f"got {self.precision!r}"
            )

    def matrix(self, problem: Problem, memory: int) -> Columns:
        r"""The projection $FF^T$, where $F = K_{nm} L^{-T}$ with $LL^T = K_{mm}$."""
        chosen = _samples(problem, self.rank, self.seed)
        small = problem.cross(chosen, chosen, memory).to_dense()
        small.diagonal().add_(_JITTER * _largest(problem))  # equal samples are no harm
        factor = problem.processes.broadcast(torch.linalg.cholesky(small))

        def features(rows: Tensor, memory: int) -> Tensor:
            cross = problem.cross(rows, chosen, memory, shared=False).to_dense()
            found: Tensor = torch.linalg.solve_triangular(factor, cross.T, upper=False).T
            return found

        return _of_features(problem, features, len(chosen), memory, self.precision)

    def size_in_bytes(self, problem: Problem) -> int:
        """This process's rows of the columns, and small matrices."""
        return _bytes(problem, min(self.rank, problem.size), self.precision)


@dataclass(frozen=True, eq=False, repr=False)
class EquivalentPreconditioner(Preconditioner):
    r"""The high-dimensional equivalent of the kernel, not centered, plus $\lambda I$.

    Args:
        labels: Classes of the samples: of use for mixtures in high dimension, and harmful for
            images, whose inner products do not concentrate.
    """

    labels: Labels | None = None

    name: ClassVar[str] = "equivalent"

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", _indices(self.labels))

    def __repr__(self) -> str:
        return f"EquivalentPreconditioner({_shown(self.labels)})"

    def matrix(self, problem: Problem, memory: int) -> Columns:  # noqa: ARG002
        """The equivalent; its negative eigenvalues, if there are any, count as zero."""
        chosen, _ = _equivalent(problem, self.labels)
        values, small = torch.linalg.eigh(chosen.basis.compress(chosen.scale, chosen.core))
        largest, shift = float(values[-1].clamp_min(0.0)), max(chosen.shift, 0.0) + problem.ridge
        scale = largest or 1.0
        padded = small.new_zeros(problem.size, len(small))
        padded[: len(small)] = small * (values.clamp_min(0.0) / scale).sqrt()
        columns = problem.processes.broadcast(chosen.basis.rotate(padded, back=True))
        gram, own = columns.T @ columns, columns[problem.processes.part(problem.size)]
        # without a ridge, what the columns leave is not known to be less than their rounding
        outside = max(shift / scale, DROPPED * bool(largest)) or 1.0  # of a matrix of zeros: any
        return Columns(
            own, problem.processes.broadcast(gram), outside, scale, problem.processes, problem.size
        )

    def size_in_bytes(self, problem: Problem) -> int:
        """The inputs with a few columns, and their factors."""
        width = min(problem.size, problem.x.shape[1] + 8)
        return 8 * (5 * problem.size * width + 4 * width**2)


@dataclass(frozen=True, eq=False, repr=False)
class CombinedPreconditioner(Preconditioner):
    """The part of the equivalent that is linear in the inputs, and a projection of the rest.

    For inputs of one norm the rest is a kernel too: all coefficients of its power series in the
    inner product are positive (Schoenberg).

    Args:
        rank: How many random samples the rest is projected to; at most all.
        seed: Of their choice.
        labels: Classes of the samples, as for :class:`EquivalentPreconditioner`.
    """

    rank: int = 1000
    _: KW_ONLY
    seed: int = 0
    labels: Labels | None = None

    name: ClassVar[str] = "combined"

    def __post_init__(self) -> None:
        _check_choice(self)
        object.__setattr__(self, "labels", _indices(self.labels))

    def __repr__(self) -> str:
        shown = f", {_shown(self.labels)}" if self.labels is not None else ""
        return f"CombinedPreconditioner(rank={self.rank}, seed={self.seed}{shown})"

    def matrix(self, problem: Problem, memory: int) -> Columns:
        """Both together."""
        chosen = _samples(problem, self.rank, self.seed)
        equivalent, offset = _equivalent(problem, self.labels)
        offset, slope = max(offset, 0.0), max(equivalent.scale, 0.0)

        def rest(rows: Tensor, memory: int, *, shared: bool) -> Tensor:
            cross = problem.cross(rows, chosen, memory, shared=shared).to_dense()
            return cross.addmm_(rows, chosen.T, alpha=-slope).sub_(offset)

        values, vectors = torch.linalg.eigh(rest(chosen, memory, shared=True))
        # the rest need not be a kernel: what is no larger than its negative part says nothing
        kept = values > max(DROPPED * float(values[-1]), -2 * float(values[0]))
        inverse = problem.processes.broadcast(vectors[:, kept] / values[kept].sqrt())

        def features(rows: Tensor, memory: int) -> Tensor:
            constant = rows.new_full((len(rows), 1), offset**0.5)
            others = rest(rows, memory, shared=False) @ inverse
            return torch.cat([constant, slope**0.5 * rows, others], dim=1)

        width = 1 + problem.x.shape[1] + inverse.shape[1]
        return _of_features(problem, features, width, memory)

    def size_in_bytes(self, problem: Problem) -> int:
        """This process's rows of the columns, and small matrices."""
        return _bytes(problem, min(self.rank, problem.size) + problem.x.shape[1] + 1)


def _check_choice(given: Nystrom | CombinedPreconditioner) -> None:
    for name, least in (("rank", 1), ("seed", 0)):
        object.__setattr__(given, name, integer(name, getattr(given, name), at_least=least))


def _indices(labels: Labels | None) -> Tensor | None:
    return None if labels is None else class_indices(labels, classes_of(labels))


def _shown(labels: Labels | None) -> str:
    return "" if labels is None else f"labels of {len(labels)} samples"


def _bytes(problem: Problem, width: int, precision: torch.dtype = torch.float64) -> int:
    """Columns, of which each process has its rows, and small matrices."""
    columns = precision.itemsize * problem.size * width // problem.processes.size
    return columns + 4 * 8 * width**2


def _largest(problem: Problem) -> float:
    return float(problem.diagonal.max()) or 1.0


def _equivalent(problem: Problem, labels: Labels | None) -> tuple[EquivalentOperator, float]:
    """The high-dimensional equivalent of the kernel as it is, not centered, and its offset."""
    if labels is not None and len(labels) != problem.size:
        raise ValueError(
            f"labels must be as many as inputs, got {len(labels)} for {problem.size} inputs"
        )
    if isinstance(problem.function, ImageKernels):
        raise TypeError(
            "preconditioner must be a Nystrom for images, whose kernels have no high-dimensional "
            "equivalent"
        )
    if problem.size == 1:
        raise ValueError(
            "preconditioner must be a Nystrom or simpler for one sample, which has no "
            "high-dimensional equivalent"
        )
    # misfits are not told of: a preconditioner may be wrong, only not too much
    both, _ = unchecked_equivalent(problem.function, problem.x, labels, center=False)
    c = both.coefficients
    return (both.ck, both.ntk)[problem.kernel], (c.ck, c.ntk)[problem.kernel].offset


def _samples(problem: Problem, rank: int, seed: int) -> Tensor:
    """Random ones."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(problem.size, generator=generator)[:rank]
    return problem.x[chosen.to(problem.x.device)]


def _of_features(
    problem: Problem,
    features: Callable[[Tensor, int], Tensor],
    width: int,
    memory: int,
    precision: torch.dtype = torch.float64,
) -> Columns:
    r"""$FF^T + \rho I$, where $\rho$ is $\lambda$ and the mean of what $FF^T$ leaves.

    Args:
        problem: Whose processes share the rows.
        features: $F$ of some inputs, computed in so many bytes.
        width: How many columns it has.
        memory: Bytes for some rows.
        precision: To which they are rounded.
    """
    largest, processes = _largest(problem), problem.processes
    own = problem.x[processes.part(problem.size)]
    columns = torch.empty(len(own), width, dtype=precision, device=own.device)
    gram = torch.zeros(width, width, dtype=torch.float64, device=own.device)
    step = max(1, min(_ROWS, memory // (64 * width)))
    for start in range(0, len(own), step):
        some = columns[start : start + step]
        # of at most one, which half precision has room for
        some.copy_(features(own[start : start + step], memory // 2) / largest**0.5)
        rounded = some.double()
        gram.addmm_(rounded.T, rounded)
    processes.agree({"width": width})
    processes.sum(gram)
    left = float(problem.diagonal.sum() / largest - gram.trace()) / problem.size
    shift = max(max(left, 0.0) + problem.ridge / largest, DROPPED * float(gram.trace()))
    outside = shift or 1.0  # of a matrix of zeros: any
    return Columns(columns, gram, outside, largest, processes, problem.size)
