"""Whole Picard solves on a GPU, recorded as CUDA graphs, without Python between their steps.

A recording makes as many steps as the last solves took, and looks at the residual once, in the
end. The ordinary loop solves the problems that it leaves unsolved. A graph reads tensors by their
addresses: inputs are copied to where it expects them, and other shapes, parameters, modes, streams
or threads get another recording. Where a cell is a user's, one ordinary evaluation confirms each
result.
"""

import logging
import math
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from shoal.core.torch_compat import is_transformed
from shoal.equilibrium.problem import FunctionProblem, Linearization, LinearProblem, Problem
from shoal.equilibrium.solution import Solution
from shoal.equilibrium.solver import Solver
from shoal.equilibrium.verdict import PLAIN, WORSE, Tolerance, Verdict, plain_norms

logger = logging.getLogger(__name__)

_KINDS = 8  # of solves that a layer records: for training and testing, whole batches and the last
_LENGTHS = 3  # recordings of a kind
_LONGEST = 256  # steps of a recording
_AIM = 0.7  # share of the tolerance that the last iterate shall meet
_CONFIRMED = 2.0  # times the tolerance: a residual whose rounding is another one
_capturing = threading.Lock()  # one thread at a time: captures share the random generator


class Recorder:
    """The recorded solves of one layer; copies and pickles of it are empty.

    Args:
        confirmed: Whether an ordinary evaluation confirms each result.
    """

    def __init__(self, *, confirmed: bool) -> None:
        self.confirmed = confirmed
        self._kinds: dict[Hashable, _Kind] = {}

    def __deepcopy__(self, memo: object) -> "Recorder":
        """Leave the recordings behind."""
        return Recorder(confirmed=self.confirmed)

    def __getstate__(self) -> dict[str, object]:
        """Leave the recordings behind."""
        return {"confirmed": self.confirmed, "_kinds": {}}

    def solve(
        self, problem: Problem, solver: Solver, start: Tensor, *, followed: bool
    ) -> tuple[Solution, Linearization | None] | None:
        """A solution for all samples, with the map near it if that is wanted; or nothing."""
        kind = self._kinds.get(_key(problem, solver, start)) if start.is_cuda else None
        recording = None if kind is None else kind.recording(problem, solver, start)
        if kind is None or recording is None:
            return None
        solution = recording.run(problem, start, kind)
        if solution is None:
            return None
        z, near = solution.value, None
        if followed:
            near = problem.linearize(z.detach().requires_grad_())
        if self.confirmed:
            value = problem.evaluate(z) if near is None else near.value.detach()
            if not recording.confirms(value, z):
                self._kinds.clear()
                return None
        return solution, near

    def learn(
        self, problem: Problem, solver: Solver, start: Tensor, verdict: Verdict, steps: int
    ) -> None:
        """Take in how an ordinary solve ended."""
        base = _map(problem)
        if not start.is_cuda or start.dtype not in PLAIN or solver.atol:
            return
        if not isinstance(base, FunctionProblem) or not base.is_plain:
            return
        if is_transformed(start, *base.tensors) or torch.cuda.is_current_stream_capturing():
            return
        key = _key(problem, solver, start)
        if key not in self._kinds and len(self._kinds) < _KINDS:
            self._kinds[key] = _Kind()
        if key in self._kinds:
            self._kinds[key].learn(steps if verdict.converged else 0, verdict)


def _map(problem: Problem) -> Problem:
    """The map itself, for it or its adjoint equation."""
    if isinstance(problem, LinearProblem) and problem.adjoint:
        return problem.near.problem
    return problem


def _key(problem: Problem, solver: Solver, z: Tensor) -> Hashable:
    """What a recording depends on, but for the values of tensors and what a user hides."""
    base = _map(problem)
    if not isinstance(base, FunctionProblem) or not base.may_replay or is_transformed(z):
        return None
    tensors = tuple(
        [
            tensor.shape if number < base.inputs_given and not _stays(tensor) else tensor.data_ptr()
            for number, tensor in enumerate(base.tensors)
        ]
    )
    modes = None if base.module is None else tuple([m.training for m in base.module.modules()])
    where = threading.get_ident(), torch.cuda.current_stream(z.device).cuda_stream
    return base is problem, solver, z.shape, z.dtype, tensors, modes, where


def _stays(tensor: Tensor) -> bool:
    """Whether an input is a weight, which optimizers change in place."""
    return isinstance(tensor, nn.Parameter)


