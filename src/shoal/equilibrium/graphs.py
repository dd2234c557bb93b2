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

__all__ = ["StepGraph", "iterated"]

_LOGGER = logging.getLogger(__name__)

Step = Callable[..., Tensor]  # of the iterate, tensors that differ between solves, and weights
_AFTER = 4  # runs of the same steps after which they are worth a graph: a second solve
_KEPT = 8  # graphs, each with memory for a few iterates
_TOGETHER = 4  # steps of one launch, where there are so many


class StepGraph:
    """A step, and a few of them together, ready to be started on the device.

    Args:
        step: Called with the iterate, ``changing`` and ``weights``; must be hashable and depend on
            nothing else.
        z: An iterate.
        changing: Tensors that are copied before each run.
        weights: Tensors that are used where they are.
        capture: Makes of a function one that does the same on the device again.
    """

    def __init__(
        self,
        step: Step,
        z: Tensor,
        changing: Sequence[Tensor],
        weights: Sequence[Tensor],
        capture: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        self._z, self._changing = z.clone(), [tensor.clone() for tensor in changing]
        self._lock = Lock()

        def steps(count: int) -> Callable[[], None]:
            def run() -> None:
                new = self._z
                for _ in range(count):
                    new = step(new, *self._changing, *weights)
                self._z.copy_(new)

            return capture(run)

        self._several, self._one = steps(_TOGETHER), steps(1)

    def run(self, z: Tensor, changing: Sequence[Tensor], count: int) -> Tensor:
        """The iterate after so many steps."""
        with self._lock:  # what is started in this order is done in this order
            self._z.copy_(z)
            for own, tensor in zip(self._changing, changing, strict=True):
                own.copy_(tensor)
            for _ in range(count // _TOGETHER):
                self._several()
            for _ in range(count % _TOGETHER):
                self._one()
            return self._z.clone()


class _Graphs:
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


_GRAPHS = _Graphs()


def iterated(
    step: Step, z: Tensor, changing: Sequence[Tensor], weights: Sequence[Tensor], count: int
) -> Tensor:
    """The iterate after so many steps, by a graph where these steps recur on a GPU; no gradient.

    Args:
        step: See :class:`StepGraph`.
        z: Where to start.
        changing: Tensors that differ between solves.
        weights: Tensors that keep their places.
        count: How many steps.
    """
    graph = None
    if z.is_cuda and not torch.cuda.is_current_stream_capturing():
        tensors = (z, *changing, *weights)
        if not is_transformed(*tensors):
            key = (step, _settings(z), *map(_kind, tensors), *(w.data_ptr() for w in weights))
            graph = _GRAPHS.find(key, lambda: _captured(step, z, changing, weights))
    if graph is not None:
        return graph.run(z, changing, count)
    for _ in range(count):
        z = step(z, *changing, *weights)
    return z


def _kind(tensor: Tensor) -> Hashable:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _settings(z: Tensor) -> Hashable:
    """What decides on a launch besides its tensors."""
    stream = torch.cuda.current_stream(z.device).cuda_stream
    return stream, torch.backends.cuda.matmul.fp32_precision


def _captured(
    step: Step, z: Tensor, changing: Sequence[Tensor], weights: Sequence[Tensor]
) -> StepGraph:
    """A graph on the device of the iterate; its memory is not that of inference mode."""
    with torch.inference_mode(mode=False), torch.no_grad(), torch.cuda.device(z.device):
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()

        def capture(run: Callable[[], None]) -> Callable[[], None]:
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

        return StepGraph(step, z.detach(), [t.detach() for t in changing], weights, capture)
