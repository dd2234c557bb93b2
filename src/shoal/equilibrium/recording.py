"""Picard iterations on a GPU, recorded as CUDA graphs: several evaluations without Python between.

A recording reads tensors by their addresses. Inputs are copied to where it expects them; where
shapes, parameters, modes, the stream or the thread differ, another one is made. Its results count
only after an ordinary evaluation has confirmed them, see ``driver``.
"""

import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shoal.core.torch_compat import is_transformed, pytree
from shoal.equilibrium.problem import FunctionProblem, LinearProblem, Problem

logger = logging.getLogger(__name__)

_EVALUATIONS = 5  # in one replay
_MOST = 8  # recordings of a layer: for training and testing, whole batches and the last ones
_PAUSE = 20  # solves without recordings after one whose result was not confirmed


class Steps(NamedTuple):
    """Successive iterates of a map.

    Attributes:
        states: The iterates, one more than evaluations.
        residuals: The norms of the residuals of all but the last.
        sizes: The norms of these iterates.
        worst: The factor by which the worst sample misses its tolerance, for each evaluation.
    """

    states: tuple[Tensor, ...]
    residuals: tuple[Tensor, ...]
    sizes: tuple[Tensor, ...]
    worst: list[float]


Replay = Callable[[Tensor, Tensor], Steps]  # of an iterate and the absolute tolerance of each row


class Recorder:
    """The recordings of one layer; copies and pickles of it are empty."""

    def __init__(self) -> None:
        self._recordings: dict[Hashable, _Recording | None] = {}  # None: could not be recorded
        self._seen: set[Hashable] = set()
        self._pause = 0

    def __reduce__(self) -> tuple[type["Recorder"], tuple[()]]:
        """Leave the recordings behind."""
        return Recorder, ()

    def pause(self) -> None:
        """Return no recordings for a while."""
        self._pause = _PAUSE

    def replay(self, problem: Problem, z: Tensor, rtol: float) -> Replay | None:
        """The recorded iterations of a map, or of an adjoint equation.

        Returns:
            ``None`` for a problem that cannot be recorded or comes for the first time.
        """
        self._pause -= self._pause > 0
        near = problem.near if isinstance(problem, LinearProblem) and problem.adjoint else None
        base = problem if near is None else near.problem
        if self._pause or not isinstance(base, FunctionProblem) or not _can_be_recorded(base, z):
            return None
        key = _key(base, z)
        try:
            with torch.inference_mode(mode=False), torch.no_grad():
                recording = self._find(key, base, z)
                if recording is None:
                    return None
                recording.lend(base)
                if near is None:
                    return recording.forward(rtol)
                assert isinstance(problem, LinearProblem)
                return recording.adjoint(near.z, problem.right, rtol)
        except RuntimeError as error:  # an operation that waits for the device
            logger.info("a cell is evaluated step by step, without a CUDA graph: %s", error)
            self._recordings[key] = None
            return None

    def _find(self, key: Hashable, problem: FunctionProblem, z: Tensor) -> "_Recording | None":
        """The recording of what has come before."""
        if key in self._recordings:
            return self._recordings[key]
        if key in self._seen and len(self._recordings) < _MOST:
            self._recordings[key] = recording = _Recording(problem, z)
            return recording
        if len(self._seen) >= 8 * _MOST:
            self._seen.clear()
        self._seen.add(key)
        return None


def _can_be_recorded(problem: FunctionProblem, z: Tensor) -> bool:
    return (
        z.is_cuda
        and z.dtype in (torch.float32, torch.float64)
        and problem.is_plain
        and not is_transformed(z, *problem.tensors)
        and not torch.cuda.is_current_stream_capturing()
    )


