r"""Ways to solve $(K + \lambda I) X = B$, with their options, and the prepared system."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core.checks import integer, one_of, real, shown
from shoal.core.exceptions import ConvergenceError
from shoal.core.measuring import now
from shoal.core.processes import Processes
from shoal.learning.decomposition import ShiftedDecomposition
from shoal.learning.problem import RegressionProblem
from shoal.numerics import (
    CholeskyFactor,
    DiagonalOperator,
    LinearSolve,
    LowRankPlusIdentity,
    conjugate_gradients,
)
from shoal.numerics.krylov import Invertible, Map

_LEAST = 2**21  # bytes with which strips of a matrix are still worth their while
_REFINEMENTS = 100  # most steps with a factor; more than a few mean that it is useless
_BLOCK = {"cpu": 2**28, "cuda": 2**32}  # most bytes for work with new inputs
_COLUMN_ROWS = 2**13  # of a preconditioner that are made together
_JITTER = 1e-10  # relative to the diagonal
_ROUNDING = 1e-12  # eigenvalues, relative to the largest, that are rounding
_WORK = {"cpu": 2**29, "cuda": 6 * 2**30}  # for strips and panels, besides the matrix


class Progress(NamedTuple):
    """Progress of a regression.

    Attributes:
        stage: ``"form"``, ``"factor"``, ``"precondition"`` or ``"solve"``.
        share: Finished part of the stage, between 0 and 1; for a solve, in digits of the
            residual.
        step: Steps of conjugate gradients.
        residual: The largest relative residual, in a solve.
    """

    stage: str
    share: float
    step: int = 0
    residual: float | None = None


Listener = Callable[[Progress], object]


class Constant(NamedTuple):
    r"""The fitted constant $b = h^T y$ of a regression.

    With $G = (K + \lambda I)^{-1}$, coefficients are $\tilde G y$ where
    $\tilde G = G - hh^T/v$: all that is read from $G$ has a correction of rank one.

    Attributes:
        weights: $h = G1/1^TG1$.
        variance: $v = 1/1^TG1$.
    """

    weights: Tensor
    variance: float


@dataclass(frozen=True, eq=False)
class System:
    r"""$K + \lambda I$, ready to be solved.

    Attributes:
        product: $V \mapsto (K + \lambda I) V$, used in the iteration.
        exact: The same in float64, for true residuals, if ``product`` is in float32.
        preconditioner: An approximate inverse.
        rtol: Largest relative residual.
        max_steps: Most steps.
        times: Seconds to form the matrix, and to prepare the preconditioner.
        block: Bytes that work with new inputs may take.
        constant: The fitted constant, once it is known.
    """

    product: Map = field(repr=False)
    exact: Map | None = field(repr=False)
    preconditioner: Invertible = field(repr=False)
    rtol: float
    max_steps: int
    times: tuple[float, float]
    block: int
    constant: Constant | None = None

    @property
    def factor(self) -> CholeskyFactor | ShiftedDecomposition | None:
        """The inverse in float64, if it is known."""
        near = self.preconditioner
        is_inverse = isinstance(near, CholeskyFactor | ShiftedDecomposition)
        return near if is_inverse and near.dtype == torch.float64 else None  # type: ignore[return-value]

    @property
    def columns(self) -> int:
        """Vectors of the size of the problem that :meth:`quadratic` holds for each column."""
        return 4 if self.factor is not None else 12

    def run(self, b: Tensor, listener: Listener = lambda _: None) -> LinearSolve:
        """Iterate until the tolerance is met, or steps are used up."""

        def on_step(step: int, residuals: Tensor) -> None:
            largest = float(residuals.max())
            digits = math.log(max(largest, self.rtol)) / math.log(self.rtol)
            listener(Progress("solve", min(max(digits, 0.0), 1.0), step, largest))

        return conjugate_gradients(
            self.product,
            b,
            preconditioner=self.preconditioner,
            rtol=self.rtol,
            max_steps=self.max_steps,
            exact=self.exact,
            on_step=on_step,
        )

    def fitted(
        self, problem: RegressionProblem, listener: Listener
    ) -> tuple["System", LinearSolve]:
        """Solve for the targets, beside a constant if there is one, which is known from then on."""
        y, near = problem.y, self.factor
        if isinstance(near, ShiftedDecomposition):
            solved = self.run(y, listener)
            system = replace(self, product=near.product)  # which does not keep the matrix
            if problem.center:
                weights, variance = near.along_free()
                system = replace(
                    system, constant=Constant(weights / len(y) ** 0.5, variance / len(y))
                )
            return system, solved
        if not problem.center:
            return self, self.run(y, listener)
        solved = self.run(torch.nn.functional.pad(y, (0, 1), value=1.0), listener)
        alpha, flat = solved.solution.tensor_split([y.shape[1]], 1)
        total = float(flat.sum())
        weights = flat[:, 0] / total if total > 0 else torch.full_like(flat[:, 0], 1 / len(y))
        constant = Constant(weights, 1 / total if total > 0 else math.inf)
        solved = solved._replace(
            solution=alpha - flat * (weights @ y),
            counts=solved.counts[:-1],
            residuals=solved.residuals[:-1],
            history=solved.history[:, :-1],
        )
        return replace(self, constant=constant), solved

    @property
    def _rank_one(self) -> Constant | None:
        """The constant, unless the inverse knows it already."""
        return None if isinstance(self.factor, ShiftedDecomposition) else self.constant

    def quadratic(self, b: Tensor) -> Tensor:
        r"""$b^T \tilde G b$ of each column.

        Raises:
            ConvergenceError: If a system is not solved to the tolerance.
        """
        if self.factor is not None:
            values = self.factor.quadratic(b)
        else:
            solved = self.run(b)
            if not solved.converged:
                raise ConvergenceError(self.explain(solved))
            values = (b * solved.solution).sum(0)
        constant = self._rank_one
        if constant is None:
            return values
        return values - (constant.weights @ b) ** 2 / constant.variance

    def inverse_diagonal(self, name: str) -> Tensor:
        r"""The diagonal of $\tilde G$, for a quantity of this name."""
        values: Tensor = self._require_factor(name).inverse_diagonal()
        constant = self._rank_one
        return values if constant is None else values - constant.weights**2 / constant.variance

    def logdet(self, name: str) -> float:
        r"""$\log\det(K + \lambda I)$; with a constant, that of differences of targets."""
        value: float = self._require_factor(name).logdet()
        constant = self._rank_one
        if constant is None:
            return value
        return value - math.log(constant.variance * len(constant.weights))

    def _require_factor(self, name: str) -> Any:
        if self.factor is None:
            raise ValueError(
                f"{name} requires method='cholesky' in float64, since it is computed from the "
                "factor; estimate_gcv() does not require it"
            )
        return self.factor

    def explain(self, solved: LinearSolve) -> str:
        """Explain why a solution does not meet the tolerance, and list remedies."""
        late = int((~(solved.residuals <= self.rtol)).sum())
        if self.factor is not None:
            return (
                f"the matrix is singular within rounding, with a relative residual of "
                f"{float(solved.residuals.max()):.1e} instead of {self.rtol:.1e}: take a larger "
                "ridge, or leave out equal samples"
            )
        instead = "" if self.exact is None else (
            " take precision=torch.float64, if this one is too low for the ridge;"
        )  # fmt: skip
        return (
            f"{late} of {len(solved.residuals)} right-hand sides have a relative residual of up to "
            f"{float(solved.residuals.max()):.1e} instead of {self.rtol:.1e} after {solved.steps} "
            f"steps:{instead} allow more steps, a better preconditioner (a larger rank), a larger "
            "ridge or tolerance"
        )


@dataclass(frozen=True, kw_only=True)
class Cholesky:
    r"""Form and factor the matrix in place, in $8n^2$ bytes.

    Args:
        precision: The dtype of the factor. With ``torch.float32``, half the memory, solutions are
            refined in float64.
        tolerance: Largest $\|y - (K + \lambda I)\alpha\| / \|y\|$ of each column.
    """

    precision: torch.dtype = torch.float64
    tolerance: float = 1e-6

    name: ClassVar[Literal["cholesky"]] = "cholesky"

    def __post_init__(self) -> None:
        _check(self.precision, self.tolerance)

    def prepared(self, problem: RegressionProblem, report: Listener) -> System:
        """The system with its factor; one in float32 is refined with products in float64."""
        device, begin = problem.x.device, now(problem.x.device)
        report(Progress("form", 0.0))
        matrix = torch.empty(problem.size, problem.size, dtype=self.precision, device=device)
        memory = problem.memory - matrix.nbytes
        operator = problem.operator(memory // 2)
        operator.write(matrix)
        formed = now(device)
        factor = CholeskyFactor(
            matrix,
            problem.diagonal,
            problem.ridge,
            on_panel=lambda share: report(Progress("factor", share)),
        )
        times = (formed - begin, now(device) - formed)
        product = factor.product if factor.dtype == torch.float64 else problem.shifted(operator)
        block = _block(problem, memory // 2)
        return System(product, None, factor, self.tolerance, _REFINEMENTS, times, block)

    def decomposed(
        self, problem: RegressionProblem, matrix: Tensor, near: ShiftedDecomposition, seconds: float
    ) -> System:
        """The system with the eigendecomposition that was made to choose its ridge."""

        def product(vectors: Tensor) -> Tensor:
            image = matrix @ vectors
            return image - image.mean(0) * problem.center + near.ridge * vectors

        block = _block(problem, problem.memory - 2 * near.parts.vectors.nbytes)
        return System(product, None, near, self.tolerance, _REFINEMENTS, (0.0, seconds), block)

    def check_room(self, problem: RegressionProblem) -> None:
        """Refuse a problem whose factor does not fit into its memory."""
        instead = "take shoal.learning.Cholesky(precision=torch.float32), or method='cg'"
        problem.check_room("method='cholesky'", self.needed(problem), instead)

    def needed(self, problem: RegressionProblem) -> int:
        """Bytes of the matrix, and of the work on it."""
        matrix = problem.size**2 * self.precision.itemsize
        return matrix + min(matrix, _WORK.get(problem.x.device.type, 0))


@dataclass(frozen=True)
class Nystrom:
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

    def operator(self, problem: RegressionProblem, memory: int) -> LowRankPlusIdentity:
        r"""The projection $FF^T$, where $F = K_{nm} L^{-T}$ with $LL^T = K_{mm}$.

        The kernel is divided by its largest entry first, so that half precision can hold it.
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
        step = max(1, min(_COLUMN_ROWS, memory // (64 * width)))
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            cross = problem.cross(x[rows], chosen, memory // 2, shared=False).to_dense()
            features = torch.linalg.solve_triangular(factor, cross.T, upper=False).T
            columns[rows] = features / largest**0.5
            rounded = columns[rows].double()
            gram.addmm_(rounded.T, rounded)
        residual = float(problem.diagonal.sum() / largest - gram.trace()) / len(x)
        shift = max(max(residual, 0.0) + problem.ridge / largest, _ROUNDING * float(gram.trace()))
        return LowRankPlusIdentity(columns, gram, shift or 1.0, largest)  # of zeros: any shift

    def size_in_bytes(self, problem: RegressionProblem) -> int:
        """The columns, and small matrices."""
        width = min(self.rank, problem.size)
        return self.precision.itemsize * problem.size * width + 4 * 8 * width**2


@dataclass(frozen=True)
class ConjugateGradients:
    r"""Iterate with products, for which the matrix need not exist as a whole.

    Args:
        preconditioner: A :class:`Nystrom`, or ``None``.
        tolerance: Largest $\|y - (K + \lambda I)\alpha\| / \|y\|$ of each column.
        max_steps: Most steps.
        precision: The dtype in which the matrix is kept and multiplied. With ``torch.float32``
            steps are cheaper and take half the memory, entries that are not kept are made in that
            precision too, and true residuals are computed in float64, two or three times in all:
            from these the iteration starts again (see
            :func:`~shoal.numerics.conjugate_gradients`). It converges where the error of products
            is below half of the ridge. For entries that are not kept, that error is about 1e-8 of
            the diagonal times n, and 1e-4 where inputs have copies.

    Example:
        >>> from shoal.learning import ConjugateGradients, Nystrom
        >>> ConjugateGradients(Nystrom(rank=200, seed=1), tolerance=1e-9).max_steps
        1000
    """

    preconditioner: Nystrom | None = field(default_factory=Nystrom)
    _: KW_ONLY
    tolerance: float = 1e-6
    max_steps: int = 1000
    precision: torch.dtype = torch.float64

    name: ClassVar[Literal["cg"]] = "cg"

    def __post_init__(self) -> None:
        if not isinstance(self.preconditioner, Nystrom | None):
            raise TypeError(
                "preconditioner must be None or a shoal.learning.Nystrom such as "
                f"Nystrom(rank=1000), got {self.preconditioner!r}"
            )
        integer("max_steps", self.max_steps, at_least=1)
        _check(self.precision, self.tolerance)

    def prepared(self, problem: RegressionProblem, report: Listener) -> System:
        """The system with its preconditioner, the matrix being kept as far as it fits."""
        device, begin = problem.x.device, now(problem.x.device)
        report(Progress("precondition", 0.0))
        near: Invertible = DiagonalOperator(torch.ones_like(problem.y[:, 0]))
        memory = problem.memory
        if self.preconditioner is not None:
            memory -= self.preconditioner.size_in_bytes(problem)
            near = self.preconditioner.operator(problem, _block(problem, memory))
        prepared = now(device)
        report(Progress("form", 0.0))
        block = _block(problem, max(memory // 4, _LEAST))
        rounded = self.precision != torch.float64
        aside = max(memory // 16, _LEAST) if rounded else 0  # for true residuals
        operator = problem.operator(memory - block - aside, self.precision)
        operator.keep()
        times = (now(device) - prepared, prepared - begin)
        product = problem.shifted(operator)
        aside = aside if operator.keeps else (memory - block) // 2
        exact = problem.shifted(operator.exact(aside)) if rounded else None
        if problem.processes.size > 1:
            near = _Shared(near, problem.processes)
        return System(product, exact, near, self.tolerance, self.max_steps, times, block)

    def check_room(self, problem: RegressionProblem) -> None:
        """Refuse a problem that has too little memory."""
        strips = max(_LEAST, 64 * problem.size)  # a few rows at once, or one
        near = self.preconditioner
        least = 4 * strips + (0 if near is None else near.size_in_bytes(problem))
        if problem.memory < least:
            words = math.ceil((least + problem.data_bytes) / 2**20)
            raise ValueError(
                f"memory must be at least '{words}MiB' for these inputs and targets and this "
                "preconditioner (a smaller rank takes less), got "
                f"{problem.memory + problem.data_bytes} bytes"
            )


@dataclass(frozen=True, eq=False)
class _Shared:
    """A preconditioner whose solutions all processes receive from the first one."""

    matrix: Invertible
    processes: Processes

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of solutions."""
        return self.matrix.dtype

    def solve(self, vectors: Tensor) -> Tensor:
        """The inverse times columns."""
        return self.processes.broadcast(self.matrix.solve(vectors))


Method = Literal["auto", "cholesky", "cg"] | Cholesky | ConjugateGradients


def chosen_method(method: Method, problem: RegressionProblem) -> Cholesky | ConjugateGradients:
    """The method that was asked for; with ``"auto"`` the factorization, if it fits."""
    if isinstance(method, Cholesky | ConjugateGradients):
        return method
    if not isinstance(method, str):
        raise TypeError(
            f"method must be a Cholesky or ConjugateGradients, or the name of one, got "
            f"{shown(method)}"
        )
    name = one_of("method", method, ("auto", "cholesky", "cg"))
    if name == "auto" and Cholesky().needed(problem) > problem.memory:
        name = "cg"
    return ConjugateGradients() if name == "cg" else Cholesky()


def _check(precision: torch.dtype, tolerance: float) -> None:
    if precision not in (torch.float32, torch.float64):
        raise ValueError(f"precision must be torch.float32 or torch.float64, got {precision!r}")
    real("tolerance", tolerance, above=0.0)


def _block(problem: RegressionProblem, memory: int) -> int:
    """Bytes for work with new inputs."""
    return min(memory, _BLOCK.get(problem.x.device.type, 2**28))
