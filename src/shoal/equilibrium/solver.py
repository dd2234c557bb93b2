"""Solvers: a small frozen object with a tolerance and one method that makes a step."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Self, final

import torch
from torch import Tensor

from shoal.core.checks import integer, real
from shoal.equilibrium.problem import Problem

SolverState = Any  # made by the solver itself; tensors in it have one row per sample

_RTOL = {torch.float64: 1e-12, torch.float32: 1e-6}
_COARSE = 1e-2  # for dtypes of eight to eleven bits
_ATOL = 1e-3  # of the relative tolerance: what counts as zero for features of order one


@dataclass(frozen=True)
class Solver(ABC):
    r"""A method that finds fixed points, as an immutable value.

    A sample has converged when $\|f(z) - z\| \le$ ``atol`` + ``rtol`` $\|z\|$, with Euclidean
    norms. By this definition a map without a fixed point whose residual tends to zero converges as
    well. The driver owns the loop, the solver only its step: a custom solver is one subclass.

    Args:
        rtol: The relative tolerance; by default 1e-12 in float64, 1e-6 in float32 and 1e-2 in half
            precision.
        atol: The absolute tolerance; by default a thousandth of ``rtol``, times the size of the
            start or of its residual, whichever is larger, where that is below one.
        max_steps: After how many steps a sample counts as out of steps.
    """

    rtol: float | None = field(default=None, kw_only=True)
    atol: float | None = field(default=None, kw_only=True)
    max_steps: int = field(default=200, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.rtol is not None:
            object.__setattr__(self, "rtol", real("rtol", self.rtol, at_least=0, below=1))
        if self.atol is not None:
            object.__setattr__(self, "atol", real("atol", self.atol, at_least=0))
        object.__setattr__(self, "max_steps", integer("max_steps", self.max_steps, at_least=1))

    def tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        """The relative and the absolute tolerance for iterates of a dtype, of the order of one."""
        rtol = _RTOL.get(dtype, _COARSE) if self.rtol is None else self.rtol
        return rtol, _ATOL * rtol if self.atol is None else self.atol

    def with_tolerances(self, rtol: float | None, atol: float | None) -> Self:
        """This method with other tolerances."""
        return replace(self, rtol=rtol, atol=atol)

    def init(self, z: Tensor) -> SolverState:  # noqa: ARG002
        """The state before the first step; nothing unless a solver remembers something."""
        return None

    @abstractmethod
    def step(
        self, problem: Problem, state: SolverState, z: Tensor, value: Tensor
    ) -> tuple[Tensor, SolverState]:
        """The next iterate and state.

        Args:
            problem: The map; ``problem.evaluate(z)`` and ``problem.derivative_at(z)`` are counted.
            state: From ``init`` or the previous step.
            z: The iterate; shape (samples, size).
            value: The map there.
        """


@final
@dataclass(frozen=True)
class Picard(Solver):
    r"""$z \leftarrow f(z)$: one evaluation and nothing else.

    It converges if $f$ contracts, at the rate $\rho$, the spectral radius of the Jacobian. For
    independent random weights, no method with as many products is much better: the vectors $J^k r$
    are nearly orthogonal with norms $\rho^k$. Their best combination, found by Krylov methods, is
    smaller than the last one only by a factor of $\sqrt{1 - \rho^2}$.

    Example:
        >>> import torch
        >>> from shoal.equilibrium import Picard, solve
        >>> z0 = torch.zeros(1, 1, dtype=torch.float64)
        >>> round(float(solve(torch.cos, z0, solver=Picard()).value), 12)
        0.739085133215
    """

    max_steps: int = field(default=1000, kw_only=True)

    def step(
        self,
        problem: Problem,  # noqa: ARG002
        state: None,
        z: Tensor,  # noqa: ARG002
        value: Tensor,
    ) -> tuple[Tensor, None]:
        """Go where the map says."""
        return value, state


@final
@dataclass(frozen=True)
class DampedPicard(Solver):
    r"""$z \leftarrow \beta z + (1 - \beta) f(z)$: for maps that overshoot.

    It converges if the eigenvalues $\lambda$ of the Jacobian satisfy
    $|\beta + (1 - \beta)\lambda| < 1$: any real $\lambda < 1$, if $\beta$ is near one.

    Args:
        damping: $\beta$, the share of the old state: at least 0 (plain iteration), below 1.

    Example:
        >>> import torch
        >>> from shoal.equilibrium import DampedPicard, solve
        >>> z0 = torch.zeros(1, 1, dtype=torch.float64)
        >>> solution = solve(lambda z: 3 - 2 * z, z0, solver=DampedPicard(damping=0.7))
        >>> round(float(solution.value), 9)
        1.0
    """

    damping: float = 0.5
    max_steps: int = field(default=1000, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        damping = real("damping", self.damping, at_least=0, below=1)
        object.__setattr__(self, "damping", damping)

    def step(
        self,
        problem: Problem,  # noqa: ARG002
        state: None,
        z: Tensor,
        value: Tensor,
    ) -> tuple[Tensor, None]:
        """Go part of the way."""
        return value.lerp(z, self.damping), state


def check_solver(name: str, solver: Solver | None) -> Solver:
    """Return the solver, Picard iteration by default, or refuse another object."""
    if solver is None:
        return Picard()
    if not isinstance(solver, Solver):
        raise TypeError(f"{name} must be a Solver, such as Picard(), got {solver!r}")
    return solver


def row_sizes(residual: Tensor) -> Tensor:
    """The largest entry of each row, one for zeros; shape (samples, 1).

    Methods that form squares divide by the sizes of the first residuals: they would overflow or
    vanish otherwise, in float32 beyond 1e19 and below 1e-19.
    """
    size = residual.abs().amax(1, keepdim=True)
    return torch.where(size > 0, size, 1.0)
