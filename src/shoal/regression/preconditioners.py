r"""Matrices near $K + \lambda I$ that are easy to invert."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.checks import real, shaped
from shoal.equivalents import EquivalentOperator
from shoal.equivalents.equivalent import unchecked_equivalent
from shoal.regression.problem import Problem

__all__ = ["Diagonal", "LowRank", "Preconditioner", "preconditioner", "preconditioner_bytes"]

Preconditioner = Literal["equivalent", "nystrom", "combined", "diagonal"]

_DROPPED = 1e-12  # eigenvalues, relative to the largest, that are rounding


@dataclass(frozen=True, eq=False)
class Diagonal:
    """A diagonal matrix.

    Attributes:
        values: The diagonal. shape: (n,)
    """

    values: Tensor

    def __post_init__(self) -> None:
        shaped(
            "values",
            self.values,
            None,
        )

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


@dataclass(frozen=True, eq=False)
class LowRank:
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
        shaped(
            "values",
            self.values,
            self.vectors.shape[1],
        )
        real("outside", self.outside, above=0)

    @classmethod
    def shifted(cls, vectors: Tensor, values: Tensor, shift: float) -> "LowRank":
        r"""$U \Theta U^T + \rho I$ with $\Theta \geq 0$, and $\rho$ a shift above rounding.

        Without a ridge the shift may be zero: what the columns leave is then not known to be less
        than the rounding of what they hold.
        """
        shaped(
            "values",
            values,
            None,
        )
        shift = real("shift", shift, at_least=0)
        largest = float(values.max()) if len(values) else 0.0
        outside = max(shift, _DROPPED * largest) or 1.0  # of a matrix of zeros: any
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

    def _function(self, vectors: Tensor, inside: Tensor, outside: float) -> Tensor:
        shaped("vectors", vectors, len(self.vectors), None)
        parts = (inside - outside)[:, None] * (self.vectors.T @ vectors)
        return outside * vectors + self.vectors @ parts


def preconditioner(
    name: Preconditioner | None, problem: Problem, rank: int, seed: int, memory: int
) -> Diagonal | LowRank:
    """The matrix of that name; kernels for it are computed in ``memory`` bytes more than it has."""
    if name == "equivalent":
        return _of_equivalent(problem)
    if name == "nystrom":
        return _of_features(problem, _nystrom(problem, rank, seed, memory))
    if name == "combined":
        return _combined(problem, rank, seed, memory)
    own = problem.diagonal + problem.ridge
    return Diagonal(own.where((own > 0) & (name == "diagonal"), 1.0))  # zero inputs, no ridge


def preconditioner_bytes(name: Preconditioner | None, problem: Problem, rank: int) -> int:
    """What making it takes: features, as often as there are copies of them, and small matrices."""
    count, features = problem.size, problem.x.shape[1]
    rank = min(rank, count)
    columns = {"nystrom": (2, rank), "combined": (3, rank + features + 1)}
    columns["equivalent"] = (5, min(count, features + 8))
    copies, width = columns.get(name or "", (2, 1))
    return 8 * (copies * count * width + 4 * width**2)


def _equivalent(problem: Problem) -> tuple[EquivalentOperator, float]:
    """The high-dimensional equivalent of the kernel as it is, not centered, and its offset."""
    # misfits are not told of: a preconditioner may be wrong, only not too much
    both, _ = unchecked_equivalent(
        problem.architecture,
        problem.x,
        problem.labels,
        trainable=problem.trainable,
        width=problem.width,
        center=False,
    )
    c = both.coefficients
    return (both.ck, both.ntk)[problem.kernel], (c.ck, c.ntk)[problem.kernel].offset


def _of_equivalent(problem: Problem) -> LowRank:
    """Negative eigenvalues, if there are any, count as zero."""
    chosen, _ = _equivalent(problem)
    values, small = torch.linalg.eigh(chosen.basis.compress(chosen.scale, chosen.core))
    padded = small.new_zeros(problem.size, len(small))
    padded[: len(small)] = small
    vectors = chosen.basis.rotate(padded, back=True)
    shift = max(chosen.shift, 0.0) + problem.ridge
    return LowRank.shifted(vectors, values.clamp_min(0.0), shift)


def _nystrom(
    problem: Problem, rank: int, seed: int, memory: int, offset: float = 0.0, slope: float = 0.0
) -> Tensor:
    r"""Features whose inner products are a kernel projected to random samples.

    The kernel is $k(x, x')$ less an offset and a multiple of $x^T x'$.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(problem.size, generator=generator)[:rank].to(problem.x.device)
    cross = problem.cross(problem.x, problem.x[chosen], memory).to_dense()
    if slope or offset:
        cross.addmm_(problem.x, problem.x[chosen].T, alpha=-slope).sub_(offset)
    values, vectors = torch.linalg.eigh(cross[chosen])
    # the rest of a kernel need not be one: what is no larger than its negative part says nothing
    kept = values > max(_DROPPED * float(values[-1]), -2 * float(values[0]))
    features: Tensor = cross @ (vectors[:, kept] / values[kept].sqrt())
    return features


def _combined(problem: Problem, rank: int, seed: int, memory: int) -> LowRank:
    """The part of the equivalent that is linear in the inputs, and a projection of the rest.

    For inputs of one norm the rest is a kernel too: all coefficients of its power series in the
    inner product are positive (Schoenberg).
    """
    chosen, offset = _equivalent(problem)
    offset, slope = max(offset, 0.0), max(chosen.scale, 0.0)
    rest = _nystrom(problem, rank, seed, memory, offset, slope)
    constant = problem.x.new_full((problem.size, 1), offset**0.5)
    return _of_features(problem, torch.cat([constant, slope**0.5 * problem.x, rest], dim=1))


def _of_features(problem: Problem, features: Tensor) -> LowRank:
    r"""$FF^T + \rho I$, where $\rho$ is $\lambda$ and the mean of what $FF^T$ leaves."""
    values, small = torch.linalg.eigh(features.T @ features)
    kept = values > _DROPPED * values[-1:]
    values, small = values[kept], small[:, kept]
    left = float(problem.diagonal.sum() - values.sum()) / problem.size
    vectors = features @ (small / values.sqrt())
    return LowRank.shifted(vectors, values, max(left, 0.0) + problem.ridge)
