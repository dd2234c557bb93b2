"""Whole Picard solves on a GPU, recorded as CUDA graphs, without Python between their steps.

A recording makes as many steps as the last solves took, and looks at the residual once, in the
end. The ordinary loop solves the problems that it leaves unsolved. A graph reads tensors by their
addresses: inputs are copied to where it expects them, and other shapes, parameters, modes, streams
or threads get another recording. Where a cell is a user's, one ordinary evaluation confirms each
result.
"""

import gc
import logging
import math
import threading
import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from shoal.core.torch_compat import is_transformed
from shoal.equilibrium.problem import FunctionProblem, Linearization, LinearProblem, Problem
from shoal.equilibrium.solution import Solution
from shoal.equilibrium.solver import Solver
from shoal.equilibrium.verdict import PLAIN, WORSE, Tolerance, plain_norms

logger = logging.getLogger(__name__)

_KINDS = 8  # of solves that a layer records: for training and testing, whole batches and the last
_LENGTHS = 3  # recordings of a kind
_LONGEST = 256  # steps of a recording
_AIM = 0.7  # share of the tolerance that the last iterate shall meet
_CONFIRMED = 2.0  # times the tolerance: a residual whose rounding is another one
_capturing = threading.Lock()  # one thread at a time: captures share the random generator

_R = TypeVar("_R")


