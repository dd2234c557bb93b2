"""What the solves inside a differentiable equilibrium share."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.gradients.methods import Gradient, Implicit
from shoal.gradients.warm import Recall, SolveLog, WarmStart
from shoal.solvers import Picard, Solution, Solver
from shoal.solvers.driver import Outcome, drive
from shoal.solvers.problem import Problem
from shoal.solvers.solution import OnFailure, handle_failure

__all__ = ["SolveOptions"]


@dataclass(frozen=True, eq=False)
class SolveOptions:
    """How to solve, forward and backward, and what to do if that fails.

    Attributes:
        solver: The method of the forward pass.
        gradient: How to differentiate.
        on_failure: What to do about samples that do not converge, in both passes.
        warm: Where to start from, if similar problems were solved before.
        log: Where the outcomes are written.
    """

    solver: Solver = field(default_factory=Picard)
    gradient: Gradient = field(default_factory=Implicit)
    on_failure: OnFailure = "raise"
    warm: WarmStart | None = None
    log: SolveLog = field(default_factory=SolveLog)

    def solve_forward(self, problem: Problem, start: Tensor) -> Outcome:
        """Solve for the fixed point."""
        recall = None if self.warm is None else self.warm.forward
        guess = None if recall is None else recall.guess(start)
        outcome = drive(problem, self.solver, start if guess is None else guess)
        # detached: autograd will attach the graph to the value itself, and logs must not hold it
        found = outcome.solution
        value = found.value.detach()
        self.log.forward = Solution(
            value, found.status, found.residual, found.steps, found.evaluations
        )
        _keep(recall, outcome, value)
        if not outcome.converged:
            handle_failure(found, self.on_failure, "The equilibrium")
        return outcome

    def solve_backward(self, problem_of: Callable[[Tensor], Problem], right: Tensor) -> Tensor:
        """Solve a linear equation of the implicit gradient.

        Args:
            problem_of: Makes the equation of its right-hand side.
            right: The right-hand side, of any size: each row is solved for at size one, so that
                no gradient is too small to be exact.
        """
        recall = None if self.warm is None else self.warm.backward
        gradient = self.gradient if isinstance(self.gradient, Implicit) else Implicit()
        size: Tensor = torch.linalg.vector_norm(right, torch.inf, dim=1, keepdim=True)
        size = size.clamp_min_(torch.finfo(right.dtype).tiny)
        unit = right / size
        guess = None if recall is None else recall.guess(unit, linear=True)
        solver = gradient.adjoint_solver(self.solver)
        outcome = drive(problem_of(unit), solver, unit if guess is None else guess)
        found = outcome.solution
        value, residual = found.value * size, found.residual * size[:, 0]
        self.log.backward = Solution(
            value.detach(), found.status, residual, found.steps, found.evaluations
        )
        _keep(recall, outcome, found.value, unit)
        if not outcome.converged:
            what = "The backward pass of the equilibrium"
            handle_failure(self.log.backward, self.on_failure, what)
        return value

    def without_recall(self) -> "SolveOptions":
        """The same for a problem that is not the next of a series."""
        return self.with_recall(None)

    def with_recall(self, warm: WarmStart | None) -> "SolveOptions":
        """The same for a problem of a series, or of none."""
        if warm is self.warm:
            return self
        return SolveOptions(self.solver, self.gradient, self.on_failure, warm, self.log)


def _keep(
    recall: Recall | None, outcome: Outcome, value: Tensor, right: Tensor | None = None
) -> None:
    """Remember a solution; after a failure start afresh."""
    if recall is None:
        return
    if not outcome.converged or torch._C._functorch.is_functorch_wrapped_tensor(value):
        recall.clear()
    else:
        recall.remember(value, right)
