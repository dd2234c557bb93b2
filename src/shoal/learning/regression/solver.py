r"""Ways to solve $(K + \lambda I) X = B$, with their options, and what is made ready for them."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core.checks import integer, real
from shoal.core.exceptions import ConvergenceError
from shoal.core.measuring import now
from shoal.learning.regression.preconditioners import (
    DiagonalPreconditioner,
    Nystrom,
    Preconditioner,
)
from shoal.learning.regression.problem import Problem
from shoal.numerics import CholeskyFactor, Columns, Diagonal
from shoal.numerics.krylov import Iteration, Map, conjugate_gradients, logdet_samples, relative

_LEAST = 2**21  # bytes with which strips of a matrix are still worth their while
_REFINEMENTS = 1000  # most steps with a factor; more than a few mean that it says nothing
_BLOCK = {"cpu": 2**28, "cuda": 2**32}  # most bytes that work with new inputs takes


class Progress(NamedTuple):
    """How far a regression is.

    Attributes:
        stage: ``"form"``, ``"factor"``, ``"precondition"`` or ``"solve"``.
        share: How much of that is done, between 0 and 1; of a solve, in digits of the residual.
        step: Steps of conjugate gradients.
        residual: The largest relative residual, of a solve.
    """

    stage: str
    share: float
    step: int = 0
    residual: float | None = None


Listener = Callable[[Progress], object]


@dataclass(frozen=True, eq=False)
class Solver:
    r"""A system with its preconditioner.

    Attributes:
        product: $V \mapsto (K + \lambda I) V$, as it is iterated with.
        exact: The same in float64, for true residuals, if ``product`` is not.
        near: The preconditioner.
        rtol: Largest relative residual.
        max_steps: Most steps.
        times: What it took to form the matrix and to prepare the preconditioner.
        block: Bytes that work with new inputs may take.
    """

    product: Map = field(repr=False)
    exact: Map | None = field(repr=False)
    near: CholeskyFactor | Columns | Diagonal = field(repr=False)
    rtol: float
    max_steps: int
    times: tuple[float, float]
    block: int

    @property
    def factor(self) -> CholeskyFactor | None:
        """The factorization in float64, if there is one."""
        near = self.near
        whole = isinstance(near, CholeskyFactor) and near.dtype == torch.float64
        return near if whole else None  # type: ignore[return-value]

    def run(
        self,
        b: Tensor,
        on_step: Callable[[Iteration], object] | None = None,
    ) -> Iteration:
        """Iterate until the tolerance is met, or steps are used up."""
        return conjugate_gradients(
            self.product,
            b,
            precondition=self._precondition,
            rtol=self.rtol,
            max_steps=self.max_steps,
            exact=self.exact,
            on_step=on_step,
        )

    @property
    def columns(self) -> int:
        """How many vectors of the size of the problem :meth:`quadratic` holds for each column."""
        return 4 if self.factor is not None else 12

    def quadratic(self, b: Tensor) -> Tensor:
        r"""$b^T (K + \lambda I)^{-1} b$ of each column.

        Raises:
            ConvergenceError: If a system is not solved to the tolerance.
        """
        if self.factor is not None:
            return self.factor.forward(b).square().sum(0)
        found = self.run(b)
        if not found.converged:
            raise ConvergenceError(explain(found, b, self))
        return (b * found.solution).sum(0)

    @cached_property
    def inverse_diagonal(self) -> Tensor:
        r"""The diagonal of $(K + \lambda I)^{-1}$: squared norms of columns of $L^{-1}$."""
        if self.factor is None:
            raise ValueError("the diagonal of the inverse needs a factorization in float64")
        size = self.factor.shape[0]
        columns = max(1, self.block // 2 // (8 * self.columns * size))
        parts = []
        for start in range(0, size, columns):
            unit = self.factor.matrix.new_zeros(size, min(columns, size - start))
            unit[start : start + columns].fill_diagonal_(1.0)
            parts.append(self.factor.forward(unit).square().sum(0))
        return torch.cat(parts)

    def logdet(self) -> float | None:
        """The logarithm of the determinant, if there is a factorization in float64."""
        return None if self.factor is None else self.factor.logdet()

    def logdet_samples(self, signs: Tensor) -> Tensor:
        """Unbiased samples of it, from columns of random signs."""
        if self.factor is not None:
            return torch.full(signs.shape[1:], self.factor.logdet(), dtype=torch.float64)
        if isinstance(self.near, Columns | Diagonal):
            return logdet_samples(
                self.product, self.near, signs, rtol=self.rtol, max_steps=self.max_steps
            )
        raise ValueError("estimates need method='cg', or a factorization in float64")

    def _precondition(self, residual: Tensor) -> Tensor:
        return self.near.solve(residual.to(self.near.dtype)).to(residual.dtype)


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

    def prepared(self, problem: Problem, memory: int, report: Listener) -> Solver:
        """The system with its factor; one in float32 is refined with products in float64."""
        device = problem.x.device
        begin = now(device)
        report(Progress("form", 0.0))
        matrix = torch.empty(problem.size, problem.size, dtype=self.precision, device=device)
        left = memory - matrix.nbytes
        operator = problem.operator(left // 2)
        operator.write(matrix)
        formed = now(device)
        factor = CholeskyFactor(
            matrix,
            problem.diagonal,
            problem.ridge,
            on_panel=lambda share: report(Progress("factor", share)),
        )
        times = (formed - begin, now(device) - formed)
        whole = self.precision == torch.float64
        product = factor.product if whole else problem.shifted(operator)
        block = _block(problem, left // 2)
        return Solver(product, None, factor, self.tolerance, _REFINEMENTS, times, block)


@dataclass(frozen=True)
class ConjugateGradients:
    r"""Iterate with products, for which the matrix need not exist as a whole.

    Args:
        preconditioner: :class:`Nystrom`, :class:`EquivalentPreconditioner`,
            :class:`CombinedPreconditioner`, :class:`DiagonalPreconditioner`, or none at all with
            ``None``.
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

    preconditioner: Preconditioner | None = field(default_factory=Nystrom)
    _: KW_ONLY
    tolerance: float = 1e-6
    max_steps: int = 1000
    precision: torch.dtype = torch.float64

    name: ClassVar[Literal["cg"]] = "cg"

    def __post_init__(self) -> None:
        if self.preconditioner is not None and not isinstance(self.preconditioner, Preconditioner):
            raise TypeError(
                "preconditioner must be None or one such as shoal.learning.Nystrom(rank=1000), "
                f"got {self.preconditioner!r}"
            )
        integer("max_steps", self.max_steps, at_least=1)
        _check(self.precision, self.tolerance)

    def prepared(self, problem: Problem, memory: int, report: Listener) -> Solver:
        """The system with its preconditioner, the matrix being kept as far as it fits."""
        device = problem.x.device
        begin = now(device)
        report(Progress("precondition", 0.0))
        near: Columns | Diagonal = Diagonal(torch.ones_like(problem.y[:, 0]))
        if self.preconditioner is not None:
            spare = memory - self.preconditioner.size_in_bytes(problem)
            near = _same(self.preconditioner.matrix(problem, _block(problem, spare)), problem)
        prepared = now(device)
        report(Progress("form", 0.0))
        left = memory - _bytes(near)
        block = _block(problem, max(left // 4, _LEAST))
        rounded = self.precision != torch.float64
        aside = max(left // 16, _LEAST) if rounded else 0  # for true residuals
        operator = problem.operator(left - block - aside, self.precision)
        operator.keep()
        times = (now(device) - prepared, prepared - begin)
        product = problem.shifted(operator)
        aside = aside if operator.keeps else (left - block) // 2
        exact = problem.shifted(operator.exact(aside)) if rounded else None
        return Solver(product, exact, near, self.tolerance, self.max_steps, times, block)

    def least_memory(self, problem: Problem) -> int:
        """The fewest bytes with which it is prepared and run."""
        strips = max(_LEAST, 64 * problem.size)  # a few rows at once, or one
        near = self.preconditioner or DiagonalPreconditioner()
        return near.size_in_bytes(problem) + 4 * strips


def _check(precision: torch.dtype, tolerance: float) -> None:
    if precision not in (torch.float32, torch.float64):
        raise ValueError(f"precision must be torch.float32 or torch.float64, got {precision!r}")
    real("tolerance", tolerance, above=0.0)


def _bytes(near: Columns | Diagonal) -> int:
    """What a preconditioner keeps besides a few vectors."""
    return near.columns.nbytes + 2 * near.gram.nbytes if isinstance(near, Columns) else 0


def _same(near: Columns | Diagonal, problem: Problem) -> Columns | Diagonal:
    """A preconditioner that is the same in all processes, to the last bit."""
    same = problem.processes.broadcast
    if isinstance(near, Diagonal):
        return Diagonal(same(near.values))
    outside = float(same(problem.y.new_tensor([near.outside])))
    return replace(near, outside=outside)  # rows are shared, and sums are the same


def _block(problem: Problem, memory: int) -> int:
    """Bytes for work with inputs other than those of the problem."""
    return min(memory, _BLOCK.get(problem.x.device.type, 2**28))


def explain(found: Iteration, b: Tensor, solver: Solver) -> str:
    """What to say of an iteration that did not converge."""
    reached = relative(found.residual, b)
    late = int((~(reached <= solver.rtol)).sum())
    rounded = solver.exact is not None
    instead = " take precision=torch.float64, if this one is too low for the ridge;" * rounded
    return (
        f"{late} of {b.shape[1]} right-hand sides have a relative residual of up to "
        f"{float(reached.max()):.1e} instead of {solver.rtol:.1e} after {found.steps} steps:"
        f"{instead} allow more steps, a better preconditioner (a larger rank), a larger ridge or "
        "tolerance"
    )