class _Kind:
    """Solves that differ only in numbers: how many steps they take, and their recordings."""

    def __init__(self) -> None:
        self.steps = 0  # none before a solve, and after one that failed
        self._recordings: dict[int, _Recording | None] = {}  # None: could not be recorded

    def learn(self, steps: int, verdict: Verdict) -> None:
        self.steps = self._aim(steps, verdict.initial, verdict.worst)

    def _aim(self, steps: int, first: float, last: float) -> int:
        """The steps that a solve needs which began and ended so far off."""
        last = max(last, 1e-3)  # below it rounding decides
        if steps > 1 and last < 1 < first < math.inf:
            steps = max(1, math.ceil(steps * math.log(first / _AIM) / math.log(first / last)))
        return steps if steps <= _LONGEST else 0

    def update(self, steps: int, first: float, last: float) -> None:
        """Take fewer steps only if several are in vain, so that few lengths are recorded."""
        aim = self._aim(steps, first, last)
        self.steps = self.steps if steps - 3 < aim <= steps else aim

    def recording(self, problem: Problem, solver: Solver, z: Tensor) -> "_Recording | None":
        steps = 2 * math.ceil(self.steps / 2)
        if not 0 < steps <= solver.max_steps or torch.cuda.is_current_stream_capturing():
            return None
        if steps not in self._recordings and _capturing.acquire(blocking=False):
            try:
                with torch.inference_mode(mode=False), torch.no_grad():
                    self._recordings[steps] = _Recording(problem, solver, z, steps)
            except RuntimeError as error:  # such as an operation that waits for the device
                logger.info("a cell is evaluated step by step, without a CUDA graph: %s", error)
                self._recordings = dict.fromkeys(range(_LONGEST + 2))
            finally:
                _capturing.release()
            if len(self._recordings) > _LENGTHS and any(self._recordings.values()):
                del self._recordings[next(iter(self._recordings))]
        return self._recordings.get(steps)


class _Recording:
    """A solve of a map or of its adjoint equation, with the tensors that it reads."""

    def __init__(self, problem: Problem, solver: Solver, z: Tensor, steps: int) -> None:
        base = _map(problem)
        assert isinstance(base, FunctionProblem)
        self.steps, self._adjoint = steps, isinstance(problem, LinearProblem)
        self._inputs = [
            tensor if _stays(tensor) else tensor.detach().clone()
            for tensor in base.tensors[: base.inputs_given]
        ]
        static = base.with_inputs(self._inputs)
        self._start, self._point, self._right = (torch.zeros_like(z) for _ in range(3))
        self._lend(problem, z)

        def solve() -> tuple[Tensor, ...]:
            if not self._adjoint:
                return _solve(static.evaluate, solver, self._start, steps)
            pull = static.linearize(self._point).pull
            return _solve(lambda g: self._right + pull(g), solver, self._start, steps)

        with torch.cuda.device(z.device):
            self._graph, results = _captured(solve)
        self._z, self._residual, self._tolerance, self._numbers = results
        self._status = torch.zeros_like(self._residual, dtype=torch.int8)
        self._count = torch.full_like(self._residual, steps, dtype=torch.int32)

    def _lend(self, problem: Problem, z: Tensor) -> None:
        """Copy tensors to where the recording reads them."""
        self._start.copy_(z)
        for mine, tensor in zip(self._inputs, _map(problem).tensors, strict=False):
            if mine is not tensor:
                mine.copy_(tensor.detach())
        if isinstance(problem, LinearProblem):
            self._point.copy_(problem.near.z.detach())
            self._right.copy_(problem.right)

    def run(self, problem: Problem, start: Tensor, kind: _Kind) -> Solution | None:
        """The solution, if all samples have one."""
        self._lend(problem, start)
        self._graph.replay()
        problem.evaluations += self.steps + 1
        z, residual = self._z.clone(), self._residual.clone()
        least, most, size, first, last = self._numbers.tolist()
        low, high = PLAIN[z.dtype]
        if not (low <= least and most <= high and size <= WORSE * least and last <= 1):
            return None
        kind.update(self.steps, first, last)
        return Solution(z, self._status, residual, self._count, self.steps + 1)

    def confirms(self, value: Tensor, z: Tensor) -> bool:
        """Whether the map has the value that the recording found."""
        residual = torch.linalg.vector_norm(value - z, dim=1)
        return float((residual / self._tolerance).max()) <= _CONFIRMED


def _solve(
    evaluate: Callable[[Tensor], Tensor], solver: Solver, z: Tensor, steps: int
) -> tuple[Tensor, ...]:
    """The iterate after some steps, its residuals, their tolerances, and what a verdict needs."""
    value = evaluate(z)
    residual, size = plain_norms(value, z)
    first = torch.maximum(residual, size)
    tolerance = Tolerance.of(solver, residual, first, z.dtype)
    begun = tolerance.excess(residual, size).max()
    for _ in range(steps):
        z, value = value, evaluate(value)
    residual, size = plain_norms(value, z)
    allowed = tolerance.atol + tolerance.rtol * size
    last = (residual / allowed).max()
    numbers = torch.stack([first.min(), first.max(), size.max(), begun, last])
    return z, residual, allowed, numbers


def _captured(
    function: Callable[[], tuple[Tensor, ...]],
) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
    """The operations of a function as a graph, and its results."""
    graph, here, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        with _watching_waits() as waits:
            function()  # once before, as libraries set themselves up
        if any("synchronizing" in str(warning.message) for warning in waits):
            raise RuntimeError("the cell waits for the device")
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            results = function()
        except BaseException:
            with suppress(RuntimeError):
                graph.capture_end()
            _reset()
            raise
        graph.capture_end()
    here.wait_stream(aside)
    return graph, results


@contextmanager
def _watching_waits() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings of operations that wait for the device, which no graph can hold."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")  # that this mode does not detect all of them
        torch.cuda.set_sync_debug_mode("warn")
        warnings.simplefilter("always")
        try:
            yield caught
        finally:
            torch.cuda.set_sync_debug_mode(mode)


def _reset() -> None:
    """End what a failed capture leaves open: the random generator still waits for its end."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    torch.zeros(1, device="cuda")
    graph.capture_end()
