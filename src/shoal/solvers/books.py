"""What is known of each sample while a solve runs, and how each of them ended.

The books are kept on the host: a look at the device is one transfer of two norms per sample, and
all that follows from them are operations on small tensors of the CPU.
"""

import math

import torch
from torch import Tensor

from shoal.solvers.solution import Solution
from shoal.solvers.status import RUNNING, Status

__all__ = ["PATIENCE", "Books"]

PATIENCE = 30  # steps without a lower residual after which a sample has stagnated
_LOWER = 0.999  # by which factor it must be lower to count
_WORSE = 1e5  # growth of the residual, or of the iterate, that is divergence
_FALLEN = 1e3  # by which factor a residual falls at least where a large iterate is a solution


class Books:
    """The residuals of a batch as it shrinks, and the outcomes of the samples that are done.

    Attributes:
        worst: By what factor the worst sample that runs was off at the last look.
        running: How many samples run.
    """

    def __init__(
        self, count: int, tolerances: tuple[float, float], dtype: torch.dtype, max_steps: int
    ) -> None:
        self.count, self.max_steps = count, max_steps
        self.rtol = tolerances[0]
        self.atol = max(tolerances[1], torch.finfo(dtype).tiny)  # no division by zero
        self.worst, self.running = math.inf, count
        self._rows: Tensor | None = None  # which samples the batch holds; None means all
        self._codes: Tensor | None = None  # of the batch; None means that all run
        self._thorough = PATIENCE // 3  # when each sample is judged again at the latest
        self._value: Tensor | None = None
        self._kept: Tensor | None = None
        self._ends: tuple[Tensor, Tensor, Tensor] | None = None  # status, residual and steps

    def look(self, value: Tensor, z: Tensor, kept: Tensor | None, step: int) -> None:
        """Judge all samples of the batch by the map's value at ``z``, and note who is done."""
        norm = torch.linalg.vector_norm
        residual, size = norm(value - z, dim=1), norm(z, dim=1)
        if z.device.type == "cpu":
            codes = self._judge(residual, size, step)
        else:
            norms = torch.stack([residual, size]).cpu()
            codes = self._judge(norms[0], norms[1], step)
            residual = residual if codes is None else norms[0]
        if self.running == 0 and codes is None:  # all at once: nothing to be copied
            self._value, self._kept = z, kept
            status = torch.zeros(self.count, dtype=torch.int8, device=z.device)
            self._ends = (status, residual, torch.full_like(status, step, dtype=torch.int32))
        elif codes is not None:
            self._close(codes, z, kept, residual, step)

    def _judge(self, residual: Tensor, size: Tensor, step: int) -> Tensor | None:
        """The codes of the batch, or ``None`` if all run on or all have converged at once."""
        excess = residual / size.mul(self.rtol).add_(self.atol)
        if step == 0:
            self._start = self._best = residual
            self._best_step = torch.zeros(len(residual), dtype=torch.int32)
            self._first = torch.maximum(size, residual)
        if self._codes is None:
            least, worst = (float(end) for end in torch.aminmax(excess))
            if worst <= 1 and self._value is None and not self._any_large(size, step):
                self.running = 0
                return None
            # mostly it is enough to know that all are off, and the worst less than before
            soon = step < min(self._thorough, self.max_steps)
            if soon and least > 1 and worst < self.worst:
                self.worst = worst
                return None
        self._thorough = step + PATIENCE // 3
        codes = self._codes_of(residual, size, excess, step)
        running = codes == RUNNING
        self.running = int(running.sum())
        self.worst = float(torch.where(running, excess, 0.0).amax())
        return codes if self.running < len(codes) else None

    def _any_large(self, size: Tensor, step: int) -> bool:
        """Whether an iterate has grown so much that its residual may be small for that alone."""
        return step > 0 and not bool((size <= _WORSE * self._first).all())

    def _codes_of(self, residual: Tensor, size: Tensor, excess: Tensor, step: int) -> Tensor:
        """Judge each sample; those that were done before keep their codes."""
        lower = residual < _LOWER * self._best
        # on the way to infinity any residual becomes small, relatively, without falling
        escaped = (size > _WORSE * self._first) & (residual > self._start / _FALLEN)
        diverged = escaped | (residual > _WORSE * self._best)
        self._best = torch.where(lower, residual, self._best)
        self._best_step = torch.where(lower, step, self._best_step)
        otherwise = RUNNING if step < self.max_steps else Status.OUT_OF_STEPS
        codes = torch.full((len(residual),), int(otherwise), dtype=torch.int8)
        codes.masked_fill_(step - self._best_step >= PATIENCE, Status.STAGNATED)
        codes.masked_fill_(diverged, Status.DIVERGED)
        codes.masked_fill_(~torch.isfinite(residual), Status.NOT_FINITE)
        codes.masked_fill_((excess <= 1) & ~escaped, Status.CONVERGED)
        return codes if self._codes is None else torch.where(self._codes < 0, codes, self._codes)

    def _close(
        self, codes: Tensor, z: Tensor, kept: Tensor | None, residual: Tensor, step: int
    ) -> None:
        """Write down the outcome of the samples that are done with this step."""
        done = codes != RUNNING
        if self._codes is not None:
            done &= self._codes == RUNNING
        self._codes = codes
        if not bool(done.any()):
            return
        where = done.nonzero()[:, 0]
        self._write(where, z, kept)
        if self._ends is None:
            status = torch.full((self.count,), RUNNING, dtype=torch.int8)
            steps = torch.zeros(self.count, dtype=torch.int32)
            self._ends = (status, residual.new_zeros(self.count), steps)
        rows = where if self._rows is None else self._rows[where]
        self._ends[0][rows], self._ends[1][rows] = codes[where], residual[where]
        self._ends[2][rows] = step

    def _write(self, where: Tensor, z: Tensor, kept: Tensor | None) -> None:
        """Keep the values of some rows of the batch; the first time, all of them."""
        if self._value is None:
            self._value, self._kept = z, kept
            return
        local = where.to(z.device)
        rows = local if self._rows is None else self._rows[where].to(z.device)
        self._value = self._value.index_copy(0, rows, z.index_select(0, local))
        if kept is not None and self._kept is not None:
            self._kept = self._kept.index_copy(0, rows, kept.index_select(0, local))

    def open_rows(self) -> Tensor:
        """Which rows of the batch run on."""
        assert self._codes is not None
        return (self._codes == RUNNING).nonzero()[:, 0]

    def pack(self, index: Tensor) -> None:
        """Keep only some rows of the batch, all of which run."""
        self._rows = index if self._rows is None else self._rows[index]
        self._codes = None
        self._best, self._best_step = self._best[index], self._best_step[index]
        self._start, self._first = self._start[index], self._first[index]

    def outcome(self, evaluations: int) -> tuple[Solution, Tensor | None, bool]:
        """The end of the solve: the solution, what was kept, and whether all converged."""
        assert self._value is not None
        assert self._ends is not None
        converged = self._codes is None or not bool(self._ends[0].any())
        status, residual, steps = (end.to(self._value.device) for end in self._ends)
        return Solution(self._value, status, residual, steps, evaluations), self._kept, converged
