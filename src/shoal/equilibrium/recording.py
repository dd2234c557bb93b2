"""Picard iterations on a GPU, recorded as CUDA graphs: several evaluations without Python between.

A recording only proposes an iterate. The ordinary loop starts with an evaluation before it and goes
on with one after it, so that every verdict is about the map as it is. Without a recording, or with
a bad one, a solve is slower and no less right.

A graph reads tensors by their addresses. Inputs are copied to where it expects them; where shapes,
parameters, modes, the stream or the thread differ, another one is recorded.
"""

import logging
import math
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch
from torch import Tensor, nn

from shoal.core.torch_compat import is_transformed, pytree
from shoal.equilibrium.problem import FunctionProblem, LinearProblem, Problem

_T = TypeVar("_T")
logger = logging.getLogger(__name__)

_STEPS = 4  # of one replay
_MOST = 8  # recordings of a layer: for training and testing, whole batches and the last ones
_AIM = 0.5  # share of the tolerance that the proposed iterate shall meet
_capturing = threading.Lock()  # one thread at a time: captures share the random generator


class Recorder:
    """The recordings of one layer; copies and pickles of it are empty."""

    def __init__(self) -> None:
        self._recordings: dict[Hashable, _Recording | None] = {}  # None: could not be recorded
        self._steps: dict[Hashable, int] = {}

    def __reduce__(self) -> tuple[type["Recorder"], tuple[()]]:
        """Leave the recordings behind."""
        return Recorder, ()

    def advance(self, problem: Problem, z: Tensor, most: int) -> tuple[Tensor, int]:
        """A later iterate of a problem that was solved before, and the number of steps to it.

        Args:
            problem: The problem.
            z: The present iterate.
            most: The largest number of steps.
        """
        key = _key(problem, z)
        steps = self._steps.get(key, 0)
        replays = math.ceil(steps / _STEPS)
        if key is None or not 0 < replays * _STEPS <= most:
            return z, 0
        if key not in self._recordings:
            self._recordings[key] = self._record(problem, z)
        recording = self._recordings[key]
        if recording is None:
            return z, 0
        return recording.run(problem, z, replays), replays * _STEPS

    def learn(self, problem: Problem, z: Tensor, steps: int, first: float, last: float) -> None:
        """Take in how a solve ended, to know the number of steps for the next one.

        Args:
            problem: What was solved.
            z: An iterate.
            steps: The steps that it took; 0 if it failed.
            first: By what factor the worst sample missed its tolerance in the beginning.
            last: The same in the end.
        """
        key = _key(problem, z)
        if key is None:
            return
        if len(self._steps) > 8 * _MOST:
            self._steps.clear()
        last = max(last, 1e-3)  # below it rounding decides
        if 1 < steps < math.inf and last < _AIM < first < math.inf:
            steps = math.ceil(steps * math.log(first / _AIM) / math.log(first / last))
        self._steps[key] = max(0, steps - 1)  # one is made before the recording

    def _record(self, problem: Problem, z: Tensor) -> "_Recording | None":
        if len(self._recordings) >= _MOST or not _capturing.acquire(blocking=False):
            return None
        try:
            with torch.inference_mode(mode=False), torch.no_grad():
                return _Recording(problem, z)
        except RuntimeError as error:  # such as an operation that waits for the device
            logger.info("a cell is evaluated step by step, without a CUDA graph: %s", error)
            return None
        finally:
            _capturing.release()


def _map(problem: Problem) -> Problem:
    """The map itself, for it or its adjoint equation."""
    if isinstance(problem, LinearProblem) and problem.adjoint:
        return problem.near.problem
    return problem


def _key(problem: Problem, z: Tensor) -> Hashable:
    """All that a recording depends on but the values of tensors, if there can be one."""
    base = _map(problem)
    if not (z.is_cuda and z.dtype in (torch.float32, torch.float64)):
        return None
    if not isinstance(base, FunctionProblem) or not base.is_plain:
        return None
    if is_transformed(z, *base.tensors) or torch.cuda.is_current_stream_capturing():
        return None
    leaves, tree = pytree.tree_flatten((base.inputs, base.named))
    inputs = tuple(map(_described, leaves))
    held = tuple(tensor.data_ptr() for tensor in base.tensors[base.inputs_given :])
    modules = () if base.module is None else base.module.modules()
    modes = tuple(module.training for module in modules)
    where = threading.get_ident(), torch.cuda.current_stream(z.device).cuda_stream
    return base is problem, z.shape, z.dtype, repr(tree), inputs, held, modes, where


def _described(leaf: object) -> Hashable:
    if isinstance(leaf, nn.Parameter):
        return leaf.data_ptr()
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device
    return leaf if isinstance(leaf, int | float | str) else id(leaf)


class _Recording:
    """Some steps of a map or of its adjoint equation, with the tensors that they read."""

    def __init__(self, problem: Problem, z: Tensor) -> None:
        base = _map(problem)
        assert isinstance(base, FunctionProblem)
        self.inputs = [
            tensor if isinstance(tensor, nn.Parameter) else tensor.detach().clone()
            for tensor in base.tensors[: base.inputs_given]
        ]
        static = base.with_inputs(self.inputs)
        self.state, self.point, self.right = (torch.zeros_like(z) for _ in range(3))
        self._before: torch.cuda.CUDAGraph | None = None
        evaluate: Callable[[Tensor], Tensor] = static.evaluate
        with torch.cuda.device(z.device):
            if isinstance(problem, LinearProblem):
                self._lend(problem, z)
                self._before, self._near = _captured(lambda: static.linearize(self.point))
                pull = self._near.pull
                evaluate = lambda g: self.right + pull(g)  # noqa: E731
            self._steps, _ = _captured(lambda: self.state.copy_(_repeated(evaluate, self.state)))

    def _lend(self, problem: Problem, z: Tensor) -> None:
        """Copy tensors to where the recording reads them."""
        self.state.copy_(z)
        for mine, tensor in zip(self.inputs, _map(problem).tensors, strict=False):
            if mine is not tensor:
                mine.copy_(tensor.detach())
        if isinstance(problem, LinearProblem):
            self.point.copy_(problem.near.z.detach())
            self.right.copy_(problem.right)

    def run(self, problem: Problem, z: Tensor, replays: int) -> Tensor:
        """The iterate after some replays."""
        self._lend(problem, z)
        if self._before is not None:
            self._before.replay()
        for _ in range(replays):
            self._steps.replay()
        problem.evaluations += replays * _STEPS
        return self.state.clone()


def _repeated(evaluate: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    for _ in range(_STEPS):
        z = evaluate(z)
    return z


def _captured(function: Callable[[], _T]) -> tuple[torch.cuda.CUDAGraph, _T]:
    """The operations of a function as a graph, and its result."""
    graph, here, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        with _refusing_waits():
            function()  # once before, as libraries set themselves up
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            result = function()
        except BaseException:
            with suppress(RuntimeError):
                graph.capture_end()
            _reset()
            raise
        graph.capture_end()
    here.wait_stream(aside)
    return graph, result


@contextmanager
def _refusing_waits() -> Iterator[None]:
    """A context in which operations that wait for the device raise."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _reset() -> None:
    """End what a failed capture leaves open: the random generator still waits for its end."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    torch.zeros(1, device="cuda")
    graph.capture_end()
