r"""Matrices near $K + \lambda I$ that are easy to invert."""

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from shoal.core.checks import integer
from shoal.equivalents import EquivalentOperator
from shoal.equivalents.equivalent import unchecked_equivalent
from shoal.kernels.image_function import ImageKernels
from shoal.linalg import Columns, Diagonal, LowRank
from shoal.linalg.low_rank import DROPPED
from shoal.mixtures.labels import Labels, class_indices, classes_of
from shoal.regression.problem import Problem

__all__ = [
    "CombinedPreconditioner",
    "DiagonalPreconditioner",
    "EquivalentPreconditioner",
    "Nystrom",
    "Preconditioner",
]

_ROWS = 2**13  # of rounded columns that are made together
_JITTER = 1e-10  # relative to the diagonal


class Preconditioner(ABC):
    r"""How a matrix near $K + \lambda I$ is made that is easy to invert.

    Attributes:
        name: What reports and checkpoints call it.
    """

    name: ClassVar[str]

    @abstractmethod
    def matrix(self, problem: Problem, memory: int) -> Columns | Diagonal | LowRank:
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
        return _bytes(problem, 2, 1)


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
        >>> shoal.ConjugateGradients(shoal.Nystrom(2000)).preconditioner
        Nystrom(rank=2000, seed=0, precision=torch.float64)
    """

    rank: int = 1000
    _: KW_ONLY
    seed: int = 0
    precision: torch.dtype = torch.float64

    name: ClassVar[str] = "nystrom"

    def __post_init__(self) -> None:
        _check_choice(self.rank, self.seed)
        if self.precision not in (torch.float16, torch.float32, torch.float64):
            raise ValueError(
                "precision must be torch.float16, torch.float32 or torch.float64, "
                f"got {self.precision!r}"
            )

    def matrix(self, problem: Problem, memory: int) -> Columns | LowRank:
        """The projection."""
        if self.precision != torch.float64:
            return _rounded_nystrom(problem, self, memory)
        return _of_features(problem, _nystrom(problem, self.rank, self.seed, memory))

    def size_in_bytes(self, problem: Problem) -> int:
        """Features, twice; or once, where they are rounded."""
        rank = min(self.rank, problem.size)
        if self.precision == torch.float64:
            return _bytes(problem, 2, rank)
        return self.precision.itemsize * problem.size * rank + _bytes(problem, 0, 2 * rank)


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

    def matrix(self, problem: Problem, memory: int) -> LowRank:  # noqa: ARG002
        """The equivalent; its negative eigenvalues, if there are any, count as zero."""
        chosen, _ = _equivalent(problem, self.labels)
        values, small = torch.linalg.eigh(chosen.basis.compress(chosen.scale, chosen.core))
        padded = small.new_zeros(problem.size, len(small))
        padded[: len(small)] = small
        vectors = chosen.basis.rotate(padded, back=True)
        shift = max(chosen.shift, 0.0) + problem.ridge
        return LowRank.shifted(vectors, values.clamp_min(0.0), shift)

    def size_in_bytes(self, problem: Problem) -> int:
        """The inputs with a few columns, and their factors."""
        return _bytes(problem, 5, min(problem.size, problem.x.shape[1] + 8))


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
        _check_choice(self.rank, self.seed)
        object.__setattr__(self, "labels", _indices(self.labels))

    def __repr__(self) -> str:
        shown = f", {_shown(self.labels)}" if self.labels is not None else ""
        return f"CombinedPreconditioner(rank={self.rank}, seed={self.seed}{shown})"

    def matrix(self, problem: Problem, memory: int) -> LowRank:
        """Both together."""
        chosen, offset = _equivalent(problem, self.labels)
        offset, slope = max(offset, 0.0), max(chosen.scale, 0.0)
        rest = _nystrom(problem, self.rank, self.seed, memory, offset, slope)
        constant = problem.x.new_full((problem.size, 1), offset**0.5)
        return _of_features(problem, torch.cat([constant, slope**0.5 * problem.x, rest], dim=1))

    def size_in_bytes(self, problem: Problem) -> int:
        """Features, three times."""
        rank = min(self.rank, problem.size)
        return _bytes(problem, 3, rank + problem.x.shape[1] + 1)


def _check_choice(rank: int, seed: int) -> None:
    integer("rank", rank, at_least=1)
    integer("seed", seed, at_least=0)


def _indices(labels: Labels | None) -> Tensor | None:
    return None if labels is None else class_indices(labels, classes_of(labels))


def _shown(labels: Labels | None) -> str:
    return "" if labels is None else f"labels of {len(labels)} samples"


def _bytes(problem: Problem, copies: int, width: int) -> int:
    """Columns, as often as there are copies of them, and small matrices."""
    return 8 * (copies * problem.size * width + 4 * width**2)


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
    # misfits are not told of: a preconditioner may be wrong, only not too much
    both, _ = unchecked_equivalent(problem.function, problem.x, labels, center=False)
    c = both.coefficients
    return (both.ck, both.ntk)[problem.kernel], (c.ck, c.ntk)[problem.kernel].offset


def _nystrom(
    problem: Problem, rank: int, seed: int, memory: int, offset: float = 0.0, slope: float = 0.0
) -> Tensor:
    r"""Features whose inner products are a kernel projected to random samples.

    The kernel is $k(x, x')$ less an offset and a multiple of $x^T x'$.
    """
    chosen = _samples(problem, rank, seed)
    cross = problem.cross(problem.x, problem.x[chosen], memory).to_dense()
    if slope or offset:
        cross.addmm_(problem.x, problem.x[chosen].T, alpha=-slope).sub_(offset)
    values, vectors = torch.linalg.eigh(cross[chosen])
    # the rest of a kernel need not be one: what is no larger than its negative part says nothing
    kept = values > max(DROPPED * float(values[-1]), -2 * float(values[0]))
    features: Tensor = cross @ (vectors[:, kept] / values[kept].sqrt())
    return features


def _samples(problem: Problem, rank: int, seed: int) -> Tensor:
    """Random ones, by their indices."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(problem.size, generator=generator)[:rank].to(problem.x.device)


def _rounded_nystrom(problem: Problem, method: Nystrom, memory: int) -> Columns:
    r"""$F = K_{nm} L^{-T}$ with $LL^T = K_{mm}$, made and rounded some rows at a time."""
    chosen = problem.x[_samples(problem, method.rank, method.seed)]
    rank, largest = len(chosen), float(problem.diagonal.max()) or 1.0
    small = problem.cross(chosen, chosen, memory).to_dense()
    small.diagonal().add_(_JITTER * largest)  # equal samples are no harm
    factor = torch.linalg.cholesky(small)
    columns = torch.empty(problem.size, rank, dtype=method.precision, device=chosen.device)
    gram = torch.zeros_like(small)
    step = max(1, min(_ROWS, memory // (64 * rank)))
    for start in range(0, problem.size, step):
        rows = slice(start, start + step)
        cross = problem.cross(problem.x[rows], chosen, memory // 2).to_dense()
        found = torch.linalg.solve_triangular(factor, cross.T, upper=False).T
        columns[rows] = found / largest**0.5  # of at most one, which half precision has room for
        rounded = columns[rows].double()
        gram.addmm_(rounded.T, rounded)
    left = float(problem.diagonal.sum() / largest - gram.trace()) / problem.size
    outside = max(max(left, 0.0) + problem.ridge / largest, DROPPED * float(gram.trace()))
    return Columns(columns, gram, outside, largest)


def _of_features(problem: Problem, features: Tensor) -> LowRank:
    r"""$FF^T + \rho I$, where $\rho$ is $\lambda$ and the mean of what $FF^T$ leaves."""
    values, small = torch.linalg.eigh(features.T @ features)
    kept = values > DROPPED * values[-1:]
    values, small = values[kept], small[:, kept]
    left = float(problem.diagonal.sum() - values.sum()) / problem.size
    vectors = features @ (small / values.sqrt())
    return LowRank.shifted(vectors, values, max(left, 0.0) + problem.ridge)
