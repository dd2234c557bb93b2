"""The one loop of all solvers: when to look, which samples are done, and how they ended."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.solvers.base import Solver, State, select
from shoal.solvers.problem import Evaluation, Problem
from shoal.solvers.solution import Solution
from shoal.solvers.status import RUNNING, Status

__all__ = ["Outcome", "drive", "repeat"]

_PATIENCE = 30  # steps without a lower residual after which a sample has stagnated
_LOWER = 0.999  # by which factor it must be lower to count
_WORSE = 1e5  # growth of the residual, or of the iterate, that is divergence
_FALLEN = 1e3  # by which factor a residual falls at least where a large iterate is a solution
_SHRINK = 0.75  # a batch is packed when at most this share of it is left
_SOON = 8.0  # a forecast of so few steps is believed without another look


@dataclass(frozen=True, eq=False)
class Outcome:
    """A solution, and what the problem wanted to keep of it."""

    solution: Solution
    kept: Tensor | None


def drive(problem: Problem, solver: Solver, start: Tensor) -> Outcome:
    """Solve for all rows of ``start``, of shape (samples, size); no graph is built."""
    with torch.no_grad():
        return _Run(problem, solver, start.detach()).finish()


def repeat(problem: Problem, solver: Solver, start: Tensor, steps: int) -> Tensor:
    """Make ``steps`` steps from ``start`` without looking; autograd sees them if it is on."""
    z, state = start, solver.init(start)
    for _ in range(steps):
        z, state, _ = solver.step(problem, state, z, problem.evaluate(z), 0.0)
    return z


class _Run:
    """One solve: the batch as it shrinks, and the books about its samples."""

    def __init__(self, problem: Problem, solver: Solver, start: Tensor) -> None:
        self.solver = solver
        self.problem = problem
        self.z = start
        self.state: State = solver.init(start)
        self.rtol, self.atol = solver.tolerances(start.dtype)
        self.books = _Books(start)
        self.smallest = torch.finfo(start.dtype).tiny
        self.thorough, self.worst = 0, math.inf  # when to judge each sample again
        self.evaluations = 0

    def finish(self) -> Outcome:
        step, look, forecast = 0, 0, _Forecast()
        while True:
            evaluation = self.problem.evaluate(self.z)
            self.evaluations += 1
            if step >= look:
                running, excess = self._look(evaluation, step)
                if running == 0:
                    return self.books.outcome(self.evaluations)
                evaluation = self._pack(evaluation, running)
                ahead = forecast.steps(step, excess) if self.solver.steady else 1
                look = min(step + ahead, self.solver.max_steps)
            self.z, self.state, products = self.solver.step(
                self.problem, self.state, self.z, evaluation, self.worst
            )
            self.evaluations += products
            step += 1

    def _look(self, evaluation: Evaluation, step: int) -> tuple[int, float]:
        """Judge all samples; how many run on, and by what factor the worst is off."""
        residual = torch.linalg.vector_norm(evaluation.value - self.z, dim=1)
        size = torch.linalg.vector_norm(self.z, dim=1)
        bound = (self.rtol * size).add_(self.atol).clamp_min_(self.smallest)
        excess = residual / bound
        if step < min(self.thorough, self.solver.max_steps):
            # mostly it is enough to know how far the worst is off: two numbers from the device
            count, worst = torch.stack([(excess > 1).sum().to(size.dtype), excess.amax()]).tolist()
            if 1 < worst < self.worst and count > _SHRINK * len(self.z):
                self.worst = worst
                return len(self.z), worst
        self.thorough = step + _PATIENCE // 3
        codes = self.books.judge(residual, size, excess, step, self.solver.max_steps)
        running = codes == RUNNING
        worst_running = torch.where(running, excess, 0.0).amax()
        count, self.worst = torch.stack([running.sum().to(excess.dtype), worst_running]).tolist()
        self.books.close(codes, self.z, evaluation.kept, residual, step, int(count))
        return int(count), self.worst

    def _pack(self, evaluation: Evaluation, running: int) -> Evaluation:
        """Drop the samples that are done, if they are many enough to be worth it."""
        if running > _SHRINK * len(self.z):
            return evaluation
        index = self.books.open_rows()
        problem = self.problem.rows(index)
        if problem is None:
            return evaluation
        self.problem, self.z = problem, self.z.index_select(0, index)
        self.state = select(self.state, index)
        self.books.pack(index)
        kept = None if evaluation.kept is None else evaluation.kept.index_select(0, index)
        return Evaluation(evaluation.value.index_select(0, index), kept)


class _Forecast:
    """After how many steps it pays to look again, if the residual falls at a steady rate."""

    def __init__(self) -> None:
        self.last: tuple[int, float] | None = None

    def steps(self, step: int, excess: float) -> int:
        last, self.last = self.last, (step, excess)
        if last is None or not 1 < excess < last[1] < math.inf:
            return 1
        rate = math.log(last[1] / excess) / (step - last[0])
        left = math.log(excess) / rate
        # halfway first, as rates change, but no longer than divergence may go unnoticed
        ahead = left if left <= _SOON else left / 2
        return max(1, min(math.ceil(ahead), _PATIENCE))


class _Books:
    """What is known of each sample: its best residual, and the outcome of those that are done."""

    def __init__(self, start: Tensor) -> None:
        count, device = len(start), start.device
        self.rows: Tensor | None = None  # which samples the batch holds; None means all
        self.codes = torch.full((count,), RUNNING, dtype=torch.int8, device=device)
        self.best = start.new_full((count,), torch.inf)
        self.best_step = torch.zeros(count, dtype=torch.int32, device=device)
        self.largest = start.new_full((count,), torch.inf)  # size that counts as divergence
        self.start = self.best  # the first residual
        self.first = True
        self.status = self.codes.clone()
        self.steps = torch.zeros(count, dtype=torch.int32, device=device)
        self.residual = start.new_zeros(count)
        self.value: Tensor | None = None
        self.kept: Tensor | None = None

    def judge(
        self, residual: Tensor, size: Tensor, excess: Tensor, step: int, max_steps: int
    ) -> Tensor:
        """The codes of the batch's samples; those that were done before keep theirs."""
        if self.first:
            self.first, self.start = False, residual
            self.largest = _WORSE * torch.maximum(size, residual)
        lower = residual < _LOWER * self.best
        # on the way to infinity any residual becomes small, relatively, without falling
        escaped = (size > self.largest) & (residual > self.start / _FALLEN)
        diverged = escaped | (residual > _WORSE * self.best)
        self.best = torch.where(lower, residual, self.best)
        self.best_step = torch.where(lower, step, self.best_step)
        codes = torch.full_like(self.codes, RUNNING if step < max_steps else Status.OUT_OF_STEPS)
        codes.masked_fill_(step - self.best_step >= _PATIENCE, Status.STAGNATED)
        codes.masked_fill_(diverged, Status.DIVERGED)
        codes.masked_fill_(~torch.isfinite(residual), Status.NOT_FINITE)
        codes.masked_fill_((excess <= 1) & ~escaped, Status.CONVERGED)
        return torch.where(self.codes == RUNNING, codes, self.codes)

    def close(
        self,
        codes: Tensor,
        z: Tensor,
        kept: Tensor | None,
        residual: Tensor,
        step: int,
        running: int,
    ) -> None:
        """Write down the outcome of the samples that are done with this step."""
        if self.value is None and running == 0:  # all at once: nothing to be copied
            self.status, self.residual, self.value, self.kept = codes, residual, z, kept
            self.steps = torch.full_like(self.steps, step)
            return
        if running == len(codes):
            return
        done = ((codes != RUNNING) & (self.codes == RUNNING)).nonzero()[:, 0]
        self.codes = codes
        if self.value is None:
            self.value = torch.empty_like(z)
            self.kept = None if kept is None else torch.empty_like(kept)
        where = done if self.rows is None else self.rows[done]
        self.value[where] = z[done]
        if kept is not None and self.kept is not None:
            self.kept[where] = kept[done]
        self.status[where], self.residual[where] = codes[done], residual[done]
        self.steps[where] = step

    def open_rows(self) -> Tensor:
        """Which rows of the batch run on."""
        return (self.codes == RUNNING).nonzero()[:, 0]

    def pack(self, index: Tensor) -> None:
        """Keep only some rows of the batch."""
        self.rows = index if self.rows is None else self.rows[index]
        self.codes, self.best = self.codes[index], self.best[index]
        self.best_step, self.largest = self.best_step[index], self.largest[index]
        self.start = self.start[index]

    def outcome(self, evaluations: int) -> Outcome:
        """The end of the solve."""
        assert self.value is not None
        solution = Solution(self.value, self.status, self.residual, self.steps, evaluations)
        return Outcome(solution, self.kept)
