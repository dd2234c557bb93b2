"""The one loop of all solvers: evaluate, look, step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.torch_compat import full_precision, is_transformed, largest
from shoal.equilibrium.problem import Linearization, Problem
from shoal.equilibrium.solution import Solution, Status
from shoal.equilibrium.solver import Picard, Solver
from shoal.equilibrium.verdict import Verdict


@dataclass(frozen=True, eq=False)
class Outcome:
    """A solution, and how it was reached.

    Attributes:
        solution: The solution.
        converged: Whether all samples converged, without asking the device again.
        best: After how many steps each sample had the value that is returned, if not in the end.
        near: The map near the solution, if the last evaluation has a graph.
    """

    solution: Solution
    converged: bool
    best: Tensor | None = None
    near: Linearization | None = None

    @property
    def reached(self) -> Tensor:
        """After how many steps each sample had the value that is returned."""
        return self.solution.steps if self.best is None else self.best

    def improved(self, later: "Outcome") -> "Outcome":
        """This outcome with the progress of another solve, which began where this one ended."""
        old, new = self.solution, later.solution
        worse = ~new.converged & ~(new.residual <= old.residual)
        solution = Solution(
            torch.where(worse[:, None], old.value, new.value),
            new.status,
            torch.where(worse, old.residual, new.residual),
            old.steps + new.steps,
            old.evaluations + new.evaluations,
            new.note if later.converged else old.note or new.note,
        )
        return Outcome(solution, later.converged, best=self.reached + later.reached)


def drive(problem: Problem, solver: Solver, start: Tensor, *, followed: bool = False) -> Outcome:
    """Solve for all rows of a start; the result has no graph.

    Args:
        problem: The map.
        solver: The method.
        start: Where to begin; shape (samples, size).
        followed: Whether the map near the solution is wanted, so that evaluations that may be the
            last one should have a graph.
    """
    with torch.no_grad(), full_precision(start):
        outcome = last = _driven(problem, solver, start.detach(), followed)
        # samples that rested while others moved may not be solved beside where these ended
        while problem.samples_coupled and last.converged and last.best is not None:
            last = _driven(problem, solver, outcome.solution.value, followed)
            outcome = replace(outcome.improved(last), near=last.near)
            if last.converged and largest(outcome.solution.steps) > solver.max_steps:
                late = torch.where(last.solution.steps > 0, Status.OUT_OF_STEPS, Status.CONVERGED)
                solution = replace(outcome.solution, status=late.to(torch.int8))
                return replace(outcome, solution=solution, converged=not largest(late))
        return outcome


def drive_through(
    problem: Problem, solvers: Sequence[Solver], start: Tensor, *, followed: bool = False
) -> Outcome:
    """Solve by one method, and go on with the next where it fails."""
    outcome = drive(problem, solvers[0], start, followed=followed)
    for solver in solvers[1:]:
        if outcome.converged:
            break
        # samples that have converged are done at once, where they are
        outcome = outcome.improved(drive(problem, solver, outcome.solution.value))
    return outcome


def _driven(problem: Problem, solver: Solver, start: Tensor, followed: bool) -> Outcome:
    recorder = problem.recorder if isinstance(solver, Picard) else None
    recorded = recorder and recorder.solve(problem, solver, start, followed=followed)
    if recorded:
        return Outcome(recorded[0], converged=True, near=recorded[1])
    z, verdict, state, step = start, Verdict(solver, problem), solver.init(start), 0
    transformed = is_transformed(z)  # whose grad modes are not this one's
    while True:
        near = None
        if followed and verdict.may_end:
            near = problem.linearize(z.detach().requires_grad_())
        value = problem.evaluate(z) if near is None else near.value
        value = value if near is None and not transformed else value.detach()
        solution = verdict.look(value, z, step)
        if solution is not None:
            if recorder is not None:
                recorder.learn(problem, solver, start, step if verdict.converged else 0)
            near = near if verdict.reached is None else None
            return Outcome(solution, verdict.converged, verdict.reached, near)
        del near  # whose graph is no longer needed
        z, state = solver.step(problem, state, z, value)
        z = z.detach() if transformed else z
        step += 1


def repeat(problem: Problem, solver: Solver, start: Tensor, steps: Tensor) -> Tensor:
    """Make the steps of a solve again without looking; autograd sees them if it is on.

    Args:
        problem: The map.
        solver: The method.
        start: Where the solve began.
        steps: How many steps each sample makes. It rests after them, but makes one at least, as
            no step would have no gradient.
    """
    z, state = start, solver.init(start)
    counts = steps.clamp_min(1)
    least, most = (int(bound) for bound in torch.aminmax(counts))
    for step in range(most):
        new, state = solver.step(problem, state, z, problem.evaluate(z))
        z = new if step < least else torch.where((counts > step)[:, None], new, z)
    return z
