"""What is known of each sample while a solve runs, and how each of them ended.

The records are kept on the host: a look at the device is one transfer of two norms per sample, and
all that follows from them is a little arithmetic with arrays.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.torch_compat import is_wrapped
from shoal.equilibrium.solvers.base import Solver
from shoal.equilibrium.solvers.best import BestIterate
from shoal.equilibrium.solvers.limits import WORSE, Limits, residual_norms
from shoal.equilibrium.solvers.problem import Linearization
from shoal.equilibrium.solvers.solution import Solution
from shoal.equilibrium.solvers.status import RUNNING, Status

Array = NDArray[Any]

PATIENCE = 30  # steps without a lower residual after which a sample has stagnated
_LOWER = 0.999  # by which factor it must be lower to count
_LARGEST = float(np.finfo(np.float64).max)
_FALLEN = 1e3  # by which factor a residual falls at least where a large iterate is a solution


@dataclass(frozen=True, eq=False)
class Outcome:
    """A solution, and what is known besides.

    Attributes:
        solution: The solution.
        kept: What the problem wanted to keep of it.
        converged: Whether all samples converged, without asking the device again.
        near: The map near the solution, if the last look has it.
        best: After how many steps each sample had the value that is returned, if there are such
            as have failed: those to the least residual.
    """

    solution: Solution
    kept: Tensor | None
    converged: bool
    near: Linearization | None = None
    best: Tensor | None = None

    @property
    def reached(self) -> Tensor:
        """After how many steps each sample had the value that is returned."""
        return self.solution.steps if self.best is None else self.best

    def improved(self, later: "Outcome") -> "Outcome":
        """This outcome with what another solve made of it, from where this one ended."""
        old, new = self.solution, later.solution
        worse = ~new.converged & ~(new.residual <= old.residual)
        value = torch.where(worse[:, None], old.value, new.value)
        kept = None
        if self.kept is not None and later.kept is not None:
            kept = torch.where(worse[:, None], self.kept, later.kept)
        solution = Solution(
            value,
            new.status,
            torch.where(worse, old.residual, new.residual),
            old.steps + new.steps,
            old.evaluations + new.evaluations,
            old.note or new.note,
        )
        return Outcome(solution, kept, later.converged, best=self.reached + later.reached)


class Records:
    """The residuals of a batch as it shrinks, and the outcomes of the samples that are done.

    Attributes:
        worst: By what factor the worst sample that runs was off at the last look.
        running: How many samples run.
    """

    def __init__(self, shape: torch.Size, solver: Solver, dtype: torch.dtype) -> None:
        (count, width), self.max_steps = shape, solver.max_steps
        self.count = count
        self.limits = Limits.of(solver, width, dtype)
        self.worst, self.running = math.inf, count
        self._rows: Array | None = None  # which samples the batch holds; None means all
        self._codes: Array | None = None  # of the batch; None means that all run
        self._thorough = PATIENCE // 3  # when each sample is judged again at the latest
        self._value: Tensor | None = None
        self._kept: Tensor | None = None
        self._residual: Tensor | None = None  # only if all converged at once
        self._step = 0
        # status, residual, steps, and the step that the value is of
        self._ends: tuple[Array, Array, Array, Array] | None = None
        self._note = ""

    def look(
        self,
        value: Tensor,
        z: Tensor,
        kept: Tensor | None,
        step: int,
        *,
        together: bool = False,
        norms: Tensor | None = None,
    ) -> None:
        """Judge all samples of the batch by the map's value at ``z``, and note who is done.

        Args:
            value: The map there.
            z: The iterate.
            kept: What the problem wants to keep of it.
            step: After how many steps.
            together: Whether it is worth more if all samples end with the same step. Otherwise
                those that converge early rest where they were found.
            norms: Those of :func:`residual_norms`, if they are known.
        """
        norms = residual_norms(value, z) if norms is None else norms
        residual, size = known = _to_host(norms)
        # mostly a start is zero, whose norm is exact
        squared = residual if step == 0 and not size.any() and not z.any() else known
        limits = self.limits
        if not (limits.least <= squared.min() and known.max() <= limits.most):
            residual, size = known = _safe_norms(value, z)
            norms = torch.from_numpy(known)
        with np.errstate(all="ignore"):
            if step == 0:
                self._begin(residual, size, z, kept)
            else:
                better = (residual < _LOWER * self._best.residual) & ~self._escaped(residual, size)
                if self._codes is not None:
                    better |= self._codes != RUNNING  # whatever has become of them
                self._best.improve(better, z, kept, residual, step)
            codes = self._judge(residual, size, step, together=together)
        if codes is not None:
            self._close(codes, z, kept, residual, step)
        elif self.running == 0:  # all at once: nothing to be copied
            self._value, self._kept, self._residual, self._step = z, kept, norms[0], step

    def _begin(self, residual: Array, size: Array, z: Tensor, kept: Tensor | None) -> None:
        """Note how the batch starts, and how far off each sample may be.

        An absolute tolerance that the user has not given is for solutions of the order of one; it
        shrinks with states that are smaller, which it would otherwise declare to be zero.
        """
        limits = self.limits
        self._start = residual
        self._first = np.maximum(size, residual)
        self._best = BestIterate(z, kept, residual)
        scale = 1.0 if limits.explicit else np.fmin(self._first, 1.0)
        self._atol = np.maximum(limits.atol * scale, limits.finest) + np.zeros(len(residual))
        vain = (self._first <= limits.atol) & (residual > limits.rtol * size)
        if limits.explicit and vain.any():
            self._note = (
                f"atol = {limits.atol:g} exceeds the start and its residual for {int(vain.sum())} "
                f"of {self.count} samples, which count as converged wherever they are"
            )

    def _judge(self, residual: Array, size: Array, step: int, *, together: bool) -> Array | None:
        """The codes of the batch, or ``None`` if all run on or all have converged at once."""
        size = np.fmin(size, _LARGEST)  # a norm may overflow where no number does
        excess = residual / (size * self.limits.rtol + self._atol)
        calm = bool((size <= WORSE * self._first).all())
        if together and calm and self._rows is None and (excess <= 1).all():
            self._reopen()
        if self._codes is not None:
            excess[self._codes != RUNNING] = 0.0  # whatever has become of them
        worst = float(excess.max())
        # mostly it is enough to know that no sample is worse than before, or large
        falls = worst < self.worst and step < min(self._thorough, self.max_steps)
        if (falls or worst <= 1) and (step == 0 or calm):
            return self._sort(excess, worst)
        self._thorough = step + PATIENCE // 3
        codes = self._codes_of(residual, size, excess, step)
        running = codes == RUNNING
        self.running = int(running.sum())
        self.worst = float(np.where(running, excess, 0.0).max())
        return codes if self.running < len(codes) else None

    def _reopen(self) -> None:
        """Let all samples end with this step if those that are done have only converged.

        Their newer iterates are as good, and all of one evaluation.
        """
        if self._codes is not None and (self._codes <= Status.CONVERGED).all():
            self._codes = self._value = self._kept = self._ends = None

    def _sort(self, excess: Array, worst: float) -> Array | None:
        """The codes of samples of which each has converged or goes on."""
        if worst <= 1 and self._value is None:
            self.running = 0
            return None
        self.worst = worst
        on = excess > 1
        self.running = int(np.count_nonzero(on))
        if self.running == len(on):
            return None
        codes = np.where(on, np.int8(RUNNING), np.int8(Status.CONVERGED))
        return codes if self._codes is None else np.where(self._codes < 0, codes, self._codes)

    def _codes_of(self, residual: Array, size: Array, excess: Array, step: int) -> Array:
        """Judge each sample; those that were done before keep their codes."""
        escaped = self._escaped(residual, size)
        diverged = escaped | (residual > WORSE * self._best.residual)
        otherwise = RUNNING if step < self.max_steps else Status.OUT_OF_STEPS
        codes = np.full(len(residual), otherwise, dtype=np.int8)
        codes[step - self._best.step >= PATIENCE] = Status.STAGNATED
        codes[diverged] = Status.DIVERGED
        codes[~np.isfinite(residual)] = Status.NOT_FINITE
        codes[(excess <= 1) & ~escaped] = Status.CONVERGED
        return codes if self._codes is None else np.where(self._codes < 0, codes, self._codes)

    def _escaped(self, residual: Array, size: Array) -> Array:
        """Which samples run to infinity, where residuals become small only relatively, or vanish.

        Beside an iterate that is large enough, rounding leaves nothing of any residual.
        """
        hidden = self.limits.rounding * size > self._start  # as rounding would the first step
        escaped: Array = (size > WORSE * self._first) & (
            (residual > self._start / _FALLEN) | hidden
        )
        return escaped

    def _close(
        self, codes: Array, z: Tensor, kept: Tensor | None, residual: Array, step: int
    ) -> None:
        """Write down the outcome of the samples that are done with this step."""
        done = codes != RUNNING
        if self._codes is not None:
            done &= self._codes == RUNNING
        self._codes = codes
        where = done.nonzero()[0]
        if not len(where):
            return
        failed = done & (codes != Status.CONVERGED)
        z, kept = self._best.instead(failed, z, kept)
        self._write(where, z, kept)
        if self._ends is None:
            status, steps = np.zeros(self.count, np.int8), np.zeros(self.count, np.int32)
            self._ends = (status, np.zeros(self.count), steps, steps.copy())
        rows = where if self._rows is None else self._rows[where]
        self._ends[0][rows], self._ends[2][rows] = codes[where], step
        self._ends[1][rows] = np.where(failed, self._best.residual, residual)[where]
        self._ends[3][rows] = np.where(failed, self._best.step, step)[where]

    def _write(self, where: Array, z: Tensor, kept: Tensor | None) -> None:
        """Keep the values of some rows of the batch; the first time, all of them."""
        if self._value is None:
            self._value, self._kept = z, kept
            return
        if self._rows is None:
            mask = np.zeros((self.count, 1), dtype=np.bool_)
            mask[where] = True
            chosen = torch.from_numpy(mask).to(z.device)
            self._value = torch.where(chosen, z, self._value)
            if kept is not None and self._kept is not None:
                self._kept = torch.where(chosen, kept, self._kept)
            return
        pair = torch.from_numpy(np.stack([where, self._rows[where]])).to(z.device)
        self._value = self._value.index_copy(0, pair[1], z.index_select(0, pair[0]))
        if kept is not None and self._kept is not None:
            self._kept = self._kept.index_copy(0, pair[1], kept.index_select(0, pair[0]))

    def pack(self) -> Tensor:
        """Keep only the rows of the batch that run; returns which."""
        assert self._codes is not None
        index = (self._codes == RUNNING).nonzero()[0]
        self._rows = index if self._rows is None else self._rows[index]
        self._codes = None
        self._start, self._first = self._start[index], self._first[index]
        self._atol = self._atol[index]
        self._best.select(index)
        return torch.from_numpy(index)

    def outcome(self, evaluations: int, near: Linearization | None = None) -> "Outcome":
        """The end of the solve, with the map near the last iterate."""
        assert self._value is not None
        device, dtype = self._value.device, self._value.dtype
        if self._residual is not None:
            status = torch.zeros(self.count, dtype=torch.int8, device=device)
            steps = torch.full((self.count,), self._step, dtype=torch.int32, device=device)
            exact = self._residual.to(device, dtype)
            solution = Solution(self._value, status, exact, steps, evaluations, self._note)
            return Outcome(solution, self._kept, True, near)
        assert self._ends is not None
        status, residual, steps, of = (torch.from_numpy(end).to(device) for end in self._ends)
        solution = Solution(self._value, status, residual.to(dtype), steps, evaluations, self._note)
        return Outcome(solution, self._kept, not self._ends[0].any(), best=of)


def _safe_norms(value: Tensor, z: Tensor) -> Array:
    """Norms of rows on the host, for numbers whose squares may not be in range."""
    both = torch.stack([value - z, z])
    both = both.float() if both.dtype.itemsize < 4 else both
    scale: Tensor = torch.linalg.vector_norm(both, torch.inf, dim=2)
    unit = both / torch.where(scale > 0, scale, 1.0)[:, :, None]
    scaled, scale = torch.stack([torch.linalg.vector_norm(unit, dim=2), scale])
    with np.errstate(all="ignore"):
        product: Array = _to_host(scaled) * _to_host(scale)
    return product


def _to_host(norms: Tensor) -> Array:
    """Norms as numbers of the host, in float64."""
    if is_wrapped(norms):  # no memory to be read
        return np.array(norms.tolist(), dtype=np.float64)
    host = norms.detach().cpu()
    if host.dtype.itemsize < 4:
        host = host.float()
    return host.numpy().astype(np.float64)
