"""The verdict on a solve: which samples have converged, and how the others ended.

There are two tiers. Each look forms two norms for each sample and reads one number, the largest
ratio of a residual to its tolerance. Mostly it falls, or shows that all have converged. Otherwise,
every fifteenth step, and at the end, the full verdict judges each sample. It is a function of
tensors, which updates the record of each sample by the norms of the step.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.torch_compat import extremes, largest, physical
from shoal.equilibrium.problem import Problem
from shoal.equilibrium.solution import Solution, Status
from shoal.equilibrium.solver import Solver

PATIENCE = 30  # steps without a lower residual after which a sample has stagnated
WORSE = 1e5  # growth of the residual, or of the iterate, that is divergence
_OFTEN = PATIENCE // 2  # steps after which each sample is judged at the latest
_NEARLY = 1.5  # times the tolerance: what a slow iteration may meet in a step
_LOWER = 0.999  # by which factor a residual must be lower to count
_FALLEN = 1e3  # by which factor a residual falls at least where a large iterate is a solution
_STRAIGHT = 0.5  # share of a path's length between its ends, if it leads straight away
_STEADY = 0.9998  # factor of the residual in each step, if it does not fall
_RUNNING = -1  # the code of a sample that has not ended yet
PLAIN = {torch.float64: (1e-120, 1e120), torch.float32: (1e-8, 1e12)}  # sizes with plain squares
_DRIFTS = (
    "The state grows by a constant each iteration: a residual stream without normalization of the "
    "state has no equilibrium; normalize the state, or run a fixed number of iterations"
)


class SampleRecords(NamedTuple):
    """The state of each sample's solve.

    Attributes:
        status: A :class:`Status`, or -1 while the sample runs.
        value: The solution of a sample that has converged, else its best iterate.
        residual: The residual of ``value``.
        reached: The step at which ``value`` was reached.
        steps: The step at which the sample ended.
    """

    status: Tensor
    value: Tensor
    residual: Tensor
    reached: Tensor
    steps: Tensor


class Look(NamedTuple):
    """A look at a step.

    Attributes:
        z: The iterate; shape (samples, size).
        residual: The norm of the residual of each sample.
        size: The norm of the iterate of each sample.
        step: The number of the step.
    """

    z: Tensor
    residual: Tensor
    size: Tensor
    step: int


class Tolerance(NamedTuple):
    """The tolerances of each sample, and the norms at its start.

    Attributes:
        rtol: The relative tolerance.
        atol: The absolute tolerance of each sample.
        first_residual: The first residual of each sample.
        scale: The norm of the start or the first residual, whichever is larger.
        eps: The relative rounding error of a number.
    """

    rtol: float
    atol: Tensor
    first_residual: Tensor
    scale: Tensor
    eps: float

    @classmethod
    def from_solver(
        cls, solver: Solver, first_residual: Tensor, scale: Tensor, dtype: torch.dtype
    ) -> "Tolerance":
        """The tolerances of a solver, for the norms at the start.

        The default absolute tolerance is for solutions of the order of one. It shrinks with smaller
        states, which it would otherwise declare to be zero.
        """
        (rtol, atol), info = solver.tolerances(dtype), torch.finfo(dtype)
        least, wide = info.tiny * info.eps, torch.promote_types(dtype, torch.float32)
        if solver.atol is None:
            rows = (scale * atol).clamp(least, max(atol, least)).to(wide)
        else:
            rows = torch.full_like(scale, max(atol, least), dtype=wide)
        return cls(rtol, rows, first_residual, scale, info.eps)

    def excess(self, residual: Tensor, size: Tensor) -> Tensor:
        """The ratio of each sample's residual to its tolerance."""
        return residual / torch.add(self.atol, size, alpha=self.rtol)

    def escaped(self, residual: Tensor, size: Tensor) -> Tensor:
        """Which samples run to infinity, where residuals become small only relatively, or vanish.

        Beside an iterate that is large enough, rounding leaves nothing of any residual.
        """
        hidden = self.eps * size > self.first_residual  # as rounding would the first step
        far = size > WORSE * self.scale
        return far & (hidden | (residual > self.first_residual / _FALLEN))