class Kind(Generic[_R]):
    """Solves that differ only in the values of tensors: their number of steps and recordings.

    Attributes:
        steps: The steps of the next recording; 0 before a solve and after one that failed.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._recordings: dict[int, _R | None] = {}  # None: could not be recorded

    def learn(self, steps: int) -> None:
        """Record the number of steps of an ordinary solve."""
        self.steps = steps if steps <= _LONGEST else 0

    def update(self, steps: int, first: float, last: float) -> None:
        """Choose the next number of steps by the first and the last excess of a recorded solve.

        It falls only if several steps were superfluous, so that few lengths are recorded.
        """
        aim, last = steps, max(last, 1e-3)  # below it rounding decides
        if last < 1 < first < math.inf:
            aim = max(1, math.ceil(steps * math.log(first / _AIM) / math.log(first / last)))
        if not steps - 3 < aim <= steps:
            self.learn(aim)

    def recording(self, record: Callable[[int], _R], most: int) -> _R | None:
        """A recording of about as many steps as the last solve took.

        Args:
            record: Makes a recording of so many steps.
            most: The largest number of steps.
        """
        steps = 2 * math.ceil(self.steps / 2)
        if not 0 < steps <= most or torch.cuda.is_current_stream_capturing():
            return None
        if steps not in self._recordings and _capturing.acquire(blocking=False):
            try:
                with torch.inference_mode(mode=False), torch.no_grad():
                    self._recordings[steps] = record(steps)
            except RuntimeError as error:  # such as an operation that waits for the device
                logger.info("an equilibrium is solved without CUDA graphs: %s", error)
                self._recordings = dict.fromkeys(range(_LONGEST + 2))
            finally:
                _capturing.release()
            if len(self._recordings) > _LENGTHS and any(self._recordings.values()):
                del self._recordings[next(iter(self._recordings))]
        return self._recordings.get(steps)


class Kinds(dict[Hashable, Kind[_R]]):
    """The kinds of solves of one layer; copies and pickles are empty."""

    def find_or_add(self, key: Hashable) -> Kind[_R] | None:
        """The kind of a key, or a new one; ``None`` if there are too many."""
        if key not in self and len(self) < _KINDS:
            self[key] = Kind()
        return self.get(key)

    def __reduce__(self) -> tuple[type["Kinds[_R]"], tuple[()]]:
        """Leave the recordings behind."""
        return Kinds, ()


class Recorder:
    """The recorded solves of one layer."""

    def __init__(self) -> None:
        self._kinds: Kinds[_RecordedSolve] = Kinds()

    def solve(
        self, problem: Problem, solver: Solver, start: Tensor, *, followed: bool
    ) -> tuple[Solution, Linearization | None] | None:
        """A solution for all samples, and the map near it if it is ``followed``; else ``None``."""
        kind = self._kinds.get(_key(problem, solver, start)) if start.is_cuda else None
        if kind is None:
            return None
        recording = kind.recording(
            lambda steps: _RecordedSolve(problem, solver, start, steps), solver.max_steps
        )
        solution = None if recording is None else recording.run(problem, start, kind)
        if recording is None or solution is None:
            return None
        z, near = solution.value, None
        if followed:
            near = problem.linearize(z.detach().requires_grad_())
        value = problem.evaluate(z) if near is None else near.value.detach()
        if not recording.confirms(value, z):
            self._kinds.clear()
            return None
        return solution, near

    def learn(self, problem: Problem, solver: Solver, start: Tensor, steps: int) -> None:
        """Record the number of steps of an ordinary solve; 0 if it failed."""
        base = _map(problem)
        if not start.is_cuda or start.dtype not in PLAIN or solver.atol:
            return
        if not isinstance(base, FunctionProblem) or not base.is_plain:
            return
        if is_transformed(start, *base.tensors) or torch.cuda.is_current_stream_capturing():
            return
        kind = self._kinds.find_or_add(_key(problem, solver, start))
        if kind is not None:
            kind.learn(steps)


def _map(problem: Problem) -> Problem:
    """The map of a problem, or of an adjoint equation."""
    if isinstance(problem, LinearProblem) and problem.adjoint:
        return problem.near.problem
    return problem


def _key(problem: Problem, solver: Solver, z: Tensor) -> Hashable:
    """Everything that a recording depends on, except values of tensors and of Python variables."""
    base = _map(problem)
    if not isinstance(base, FunctionProblem) or not base.may_replay or is_transformed(z):
        return None
    tensors = tuple(
        [
            tensor.shape if number < base.num_inputs and not _stays(tensor) else tensor.data_ptr()
            for number, tensor in enumerate(base.tensors)
        ]
    )
    modes = None if base.module is None else tuple([m.training for m in base.module.modules()])
    return base is problem, solver, z.shape, z.dtype, tensors, modes, place(z.device)


def place(device: torch.device) -> Hashable:
    """The thread and the stream that a recording belongs to."""
    return threading.get_ident(), torch.cuda.current_stream(device).cuda_stream


def _stays(tensor: Tensor) -> bool:
    """Whether an input is a weight, which optimizers change in place."""
    return isinstance(tensor, nn.Parameter)


class _RecordedSolve:
    """A solve of a map or of its adjoint equation, with the tensors that it reads."""

    def __init__(self, problem: Problem, solver: Solver, z: Tensor, steps: int) -> None:
        base = _map(problem)
        assert isinstance(base, FunctionProblem)
        self.steps, self._adjoint = steps, isinstance(problem, LinearProblem)
        self._inputs = [
            tensor if _stays(tensor) else tensor.detach().clone()
            for tensor in base.tensors[: base.num_inputs]
        ]
        static = base.with_inputs(self._inputs)
        self._start, self._point, self._right = (torch.zeros_like(z) for _ in range(3))
        self._lend(problem, z)

        def solve() -> SolveBuffers:
            if not self._adjoint:
                return iterate_picard(static.evaluate, solver, self._start, steps)
            pull, zero = static.linearize(self._point).pull, self._right.abs().amax(1) == 0
            return iterate_picard(lambda g: self._right + pull(g), solver, self._start, steps, zero)

        with torch.cuda.device(z.device):
            self._graph, self._buffers = capture(solve, watched=True)

    def _lend(self, problem: Problem, z: Tensor) -> None:
        """Copy tensors to where the recording reads them."""
        self._start.copy_(z)
        for mine, tensor in zip(self._inputs, _map(problem).tensors, strict=False):
            if mine is not tensor:
                mine.copy_(tensor.detach())
        if isinstance(problem, LinearProblem):
            self._point.copy_(problem.near.z.detach())
            self._right.copy_(problem.right)

    def run(self, problem: Problem, start: Tensor, kind: Kind["_RecordedSolve"]) -> Solution | None:
        """The solution, if all samples have one."""
        self._lend(problem, start)
        self._graph.replay()
        problem.evaluations += self.steps + 1
        return self._buffers.solution(kind)

    def confirms(self, value: Tensor, z: Tensor) -> bool:
        """Whether an ordinary evaluation agrees with the recording."""
        residual = torch.linalg.vector_norm(value - z, dim=1)
        return float((residual / self._buffers.tolerance).max()) <= _CONFIRMED


@dataclass(frozen=True, eq=False)
class SolveBuffers:
    """The results of a recorded solve, which the next replay writes over.

    Attributes:
        z: The last iterate that was evaluated. shape: (samples, size)
        residual: The residual of each sample.
        tolerance: The tolerance of each sample.
        numbers: Five numbers for a verdict on all samples.
        status: Zeros.
        steps: The number of steps, for each sample.
        num_steps: The same number, as an int.
    """

    z: Tensor
    residual: Tensor
    tolerance: Tensor
    numbers: Tensor
    status: Tensor
    steps: Tensor
    num_steps: int

    def solution(self, kind: Kind[Any]) -> Solution | None:
        """The solution, if all samples have one; waits for the device."""
        z, residual = self.z.clone(), self.residual.clone()
        least, most, size, first, last = self.numbers.tolist()
        low, high = PLAIN[z.dtype]
        if not (low <= least and most <= high and size <= WORSE * least and last <= 1):
            return None
        kind.update(self.num_steps, first, last)
        return Solution(z, self.status, residual, self.steps, self.num_steps + 1)


def iterate_picard(
    evaluate: Callable[[Tensor], Tensor],
    solver: Solver,
    z: Tensor,
    steps: int,
    zero: Tensor | None = None,
) -> SolveBuffers:
    """Picard iterations with one look at the end, as operations on tensors alone.

    Args:
        evaluate: The map.
        solver: The solver, for its tolerances.
        z: The start.
        steps: The number of steps.
        zero: Mask of samples whose iterates are all zero, if there may be some.
    """
    value = evaluate(z)
    residual, size = plain_norms(value, z)
    first = torch.maximum(residual, size)
    tolerance = Tolerance.from_solver(solver, residual, first, z.dtype)
    first_excess = tolerance.excess(residual, size).max()
    for _ in range(steps):
        z, value = value, evaluate(value)
    residual, size = plain_norms(value, z)
    allowed = tolerance.atol + tolerance.rtol * size
    if zero is not None:
        first = first.masked_fill(zero, 1.0)
    last = (residual / allowed).max()
    numbers = torch.stack([first.min(), first.max(), size.max(), first_excess, last])
    status = torch.zeros_like(residual, dtype=torch.int8)
    count = torch.full_like(residual, steps, dtype=torch.int32)
    return SolveBuffers(z, residual, allowed, numbers, status, count, steps)


def capture(function: Callable[[], _R], *, watched: bool) -> tuple[torch.cuda.CUDAGraph, _R]:
    """The operations of a function as a graph, and its results.

    Args:
        function: The function.
        watched: Whether to refuse a function that waits for the device.
    """
    graph, here, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        if watched:
            _refuse_waits(function)
        else:
            function()  # once before, as libraries set themselves up
        collects = gc.isenabled()
        gc.disable()  # a graph must not be freed while another one is captured
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            results = function()
        except BaseException:
            with suppress(RuntimeError):
                graph.capture_end()
            _reset()
            raise
        else:
            graph.capture_end()
        finally:
            if collects:
                gc.enable()
    here.wait_stream(aside)
    return graph, results


def _refuse_waits(function: Callable[[], object]) -> None:
    """Call a function, and raise if it waits for the device, which no graph can hold."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")  # that this mode does not detect all of them
        torch.cuda.set_sync_debug_mode("warn")
        warnings.simplefilter("always")
        try:
            function()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    if any("synchronizing" in str(warning.message) for warning in caught):
        raise RuntimeError("the cell waits for the device")


def _reset() -> None:
    """End what a failed capture leaves open: the random generator still waits for its end."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    torch.zeros(1, device="cuda")
    graph.capture_end()
