"""Functions of tensors as CUDA graphs, which start on a GPU without Python in between.

A graph knows addresses, not tensors. So what a function takes is copied to a graph's own memory,
but for weights, whose addresses are part of what a graph is known by: optimizers change them in
place.
"""

from collections.abc import Callable, Hashable, Sequence
from threading import Lock

import torch
from torch import Tensor

from shoal.core.torch_compat import (
    foreach_copy_,
    in_forward_mode,
    is_reusing_weights,
    is_traced,
    is_transformed,
)

Function = Callable[..., tuple[tuple[Tensor, ...], Tensor]]  # what it makes, and what to look at
Capture = Callable[[Callable[[], None]], Callable[[], None]]


class Recording:
    """A function of tensors, ready to be started on the device.

    Args:
        function: Returns tensors, and one of float64 whose numbers the host wants to see.
        tensors: What it is called with: tensors that are copied before each run.
        capture: Makes of a procedure one that does the same on the device again.
    """

    def __init__(self, function: Function, tensors: Sequence[Tensor], capture: Capture) -> None:
        self._own = [tensor.detach().clone() for tensor in tensors]
        self._lock = Lock()
        self._made: tuple[Tensor, ...] = ()
        self._seen: Tensor | None = None

        def run() -> None:
            self._made, seen = function(*self._own)
            if self._seen is None:  # where the device writes without the host's waiting
                self._seen = torch.empty(seen.shape, dtype=seen.dtype, pin_memory=seen.is_cuda)
            self._seen.copy_(seen, non_blocking=True)

        self._replay = capture(run)

    def run(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[float]]:
        """What the function makes of tensors like those it was recorded with; no gradient."""
        with self._lock, torch.no_grad():  # what is started in this order is done in this order
            if len(self._own) == 1:
                self._own[0].copy_(tensors[0])
            else:
                foreach_copy_(self._own, list(tensors))
            self._replay()
            found = [torch.empty_like(made) for made in self._made]
            foreach_copy_(found, list(self._made))
            if self._own[0].is_cuda:
                torch.cuda.current_stream(self._own[0].device).synchronize()
            assert self._seen is not None
            return found, self._seen.tolist()


_PLAIN = (Tensor, torch.nn.Parameter)  # others have operations of their own


def can_record(*tensors: Tensor) -> bool:
    """Whether functions of these tensors may be recorded now: no one wants to see operations.

    All of them must be on one device: a number on the host would be read once, when recording.
    """
    device = tensors[0].device
    return (
        _on_gpu(tensors[0])
        and all(type(tensor) in _PLAIN and tensor.device == device for tensor in tensors)
        and not is_reusing_weights()
        and not is_transformed(*tensors)
        and not in_forward_mode()
        and not is_traced()
    )


def _on_gpu(tensor: Tensor) -> bool:
    """Whether it is on a device where graphs can be captured now."""
    return tensor.is_cuda and not torch.cuda.is_current_stream_capturing()


def place(changing: Sequence[Tensor], weights: Sequence[Tensor]) -> Hashable:
    """What a graph of such tensors depends on besides its function."""
    device = changing[0].device
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return (
        stream,
        device,
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        torch.are_deterministic_algorithms_enabled(),
        *((t.shape, t.stride(), t.dtype) for t in (*changing, *weights)),
        *(weight.data_ptr() for weight in weights),
    )


def captured(function: Function, tensors: Sequence[Tensor]) -> Recording:
    """A graph on the device of the tensors; its memory is not that of inference mode."""
    with torch.inference_mode(mode=False), torch.no_grad(), torch.cuda.device(tensors[0].device):
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

        return Recording(function, tensors, capture)
