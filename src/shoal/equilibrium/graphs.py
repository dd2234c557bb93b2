"""Steps of an iteration on a GPU as CUDA graphs, which start without Python in between.

A graph knows addresses, not tensors. So what a step takes is copied to a graph's own memory, but
for weights, whose addresses are part of what a graph is known by: optimizers change them in place.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock

import torch
from torch import Tensor

from shoal.core.torch_internals import is_transformed
from shoal.equilibrium.problem import Evaluation, Opening, residual_norms

__all__ = ["StepGraph", "step_graph"]

_LOGGER = logging.getLogger(__name__)

Step = Callable[..., Evaluation]  # of the iterate, tensors that differ between solves, and weights
Work = Callable[[], None]
_AFTER = 4  # runs of the same steps after which they are worth a graph
_KEPT = 8  # graphs, each with memory for a few iterates
_TOGETHER = 4  # steps of one launch, where there are so many


class StepGraph:
    """The first steps of an iteration, and later ones, ready to be started on the device.

    Args:
        step: Called with the iterate, ``changing`` and ``weights``; depends on nothing else.
        z: An iterate.
        changing: Tensors that are copied before each run.
        weights: Tensors that are used where they are.
        first: How many steps the first ones are.
        capture: Makes of a function one that does the same on the device again.
    """

    def __init__(
        self,
        step: Step,
        z: Tensor,
        changing: Sequence[Tensor],
        weights: Sequence[Tensor],
        first: int,
        capture: Callable[[Work], Work],
    ) -> None:
        self.first = first
        self._z, self._changing = z.clone(), [tensor.clone() for tensor in changing]
        self._lock = Lock()
        begun = step(self._z, *self._changing, *weights)
        self._keeps = begun.kept is not None
        several = [begun.value] * (5 if self._keeps else 3)
        self._found = torch.stack(several)
        self._norms = torch.stack([residual_norms(begun.value, self._z)] * 2)

        def evaluated(z: Tensor) -> Evaluation:
            return step(z, *self._changing, *weights)

        def steps(z: Tensor, count: int) -> Tensor:
            for _ in range(count):
                z = evaluated(z).value
            return z

        def open_() -> None:
            begun = evaluated(self._z)
            z = steps(begun.value, first - 1)
            ended = evaluated(z)
            parts = (z, begun.value, ended.value, begun.kept, ended.kept)
            torch.stack([part for part in parts if part is not None], out=self._found)
            norms = residual_norms(begun.value, self._z), residual_norms(ended.value, z)
            torch.stack(norms, out=self._norms)

        self._open = capture(open_)
        self._several = capture(lambda: _set(self._z, steps(self._z, _TOGETHER)))
        self._one = capture(lambda: _set(self._z, steps(self._z, 1)))

    def opening(self, z: Tensor, changing: Sequence[Tensor]) -> Opening:
        """The first steps."""
        with self._lock:  # what is started in this order is done in this order
            self._take(z, changing)
            self._open()
            new, begun, ended, *kept = self._found.clone()
            inner = kept if self._keeps else (None, None)
            # which waits for all of it, as the iteration does that looks at the norms
            norms = torch.empty_like(self._norms, device="cpu").copy_(self._norms)
            return Opening(Evaluation(begun, inner[0]), new, Evaluation(ended, inner[1]), norms)

    def iterated(self, z: Tensor, changing: Sequence[Tensor], count: int) -> Tensor:
        """The iterate after so many steps."""
        with self._lock:
            self._take(z, changing)
            for _ in range(count // _TOGETHER):
                self._several()
            for _ in range(count % _TOGETHER):
                self._one()
            return self._z.clone()

    def _take(self, z: Tensor, changing: Sequence[Tensor]) -> None:
        self._z.copy_(z)
        for own, tensor in zip(self._changing, changing, strict=True):
            own.copy_(tensor)


def _set(place: Tensor, value: Tensor) -> None:
    place.copy_(value)


class Graphs:
    """The graphs that were used last, and how often steps without one have run."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, StepGraph | int] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Hashable, make: Callable[[], StepGraph]) -> StepGraph | None:
        """The graph of a key, made if it has been asked for often enough."""
        with self._lock:
            found = self._known.pop(key, 0)
            if isinstance(found, int) and found >= 0:
                found = self._made(make) if found >= _AFTER else found + 1
            self._known[key] = found
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return None if isinstance(found, int) else found

    @staticmethod
    def _made(make: Callable[[], StepGraph]) -> StepGraph | int:
        try:
            return make()
        except RuntimeError as error:  # steps run one by one as before
            _LOGGER.warning("no CUDA graph of the steps of an equilibrium: %s", error)
            return -1


_GRAPHS = Graphs()


def step_graph(
    step: Step, z: Tensor, changing: Sequence[Tensor], weights: Sequence[Tensor], first: int
) -> StepGraph | None:
    """The graph of steps that recur on a GPU, or ``None`` if they are made one by one.

    Args:
        step: See :class:`StepGraph`; hashable.
        z: An iterate.
        changing: Tensors that differ between solves.
        weights: Tensors that keep their places.
        first: How many steps the first ones are.
    """
    tensors = (z, *changing, *weights)
    if not z.is_cuda or torch.cuda.is_current_stream_capturing() or is_transformed(*tensors):
        return None
    stream = torch.cuda.current_stream(z.device).cuda_stream
    settings = first, stream, torch.backends.cuda.matmul.fp32_precision
    key = (step, settings, *map(_kind, tensors), *(w.data_ptr() for w in weights))
    return _GRAPHS.find(key, lambda: _captured(step, z, changing, weights, first))


def _kind(tensor: Tensor) -> Hashable:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _captured(
    step: Step, z: Tensor, changing: Sequence[Tensor], weights: Sequence[Tensor], first: int
) -> StepGraph:
    """A graph on the device of the iterate; its memory is not that of inference mode."""
    with torch.inference_mode(mode=False), torch.no_grad(), torch.cuda.device(z.device):
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()

        def capture(run: Work) -> Work:
            side.wait_stream(here)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(side):
                run()  # once before, as libraries set themselves up
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    run()
                finally:
                    graph.capture_end()
            here.wait_stream(side)
            return graph.replay

        plain = [tensor.detach() for tensor in changing]
        return StepGraph(step, z.detach(), plain, weights, first, capture)
