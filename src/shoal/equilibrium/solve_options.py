"""What the solves inside a differentiable equilibrium share."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from shoal.core.torch_compat import is_wrapped
from shoal.equilibrium.cuda_graphs.recurring import Recurrences, Recurring
from shoal.equilibrium.methods import Gradient, Implicit, Unrolled, exact_gradient
from shoal.equilibrium.solvers.base import Solver
from shoal.equilibrium.solvers.driver import Outcome, drive_through
from shoal.equilibrium.solvers.picard import DampedPicard, Picard
from shoal.equilibrium.solvers.problem import LinearProblem, Problem, row_sizes
from shoal.equilibrium.solvers.records import PATIENCE
from shoal.equilibrium.solvers.solution import OnFailure, Solution, SolveLog, handle_failure
from shoal.equilibrium.solvers.status import Status
from shoal.equilibrium.solvers.warm import Recall, WarmStart


@dataclass(frozen=True, eq=False)
class SolveOptions:
    """How to solve, forward and backward, and what to do if that fails.

    Attributes:
        solver: The method of the forward pass.
        fallbacks: What goes on where it fails, one after the other, in both passes.
        gradient: How to differentiate.
        on_failure: What to do about samples that do not converge, in both passes.
        warm: Where to start from, if similar problems were solved before.
        log: Where the outcomes are written.
        known: What is known of solves that recur, with their graphs.
    """

    solver: Solver = field(default_factory=Picard)
    fallbacks: tuple[Solver, ...] = field(default=(), kw_only=True)
    gradient: Gradient = field(default_factory=Implicit)
    on_failure: OnFailure = "warn"
    warm: WarmStart | None = None
    log: SolveLog = field(default_factory=SolveLog)
    known: Recurrences = field(default_factory=Recurrences, kw_only=True)

    def __post_init__(self) -> None:
        """See that the solver can be differentiated that way."""
        unrolled = isinstance(self.gradient, Unrolled)
        if unrolled and not isinstance(self.solver, Picard | DampedPicard):
            raise ValueError(
                "gradient must be Implicit() or OneStep() for the solver "
                f"{type(self.solver).__name__}, got Unrolled(), which is for Picard and "
                "DampedPicard: Implicit() is exact with every solver"
            )

    def solve_forward(self, problem: Problem, start: Tensor) -> Outcome:
        """Solve for the fixed point."""
        recall = None if self.warm is None else self.warm.forward
        guess = None if recall is None else recall.guess(start)
        solvers = (self.solver, *self.fallbacks)
        start, expected = _begin(start, guess, recall)
        recurring = problem.recurring(self.solver, start, self.known)
        outcome = _driven(problem, solvers, start, expected, recurring)
        # detached: autograd will attach the graph to the value itself, and logs must not hold it
        value = outcome.solution.value.detach()
        _keep(recall, outcome, value)
        solution = outcome.solution.with_value(value)
        tried = None if isinstance(self.gradient, Unrolled) else solvers  # which refuses the others
        self.report("forward", solution, converged=outcome.converged, tried=tried)
        return outcome

    def solve_backward(self, equation: LinearProblem) -> Outcome:
        """Solve a linear equation of the implicit gradient.

        Samples that fail get the iterate of least residual, or zero, as the gradient method says.
        A right-hand side that is not finite is passed on as it is, as gradient scalers expect.

        Args:
            equation: The equation. Its right-hand side may be of any size: each row is solved for
                at size one, so that no gradient is too small to be exact; where samples may see
                each other, all of it is.
        """
        recall = None if self.warm is None else self.warm.backward
        gradient = self.gradient if isinstance(self.gradient, Implicit) else Implicit()
        several = (gradient.adjoint_solver(one) for one in (self.solver, *self.fallbacks))
        solvers = tuple(dict.fromkeys(several))  # the gradient's own one once
        at_once = equation.recurring(solvers[0], None, self.known) if recall is None else None
        outcome = None if at_once is None else at_once.run()
        if outcome is None:
            outcome = self._solve_scaled(equation, solvers, recall)
            if at_once is not None:
                at_once.learn(outcome)
        found = outcome.solution
        kept = found.with_value(found.value.detach())
        self.report("backward", kept, converged=outcome.converged, tried=solvers)
        return outcome

    def _solve_scaled(
        self, equation: LinearProblem, solvers: Sequence[Solver], recall: Recall | None
    ) -> Outcome:
        """Solve a linear equation at size one."""
        right = equation.right
        size, finite = row_sizes(right)
        if equation.may_mix:  # rows in different units must not send each other anything
            size = size.masked_fill(~finite, 0.0).amax().expand_as(size)
        unit = (right / size).masked_fill(~finite, 0.0)
        problem = equation.with_right(unit)
        guess = None if recall is None else recall.guess(unit, linear=True)
        start, expected = _begin(unit, guess, recall)
        recurring = None if guess is None else problem.recurring(solvers[0], start, self.known)
        outcome = _driven(problem, solvers, start, expected, recurring)
        found = outcome.solution
        _keep(recall, outcome, found.value, unit)
        if self.gradient.failed == "zero" and not outcome.converged:
            found = _without_failures(found, unit)
        found = replace(
            found,
            value=torch.where(finite, found.value * size, right),
            residual=(found.residual * size[:, 0]).masked_fill(~finite[:, 0], 0.0),
        )
        return replace(outcome, solution=found)

    def report(
        self,
        where: str,
        found: Solution,
        *,
        converged: bool,
        tried: Sequence[Solver] | None = None,
    ) -> None:
        """Log an outcome, and raise or warn if there is something to say of it.

        Args:
            where: ``"forward"`` or ``"backward"``.
            found: The outcome.
            converged: Whether all samples converged.
            tried: The solvers that were used; ``None`` if another one would not be taken.
        """
        if self.log.keep(where, found, converged=converged):
            names = {
                "forward": "The equilibrium",
                "backward": "The backward pass of the equilibrium",
            }
            known = None if tried is None else [type(solver).__name__ for solver in tried]
            handle_failure(found, self.on_failure, names[where], tried=known)

    def held(self, z: Tensor, found: Solution) -> Tensor:
        """A solution without the gradient of the samples that failed, if those shall have none.

        Args:
            z: The solution, of shape (samples, size), with a gradient.
            found: How the solve of each sample ended.
        """
        if self.gradient.failed == "best":
            return z
        return torch.where(found.converged[:, None], z, z.detach())

    def attached(self, found: Solution, followed: Tensor) -> Tensor:
        """A solution with the gradient of steps that autograd has followed.

        Args:
            found: The solution, without a gradient.
            followed: The same, or one step further, with one.
        """
        change = followed - followed.detach()
        # where the map is not finite, no gradient is
        change = torch.where((found.status != Status.NOT_FINITE)[:, None], change, 0.0)
        return self.held(found.value.detach() + change, found)

    def exact(self, *, silent: bool) -> "SolveOptions":
        """These options with exact gradients, for measuring a network.

        Args:
            silent: Whether failures may be left to a status. That is logged apart from training, so
                that nobody may see it.
        """
        on_failure = self.on_failure
        if on_failure == "status" and not silent:
            on_failure = "warn"
        gradient = exact_gradient(self.gradient)
        fallbacks, known = self.fallbacks, self.known
        return SolveOptions(self.solver, gradient, on_failure, fallbacks=fallbacks, known=known)

    def without_recall(self) -> "SolveOptions":
        """These options for a problem that is not the next of a series."""
        return self.with_recall(None)

    def with_recall(self, warm: WarmStart | None) -> "SolveOptions":
        """These options with a memory of earlier solves, or without one."""
        if warm is self.warm:
            return self
        return replace(self, warm=warm)


def _begin(start: Tensor, guess: Tensor | None, recall: Recall | None) -> tuple[Tensor, int]:
    """Where to start, and after how many steps it may be done: half as many as last time."""
    return (start, PATIENCE) if guess is None or recall is None else (guess, recall.steps // 2)


def _driven(
    problem: Problem,
    solvers: Sequence[Solver],
    start: Tensor,
    expected: int,
    recurring: Recurring | None,
) -> Outcome:
    """Solve at once where that is known to do, else step by step."""
    outcome = None if recurring is None else recurring.run()
    if outcome is None:
        outcome = drive_through(problem, solvers, start, expected)
        if recurring is not None:
            recurring.learn(outcome)
    return outcome


def _without_failures(found: Solution, right: Tensor) -> Solution:
    """The solution of a linear equation with zeros for the samples that failed."""
    residual: Tensor = torch.linalg.vector_norm(right, dim=1)
    return replace(
        found,
        value=torch.where(found.converged[:, None], found.value, 0.0),
        residual=torch.where(found.converged, found.residual, residual.to(found.residual.dtype)),
    )


def _keep(
    recall: Recall | None, outcome: Outcome, value: Tensor, right: Tensor | None = None
) -> None:
    """Remember a solution; after a failure start afresh."""
    if recall is None:
        return
    if not outcome.converged or is_wrapped(value):
        recall.clear()
    else:
        recall.remember(value, right, steps=outcome.solution.evaluations - 1)