def judge(
    records: SampleRecords,
    tolerance: Tolerance,
    look: Look,
    end: int,
    *,
    before: Tensor | None = None,
) -> tuple[SampleRecords, Tensor]:
    """The full verdict: the records after one more step, and the excess of running samples.

    Args:
        records: The records before the step.
        tolerance: The tolerances.
        look: The iterate, and its norms.
        end: The last step.
        before: Residuals of some steps before, if the worst sample still improves: then none has
            diverged, and none has stagnated whose residual changes by more than a factor of two.
    """
    (z, residual, size), step = look[:3], look.step
    running, escaped = records.status == _RUNNING, tolerance.escaped(residual, size)
    excess = tolerance.excess(residual, size)
    converged = (excess <= 1) & ~escaped
    better = (residual < _LOWER * records.residual) & ~escaped
    update = running & (converged | better)
    reached = torch.where(update, step, records.reached)
    best = torch.where(update, residual, records.residual)
    status = torch.full_like(records.status, _RUNNING if step < end else Status.OUT_OF_STEPS)
    stagnated = step - reached >= PATIENCE
    if before is None:
        status = status.masked_fill(stagnated, Status.STAGNATED)
        status = status.masked_fill(escaped | (residual > WORSE * best), Status.DIVERGED)
    else:
        still = (residual < 2 * before) & (before < 2 * residual)
        status = status.masked_fill(stagnated & still, Status.STAGNATED)
    status = status.masked_fill(~residual.isfinite(), Status.NOT_FINITE)
    status = status.masked_fill(converged, Status.CONVERGED)
    status = torch.where(running, status, records.status)
    steps = torch.where(running, step, records.steps)
    value = torch.where(update[:, None], z, records.value)
    off = torch.where(status == _RUNNING, excess.clamp_min(1.0), 0.0)  # one that has escaped runs
    return SampleRecords(status, value, best, reached, steps), off


