"""Picard iteration, plain and damped."""

import math
from dataclasses import dataclass, field, replace
from typing import final

from torch import Tensor

from shoal.core.checks import flag, integer, real
from shoal.equilibrium.solvers.base import Solver
from shoal.equilibrium.solvers.problem import Evaluation, Problem


@dataclass(frozen=True)
class _Pace:
    """How fast the residual has been falling.

    Attributes:
        excess: By what factor it was off before the last step.
        made: How many iterations that step made.
        rate: The factor per iteration, as measured last; a guess at first.
    """

    excess: float = math.inf
    made: int = 1
    rate: float = 0.4

    def at(self, excess: float) -> "_Pace":
        """The pace after one more measurement."""
        rate = self.rate
        if excess < self.excess < math.inf:
            rate = (excess / self.excess) ** (1 / self.made)
        return _Pace(excess, 1, rate)

    @property
    def steps_left(self) -> int:
        """How many iterations are left at this rate."""
        return math.ceil(math.log(self.excess) / -math.log(min(self.rate, 0.999)))


@final
@dataclass(frozen=True)
class Picard(Solver):
    r"""$z \leftarrow f(z)$: one evaluation and nothing else.

    It converges if $f$ contracts, at the rate $\rho$, the spectral radius of the Jacobian. For
    weights that are independent random numbers nothing that uses as many products does much
    better: the vectors $J^k r$ are nearly orthogonal, of norms $\rho^k$, so the best combination
    of them, which Krylov methods find, is smaller than the last one by $\sqrt{1 - \rho^2}$ only.

    What can be gained is cheaper products. Where a network's layer is evaluated in float32 and the
    device multiplies faster in bfloat16, a step goes on in bfloat16: the change since the last
    evaluation is small, so its rounding is smaller still. Every result is judged by its residual in
    float32.

    Args:
        coarse_steps: How many steps in bfloat16 follow each evaluation at most, zero for none; by
            default a few where that is faster.
        graphs: Whether solves that recur on a GPU may be made as one CUDA graph each, of as many
            steps as the last ones took: for networks of :func:`shoal.build`, and for modules in
            ``Equilibrium(..., graphs=True)``.

    Example:
        >>> import torch
        >>> from shoal.equilibrium import Picard, solve
        >>> z0 = torch.zeros(1, 1, dtype=torch.float64)
        >>> round(float(solve(torch.cos, z0, solver=Picard()).value), 12)
        0.739085133215
    """

    max_steps: int = field(default=1000, kw_only=True)
    coarse_steps: int | None = field(default=None, kw_only=True)
    graphs: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.coarse_steps is not None:
            steps = integer("coarse_steps", self.coarse_steps, at_least=0)
            object.__setattr__(self, "coarse_steps", steps)
        flag("graphs", self.graphs)

    @property
    def steady(self) -> bool:
        """``True``: residuals of a contraction fall at a steady rate."""
        return True

    def follows_map(self, problem: Problem) -> bool | None:
        """Whether graphs are wanted; ``None`` if there are coarse steps."""
        return None if self._coarse_steps(problem) else self.graphs

    def _coarse_steps(self, problem: Problem) -> int:
        return problem.coarse_steps if self.coarse_steps is None else self.coarse_steps

    def init(self, z: Tensor) -> _Pace:  # noqa: ARG002
        """Nothing is known yet."""
        return _Pace()

    def step(
        self, problem: Problem, state: _Pace, z: Tensor, evaluation: Evaluation, excess: float
    ) -> tuple[Tensor, _Pace, int]:
        """Go where the map says, and a little further where that is cheap."""
        most = self._coarse_steps(problem)
        if most == 0 or not 1 < excess < math.inf:
            return evaluation.value, state, 0
        state = state.at(excess)
        count = min(most, state.steps_left - 1)
        further = problem.coarse(z, evaluation, count) if count > 0 else None
        if further is None:
            return evaluation.value, state, 0
        return further, replace(state, made=1 + count), count


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

    @property
    def steady(self) -> bool:
        """``True``: residuals of a contraction fall at a steady rate."""
        return True

    def init(self, z: Tensor) -> None:
        """Nothing is remembered."""

    def step(
        self,
        problem: Problem,  # noqa: ARG002
        state: None,  # noqa: ARG002
        z: Tensor,
        evaluation: Evaluation,
        excess: float,  # noqa: ARG002
    ) -> tuple[Tensor, None, int]:
        """Go part of the way."""
        return evaluation.value.lerp(z, self.damping), None, 0


def without_coarse_steps(solver: Solver) -> Solver:
    """A solver without coarse steps, whose iterates can be repeated one by one."""
    return replace(solver, coarse_steps=0) if isinstance(solver, Picard) else solver