def _key(problem: FunctionProblem, z: Tensor) -> Hashable:
    """All that a recording depends on, but for the values of inputs and parameters."""
    leaves, tree = pytree.tree_flatten((problem.inputs, problem.named))
    inputs = tuple(
        leaf
        if isinstance(leaf, int | float | str)
        else id(leaf)
        if not isinstance(leaf, Tensor)
        else leaf.data_ptr()
        if isinstance(leaf, nn.Parameter)
        else (leaf.shape, leaf.stride(), leaf.dtype, leaf.device)
        for leaf in leaves
    )
    held = tuple(tensor.data_ptr() for tensor in problem.tensors[problem.inputs_given :])
    modules = () if problem.module is None else problem.module.modules()
    modes = tuple(module.training for module in modules)
    where = threading.get_ident(), torch.cuda.current_stream(z.device).cuda_stream
    return z.shape, z.dtype, repr(tree), inputs, held, modes, where


class _Recording:
    """The recorded iterations of a map, and of its adjoint equation."""

    def __init__(self, problem: FunctionProblem, z: Tensor) -> None:
        self.inputs = [
            tensor if isinstance(tensor, nn.Parameter) else tensor.detach().clone()
            for tensor in problem.tensors[: problem.inputs_given]
        ]
        self.problem = problem.with_inputs(self.inputs)
        self.point, self.right = z.detach().clone(), torch.zeros_like(z)
        self._forward: dict[float, _Iterations] = {}
        self._adjoint: dict[float, _Iterations] = {}
        self._linearized: torch.cuda.CUDAGraph | None = None

    def lend(self, problem: FunctionProblem) -> None:
        """Copy the inputs to where the recording reads them."""
        for mine, tensor in zip(self.inputs, problem.tensors, strict=False):
            if mine is not tensor:
                mine.copy_(tensor.detach())

    def forward(self, rtol: float) -> Replay:
        """The iterations of the map."""
        if rtol not in self._forward:
            self._forward[rtol] = _Iterations(self.problem.evaluate, self.point, rtol)
        return self._forward[rtol].run

    def adjoint(self, z: Tensor, right: Tensor, rtol: float) -> Replay:
        r"""The iterations of $g \mapsto c + J^\top g$, with the Jacobian at a point."""
        self.point.copy_(z.detach())
        self.right.copy_(right)
        if self._linearized is None:
            with _side_stream():
                self.problem.linearize(self.point).pull(self.right)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._near = self.problem.linearize(self.point)
            self._linearized = graph
        if rtol not in self._adjoint:
            self._adjoint[rtol] = _Iterations(
                lambda g: self.right + self._near.pull(g), self.point, rtol
            )
        self._linearized.replay()
        return self._adjoint[rtol].run


class _Iterations:
    """Some iterations of a map, as one graph."""

    def __init__(self, evaluate: Callable[[Tensor], Tensor], like: Tensor, rtol: float) -> None:
        self.states = like.new_zeros(_EVALUATIONS + 1, *like.shape)
        self.atol = torch.ones_like(like[:, 0])
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad():
            with _side_stream():
                evaluate(self.states[0])
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                for before, after in zip(self.states, self.states[1:], strict=False):
                    after.copy_(evaluate(before))
                change = self.states[1:] - self.states[:-1]
                self.residual = torch.linalg.vector_norm(change, dim=2)
                self.size = torch.linalg.vector_norm(self.states[:-1], dim=2)
                tolerance = torch.add(self.atol, self.size, alpha=rtol)
                self.worst = (self.residual / tolerance).amax(1)

    def run(self, z: Tensor, atol: Tensor) -> Steps:
        self.states[0].copy_(z)
        self.atol.copy_(atol)
        self.graph.replay()
        # the next replay writes over its results
        kept = [t.clone().unbind() for t in (self.states, self.residual, self.size)]
        return Steps(*kept, self.worst.tolist())


@contextmanager
def _side_stream() -> Iterator[None]:
    """A stream for a first call before a recording, in which libraries set themselves up."""
    outside, aside = torch.cuda.current_stream(), torch.cuda.Stream()
    aside.wait_stream(outside)
    with torch.cuda.stream(aside):
        yield
    outside.wait_stream(aside)
