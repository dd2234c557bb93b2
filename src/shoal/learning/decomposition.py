r"""$K = U \Lambda U^T$, from which every ridge and every time of training is read."""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.exceptions import AccuracyError
from shoal.learning.problem import RegressionProblem
from shoal.numerics import Operator

_ARRAYS = 4  # of the size of the matrix: it, its vectors, and work space of the decomposition
EPS = torch.finfo(torch.float64).eps
_SMALL = 1e-150  # targets, whose squares and their sums are numbers still


@dataclass(frozen=True, eq=False)
class Decomposition:
    r"""A positive semidefinite matrix $K = U \Lambda U^T$.

    With a direction $e$ that costs nothing, such as that of a fitted constant, it is the matrix of
    all vectors orthogonal to it: $(I - ee^T) K (I - ee^T)$, with one eigenvalue less.

    Attributes:
        values: $\Lambda$, ascending, not below zero. shape: (m,) with m = n, or n - 1 with $e$
        vectors: $U$. shape: (n, m)
        negative: Size of the least eigenvalue, if rounding made it negative; zero otherwise.
        rounding: Error of the eigenvalues.
        free: $e$, or ``None``. shape: (n,)
        image: $Ke$.

    Example:
        >>> import torch
        >>> parts = Decomposition.from_matrix(torch.tensor([[3.0, 1.0], [1.0, 3.0]]).double())
        >>> parts.values
        tensor([2., 4.], dtype=torch.float64)
        >>> parts.shifted(1.0).solve(torch.tensor([[5.0], [5.0]]).double()).T.round(decimals=9)
        tensor([[1., 1.]], dtype=torch.float64)
    """

    values: Tensor
    vectors: Tensor
    negative: float
    rounding: float
    free: Tensor | None = None
    image: Tensor | None = None

    @classmethod
    def from_matrix(cls, matrix: Tensor, free: Tensor | None = None) -> "Decomposition":
        """Decompose a symmetric matrix in float64.

        Args:
            matrix: The matrix. With ``free`` it is projected in place.
            free: $e$, of norm one.
        """
        scale, image = float(matrix.diagonal().mean()), None
        if free is not None:
            image = matrix @ free
            scale = scale or 1.0  # its negative is an eigenvalue far from all others, to know e by
            half = image - (free @ image - scale) / 2 * free
            matrix.addr_(free, half, alpha=-1).addr_(half, free, alpha=-1)
        values, vectors = torch.linalg.eigh(matrix)
        if free is not None:
            matrix.addr_(scale * free, free)
            values, vectors = values[1:], vectors[:, 1:]
        largest = max(float(values[-1]), scale) if len(values) else scale
        negative = max(0.0, -float(values[0])) if len(values) else 0.0
        rounding = len(matrix) * EPS * largest
        return cls(values.clamp_min(0.0), vectors, negative, rounding, free, image)

    def project(self, b: Tensor) -> Tensor:
        r"""$U^T B$."""
        return self.vectors.T @ b

    def inverse(self, ridge: float) -> Tensor:
        r"""$1/(\Lambda + \lambda)$, or a refusal where that is nothing but rounding."""
        if not float(self.values[0]) + ridge > self.rounding:
            raise AccuracyError(
                f"the kernel matrix plus a ridge of {ridge:.3g} is singular within rounding "
                f"({self.rounding:.1e}): choose a larger ridge, or remove duplicate samples"
            )
        return 1 / (self.values + ridge)

    def inverse_diagonal(self, inverse: Tensor) -> Tensor:
        r"""The diagonal of $U \operatorname{diag}(v) U^T$, for one $v$ or several in columns."""
        return torch.cat([rows.square() @ inverse for rows in self.vectors.split(1024)])

    def shifted(self, ridge: float) -> "ShiftedDecomposition":
        r"""$K + \lambda I$."""
        return ShiftedDecomposition(self, self.inverse(ridge), ridge)


@dataclass(frozen=True, eq=False, repr=False)
class ShiftedDecomposition(Operator):
    r"""$K + \lambda I$, whose inverse is known.

    Attributes:
        parts: $K$.
        inverse: $1/(\Lambda + \lambda)$. shape: (m,)
        ridge: $\lambda$.
    """

    parts: Decomposition
    inverse: Tensor
    ridge: float

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return torch.Size((len(self.parts.vectors),) * 2)

    @property
    def _entries(self) -> Tensor:
        return self.inverse

    def product(self, vectors: Tensor) -> Tensor:
        r"""$(K + \lambda I) V$."""
        return self.parts.vectors @ (self.parts.project(vectors) / self.inverse[:, None])

    _product = product

    def solve(self, b: Tensor) -> Tensor:
        r"""$(K + \lambda I)^{-1} B$."""
        return self.parts.vectors @ (self.parts.project(b) * self.inverse[:, None])

    def quadratic(self, b: Tensor) -> Tensor:
        r"""$b^T (K + \lambda I)^{-1} b$ of each column."""
        return self.inverse @ self.parts.project(b).square()

    def inverse_diagonal(self) -> Tensor:
        r"""The diagonal of $(K + \lambda I)^{-1}$."""
        return self.parts.inverse_diagonal(self.inverse)

    def logdet(self) -> float:
        r"""$\log\det(K + \lambda I)$."""
        return -float(self.inverse.log().sum())

    def along_free(self) -> tuple[Tensor, float]:
        r"""Weights $h$ and variance $v$ of the fitted coefficient $h^T y$ of $e$.

        They are $h = Ge/e^TGe$ and $v = 1/e^TGe$ with $G = (K + \lambda I)^{-1}$.
        """
        free, image = self.parts.free, self.parts.image
        assert free is not None
        assert image is not None
        weights = free - self.solve(image[:, None])[:, 0]
        return weights, float(weights @ image) + self.ridge * float(weights @ free)


def check_decomposition(problem: RegressionProblem) -> None:
    """Refuse a problem whose matrix cannot be decomposed, or whose targets cannot be squared."""
    if problem.center and problem.size < 2:
        raise ValueError(
            "x must have at least 2 samples, one to leave out and one to learn from, "
            f"got {problem.size} sample"
        )
    largest = float(problem.y.abs().max())
    if not (largest == 0 or _SMALL <= largest <= 1 / _SMALL):
        side, way = ("over", "down") if largest > 1 else ("under", "up")
        raise AccuracyError(f"the squares of these targets {side}flow: scale y {way}")
    needed = _ARRAYS * 8 * problem.size**2
    problem.check_room(
        "an eigendecomposition", needed, "take fewer samples, or give a number as ridge"
    )


def decompose(problem: RegressionProblem) -> tuple[Tensor, Decomposition]:
    """The matrix of a problem, centered if its targets are, and its decomposition.

    Raises:
        ValueError: If they do not fit into the memory.
        AccuracyError: If the matrix is zero, or if squares of targets overflow or underflow.
    """
    check_decomposition(problem)
    matrix = problem.matrix()
    size, free = problem.size, None
    if problem.center:
        free = matrix.new_full((size,), size**-0.5)
    parts = Decomposition.from_matrix(matrix, free)
    if not problem.center and not float(parts.values[-1]) > 0:
        raise AccuracyError("the kernel matrix is zero, so nothing can be learned")
    return matrix, parts
