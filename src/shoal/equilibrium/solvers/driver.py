"""The one loop of all solvers: when to look, and when to drop the samples that are done."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from shoal.core.torch_compat import full_precision
from shoal.equilibrium.solvers.base import Solver, State, select
from shoal.equilibrium.solvers.limits import residual_norms
from shoal.equilibrium.solvers.problem import Evaluation, Problem
from shoal.equilibrium.solvers.records import PATIENCE, Outcome, Records
from shoal.equilibrium.solvers.status import Status

__all__ = ["Outcome", "drive", "drive_through", "repeat"]

_SHRINK = 0.75  # a batch is packed when at most this share of it is left
_SOON = 8.0  # a forecast of so few steps is believed without another look


def drive(problem: Problem, solver: Solver, start: Tensor, expected: int = PATIENCE) -> Outcome:
    """Solve for all rows of ``start``, of shape (samples, size); no graph is built.

    Args:
        problem: The map.
        solver: The method.
        start: Where to start.
        expected: After how many steps it may be done, if that is known.
    """
    with torch.no_grad(), full_precision(start):
        outcome = last = _Run(problem, solver, start.detach(), expected).finish()
        # samples that rested while others moved may not be solved beside where these ended
        while problem.may_mix and last.converged and last.best is not None:
            last = _Run(problem, solver, outcome.solution.value, expected).finish()
            outcome = replace(outcome.improved(last), near=last.near)
            if last.converged and int(outcome.solution.steps.max()) > solver.max_steps:
                late = torch.where(last.solution.steps > 0, Status.OUT_OF_STEPS, Status.CONVERGED)
                solution = replace(outcome.solution, status=late.to(torch.int8))
                return replace(outcome, solution=solution, converged=not bool(late.any()))
        return outcome


def drive_through(
    problem: Problem, solvers: Sequence[Solver], start: Tensor, expected: int = PATIENCE
) -> Outcome:
    """Solve by one method, and go on with the next where it fails."""
    outcome = drive(problem, solvers[0], start, expected)
    for solver in solvers[1:]:
        if outcome.converged:
            break
        # samples that have converged are done at once, where they are
        outcome = outcome.improved(drive(problem, solver, outcome.solution.value))
    return outcome


def repeat(problem: Problem, solver: Solver, start: Tensor, steps: Tensor) -> Tensor:
    """Make the steps of a solve again without looking; autograd sees them if it is on.

    Args:
        problem: The map.
        solver: A method whose steps do not depend on how far off a sample is.
        start: Where the solve began.
        steps: How many steps each sample makes. It rests after them, but makes one at least, as
            no step would have no gradient.
    """
    z, state = start, solver.init(start)
    counts = steps.clamp_min(1)
    least, most = (int(bound) for bound in torch.aminmax(counts))
    for made in range(most):
        new, state, _ = solver.step(problem, state, z, problem.evaluate(z), 0.0)
        z = new if made < least else torch.where((counts > made)[:, None], new, z)
    return z


class _Run:
    """One solve: the batch as it shrinks, and the records about its samples."""

    def __init__(self, problem: Problem, solver: Solver, start: Tensor, expected: int) -> None:
        self.solver, self.problem, self.z = solver, problem, start
        self.state: State = solver.init(start)
        self.records = Records(start.shape, solver, start.dtype)
        follows = solver.follows_map(problem) is not None
        self.forecast = _Forecast(min(problem.evaluations_per_look, expected) if follows else 0)
        self.unseen: tuple[Tensor, Evaluation, Tensor] | None = None

    def finish(self) -> Outcome:
        step, look, evaluations = 0, 0, 0
        records, solver = self.records, self.solver
        while True:
            evaluations += 1
            if step < look:
                evaluation = self.problem.evaluate(self.z)
            elif step == 0 and self.forecast.worth:
                evaluation = self.problem.evaluate(self.z)
                self.unseen = self.z, evaluation, residual_norms(evaluation.value, self.z)
                look = min(self.forecast.worth, solver.max_steps)
            else:
                evaluation, near = self.problem.evaluate_to_look(self.z)
                self._look(evaluation, step, together=near is not None or self.problem.may_mix)
                if records.running == 0:
                    return records.outcome(evaluations, near)
                near = None  # whose graph is no longer needed
                evaluation = self._pack(evaluation, records.running)
                ahead = self.forecast.steps(step, records.worst) if solver.steady else 1
                look = min(step + ahead, solver.max_steps)
            self.z, self.state, products = solver.step(
                self.problem, self.state, self.z, evaluation, records.worst
            )
            evaluations += products
            step += 1

    def _look(self, evaluation: Evaluation, step: int, *, together: bool) -> None:
        """Look at the iterate, and at the first one before it if only its norms were formed."""
        records = self.records
        if self.unseen is None:
            records.look(evaluation.value, self.z, evaluation.kept, step, together=together)
            return
        z, first, before = self.unseen
        self.unseen = None
        both = torch.stack([before, residual_norms(evaluation.value, self.z)]).cpu()
        records.look(first.value, z, first.kept, 0, norms=both[0])
        self.forecast.steps(0, records.worst)
        if records.running:
            records.look(evaluation.value, self.z, evaluation.kept, step, norms=both[1])

    def _pack(self, evaluation: Evaluation, running: int) -> Evaluation:
        """Drop the samples that are done, if they are many enough to be worth it."""
        count = len(self.z)
        if running > _SHRINK * count or not self.problem.packing_pays(count - running):
            return evaluation
        index = self.records.pack().to(self.z.device)
        self.problem, self.z = self.problem.rows(index), self.z.index_select(0, index)
        self.state = select(self.state, index)
        kept = None if evaluation.kept is None else evaluation.kept.index_select(0, index)
        return Evaluation(evaluation.value.index_select(0, index), kept)


class _Forecast:
    """After how many steps it pays to look again, if the residual falls at a steady rate.

    Args:
        worth: How many steps cost as much as a look.
    """

    def __init__(self, worth: int) -> None:
        self.worth = worth
        self.last: tuple[int, float] | None = None

    def steps(self, step: int, excess: float) -> int:
        last, self.last = self.last, (step, excess)
        if last is None or not 1 < excess < last[1] < math.inf:
            return max(1, self.worth)
        rate = math.log(last[1] / excess) / (step - last[0])
        left = math.log(excess) / rate
        # halfway first, as rates change, but no longer than divergence may go unnoticed
        ahead = left if left <= _SOON + self.worth else left / 2
        return max(1, min(math.ceil(ahead + self.worth / 4), PATIENCE))