class Verdict:
    """The looks at one solve, and its end.

    Args:
        solver: The method, with its tolerances and number of steps.
        problem: The map, which counts its evaluations.

    Attributes:
        converged: Whether all samples have converged, once it has ended.
        reached: The step at which each sample reached its value, where some have failed.
    """

    def __init__(self, solver: Solver, problem: Problem) -> None:
        self.solver, self.worst, self.converged = solver, math.inf, False
        self._problem, self._evaluations, self._last_worst = problem, problem.evaluations, math.inf
        self.reached: Tensor | None = None
        self._records: SampleRecords | None = None
        self._norms, self._judged, self._any_failed = plain_norms, 0, False
        self._notes: list[str] = []

    @property
    def may_end(self) -> bool:
        """Whether the next look may be the last one, if the worst sample goes on as it did."""
        return self.worst * self.worst <= self._last_worst < math.inf or self.worst <= _NEARLY

    def look(self, value: Tensor, z: Tensor, step: int) -> Solution | None:
        """The solution, if all samples have ended.

        Args:
            value: The map at the iterate.
            z: The iterate.
            step: Its number, from zero.
        """
        if step == 0:
            return self._begin(value, z)
        residual, size = self._norms(value, z)
        falls = False
        if not self._any_failed:
            worst = largest(self._tolerance.excess(residual, size))
            if worst <= 1 and not self._is_far(size):
                return self._end_together(z, residual, step)
            falls = worst < self.worst and step < self.solver.max_steps
            if falls:
                self._last_worst, self.worst = self.worst, worst
                if step < self._judged + _OFTEN:
                    self._last = Look(z, residual, size, step)
                    return None
        return self._judge(Look(z, *safe_norms(value, z), step), falls=falls)

    def _begin(self, value: Tensor, z: Tensor) -> Solution | None:
        residual, size = plain_norms(value, z)
        first = torch.maximum(residual, size)
        low, high = PLAIN.get(z.dtype, PLAIN[torch.float32])
        least, most = extremes(first)
        if not low <= least <= most <= high:
            residual, size = safe_norms(value, z)
            if not largest(size) < math.inf:
                raise ValueError("z0 must be finite, got NaN or infinity among its entries")
            first = torch.maximum(residual, size)
            zeros = (first == 0) & (z.dtype != torch.float64)  # where no square has vanished
            least, most = extremes(first.masked_fill(zeros, high))
            if not low <= least <= most <= high:
                self._norms = safe_norms
        self._least = least
        self._tolerance = Tolerance.from_solver(self.solver, residual, first, z.dtype)
        self.worst = largest(self._tolerance.excess(residual, size))
        if self.solver.atol:
            self._note_vain(residual, size)
        self._start = self._last = Look(z, residual, size, 0)
        self._before = (0, residual)
        if self.worst <= 1:
            return self._end_together(z, residual, 0)
        return None if most < math.inf else self._judge(self._start)

    def _note_vain(self, residual: Tensor, size: Tensor) -> None:
        """Note how many samples have an absolute tolerance above their start."""
        rtol, atol = self._tolerance.rtol, float(self.solver.atol or 0.0)
        vain = (self._tolerance.scale <= atol) & (residual > rtol * size)
        if largest(vain.to(torch.uint8)):
            count = int(physical(vain).sum())
            self._notes.append(
                f"atol = {atol:g} exceeds the start and its residual for {count} of "
                f"{physical(vain).numel()} samples, which count as converged wherever they are"
            )

    def _is_far(self, size: Tensor) -> bool:
        """Whether an iterate has grown so far that its residual may say little."""
        if largest(size) <= WORSE * self._least:
            return False
        return not largest(torch.sub(size, self._tolerance.scale, alpha=WORSE)) <= 0

    def _judge(self, look: Look, *, falls: bool = False) -> Solution | None:
        """The full verdict; the solution, if no sample runs any more."""
        end, tolerance, residual = self.solver.max_steps, self._tolerance, look.residual
        if self._records is None:
            zero = torch.zeros_like(residual, dtype=torch.int32)
            best = self._start.residual.nan_to_num(math.inf, math.inf)
            running = torch.full_like(zero, _RUNNING, dtype=torch.int8)
            records = SampleRecords(running, self._start.z, best, zero, zero)
            start = self._start
            self._records, _ = judge(records, tolerance, start, end, before=start.residual)
        if not falls and self._judged < self._last.step < look.step:  # it may be the best one
            last = self._last
            self._records, _ = judge(self._records, tolerance, last, end, before=self._before[1])
        before = self._before[1] if falls else None
        self._records, off = judge(self._records, tolerance, look, end, before=before)
        self._judged, self.worst = look.step, largest(off)
        self._any_failed = largest(self._records.status) > Status.CONVERGED
        if self.worst > 0:
            if look.step >= self._before[0] + _OFTEN:
                self._before = look.step, residual
            return None
        if self._any_failed:
            return self._end_failed(look)
        excess = tolerance.excess(residual, look.size)
        if largest(excess) <= 1 and not self._is_far(look.size):
            return self._end_together(look.z, residual, look.step)
        self.reached, self.converged = self._records.reached, True
        records = self._records
        return self._solution(records.value, records.status, records.residual, records.steps)

    def _end_together(self, z: Tensor, residual: Tensor, step: int) -> Solution:
        """All samples end with this iterate, all of one evaluation."""
        self.converged, self.reached = True, None
        status = torch.zeros_like(residual, dtype=torch.int8)
        steps = torch.full_like(residual, step, dtype=torch.int32)
        return self._solution(z, status, residual, steps)

    def _end_failed(self, look: Look) -> Solution:
        """Some samples have failed; note those that drift at a constant speed."""
        records, step, residual = self._records, look.step, look.residual
        assert records is not None
        start, (earlier, before) = self._start.z, self._before
        still = (records.status == Status.STAGNATED) | (records.status == Status.OUT_OF_STEPS)
        path, distance = step * residual, safe_norms(look.z, start)[0]
        straight = (_STRAIGHT * path <= distance) & (_STRAIGHT * distance <= path)
        drifts = still & straight & (residual >= _STEADY ** (step - earlier) * before)
        if step > _OFTEN and largest(drifts.to(torch.uint8)):
            self._notes.append(_DRIFTS)
        self.reached = records.reached
        return self._solution(records.value, records.status, records.residual, records.steps)

    def _solution(self, value: Tensor, status: Tensor, residual: Tensor, steps: Tensor) -> Solution:
        evaluations, note = self._problem.evaluations - self._evaluations, "; ".join(self._notes)
        return Solution(value, status, residual.to(value.dtype), steps, evaluations, note)


def plain_norms(value: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """The norms of the residual and of the iterate for each sample, by plain squares."""
    norm, dtype = torch.linalg.vector_norm, torch.float32 if z.dtype.itemsize < 4 else None
    return norm(value - z, dim=1, dtype=dtype), norm(z, dim=1, dtype=dtype)


def safe_norms(value: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """The same for numbers whose squares may not be in range; at most the largest number."""
    norms = []
    for rows in ((value - z).double(), z.double()):
        size = rows.abs().amax(1)
        unit = rows / torch.where(size > 0, size, 1.0)[:, None]
        norms.append(torch.linalg.vector_norm(unit, dim=1) * size)
    return norms[0], norms[1].clamp(max=torch.finfo(torch.float64).max)
