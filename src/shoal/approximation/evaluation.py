"""Evaluation at many points: checks, blocks of bounded memory, and the gradient."""

from collections.abc import Sequence
from functools import reduce
from typing import Any, Protocol, Self, TypeAlias

import torch
from torch import Tensor

__all__ = ["Box", "Evaluable", "evaluate", "fill"]

Box: TypeAlias = tuple[tuple[float, float], ...]

_BLOCK_CPU = 2**14
"""Points at a time on a CPU: the basis rows of a block stay in the second-level cache."""
_BLOCK_OTHER = 2**18
"""Points at a time elsewhere: enough to hide the launch of the kernels."""


class Evaluable(Protocol):
    """What `evaluate` asks of an approximation."""

    @property
    def box(self) -> Box:
        """Lower and upper end per axis."""
        ...

    def evaluate_block(self, points: Sequence[Tensor]) -> Tensor:
        """Return the values at equally long, unchecked float64 vectors, one per axis."""
        ...

    def derivative(self, axis: int) -> Self:
        """Return the partial derivative along ``axis``."""
        ...


def evaluate(
    approximation: Evaluable, points: Sequence[Tensor | float], *, blocks: int = 1
) -> Tensor:
    """Return the values at broadcastable points, differentiable in them any number of times.

    Args:
        approximation: What to evaluate.
        points: One tensor or float per axis.
        blocks: How many elementary blocks are handed over at a time.

    Returns:
        The values, computed in float64, in the widest dtype of the points, on their device.

    Raises:
        TypeError: A point is neither a float nor a floating-point tensor.
        ValueError: The number of axes is wrong, or a point is NaN or outside the box.
    """
    box = approximation.box
    if len(points) != len(box):
        raise ValueError(f"points must be given for {len(box)} axes, got {len(points)}")
    tensors = _as_tensors(points)
    for axis, (tensor, (low, high)) in enumerate(zip(tensors, box, strict=True)):
        _check_range(axis, tensor.detach(), low, high)
    shared = torch.broadcast_tensors(*tensors)
    values: Tensor = _Evaluate.apply(approximation, blocks, *shared)  # type: ignore[no-untyped-call]
    return values


def fill(
    out: Tensor, points: Sequence[Tensor], approximation: Evaluable, *, blocks: int = 1
) -> None:
    """Write the values at unchecked ``points``, of the shape of ``out``, into it, by blocks.

    Expanded points are cut before they are copied, so that the work space depends on the size of
    the block alone.
    """
    size = blocks * (_BLOCK_CPU if out.device.type == "cpu" else _BLOCK_OTHER)
    if out.numel() > size:
        dim = max(range(out.ndim), key=out.size)
        step = max(1, size * out.shape[dim] // out.numel())
        for part, *cut in zip(
            out.split(step, dim), *(p.split(step, dim) for p in points), strict=True
        ):
            fill(part, cut, approximation, blocks=blocks)
    elif out.numel() > 0:
        columns = [p.reshape(-1).to(torch.float64) for p in points]
        out.copy_(approximation.evaluate_block(columns).view(out.shape))


class _Evaluate(torch.autograd.Function):
    """Blockwise values; the gradient is the same evaluation of the derivatives."""

    @staticmethod
    def forward(approximation: Evaluable, blocks: int, *points: Tensor) -> Tensor:
        dtype = reduce(torch.promote_types, (p.dtype for p in points))
        out = torch.empty(points[0].shape, dtype=dtype, device=points[0].device)
        fill(out, points, approximation, blocks=blocks)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.approximation, ctx.blocks, *points = inputs
        ctx.save_for_backward(*points)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        points, results = ctx.saved_tensors, []
        for axis, point in enumerate(points):
            if not ctx.needs_input_grad[axis + 2]:
                results.append(None)
                continue
            slope = evaluate(ctx.approximation.derivative(axis), points, blocks=ctx.blocks)
            results.append((grads[0] * slope).to(point.dtype))
        return None, None, *results


def _as_tensors(points: Sequence[Tensor | float]) -> list[Tensor]:
    """Return all points as floating-point tensors on one device; floats follow the tensors."""
    tensors = [p for p in points if isinstance(p, Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    dtype = reduce(torch.promote_types, (p.dtype for p in tensors)) if tensors else torch.float64
    result = []
    for axis, point in enumerate(points):
        if isinstance(point, float):
            point = torch.tensor(point, dtype=dtype, device=device)
        if not isinstance(point, Tensor) or not point.dtype.is_floating_point:
            kind = point.dtype if isinstance(point, Tensor) else type(point).__name__
            raise TypeError(f"points of axis {axis} must be floating-point, got {kind}")
        if point.device != device:
            raise ValueError(f"points must share a device, got {device} and {point.device}")
        result.append(point)
    return result


def _check_range(axis: int, points: Tensor, low: float, high: float) -> None:
    """Raise where a point is NaN or beyond the ends by more than their rounding."""
    if points.numel() == 0:
        return
    smallest, largest = torch.stack(torch.aminmax(points)).tolist()
    slack = 4 * torch.finfo(points.dtype).eps * max(abs(low), abs(high))
    if smallest != smallest:
        raise ValueError(f"points of axis {axis} must not be NaN")
    if smallest < low - slack or largest > high + slack:
        raise ValueError(
            f"points of axis {axis} must lie in [{low:g}, {high:g}], "
            f"got values from {smallest:g} to {largest:g}"
        )
