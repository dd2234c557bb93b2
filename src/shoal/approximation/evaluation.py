"""Evaluation at many points: checks, and blocks of bounded memory."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from shoal.core import checks

if TYPE_CHECKING:
    from .chebyshev import Chebyshev
    from .piecewise import PiecewiseChebyshev

__all__ = ["Box", "evaluate", "fill"]

Box: TypeAlias = tuple[tuple[float, float], ...]

_BLOCK_CPU = 2**21
"""Numbers in the work space of a block on a CPU: measured; fewer cost overhead, more the cache."""
_BLOCK_OTHER = 2**25
"""The same elsewhere: enough to hide the launch of the kernels."""


def evaluate(
    approximation: "Chebyshev | PiecewiseChebyshev", points: Sequence[Tensor | float]
) -> Tensor:
    """Return the values at broadcastable points.

    Args:
        approximation: What to evaluate.
        points: One tensor or float per axis.

    Returns:
        The values, computed in float64, in the widest dtype of the points, on their device.

    Raises:
        TypeError: A point is neither a float nor a floating-point tensor.
        ValueError: The number of axes is wrong, or a point is NaN, outside the box or requires
            gradients, which series do not have.
    """
    box = approximation.box
    if len(points) != len(box):
        raise ValueError(f"points must be given for {len(box)} axes, got {len(points)}")
    tensors = _as_tensors(points)
    for axis, (tensor, (low, high)) in enumerate(zip(tensors, box, strict=True)):
        _check_range(axis, tensor.detach(), low, high)
    shape = np.broadcast_shapes(*(tensor.shape for tensor in tensors))
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    out = torch.empty(shape, dtype=dtype, device=tensors[0].device)
    fill(out, [tensor.detach().expand(shape) for tensor in tensors], approximation)
    return out


def fill(
    out: Tensor, points: Sequence[Tensor], approximation: "Chebyshev | PiecewiseChebyshev"
) -> None:
    """Write the values at unchecked ``points``, of the shape of ``out``, into it, by blocks.

    Expanded points are cut before they are copied, so that the work space does not depend on the
    number of points.
    """
    numbers = _BLOCK_CPU if out.device.type == "cpu" else _BLOCK_OTHER
    size = max(1, numbers // approximation.workspace)
    if out.numel() > size:
        dim = max(range(out.ndim), key=out.size)
        step = max(1, size * out.shape[dim] // out.numel())
        for part, *cut in zip(
            torch.split(out, step, dim), *(torch.split(p, step, dim) for p in points), strict=True
        ):
            fill(part, cut, approximation)
    elif out.numel() > 0:
        columns = [p.reshape(-1).to(torch.float64) for p in points]
        out.copy_(approximation.evaluate_block(columns).view(out.shape))


def _as_tensors(points: Sequence[Tensor | float]) -> list[Tensor]:
    """Return all points as floating-point tensors on one device; floats follow the tensors."""
    for axis, point in enumerate(points):
        if isinstance(point, Tensor):
            checks.dense_tensor(f"points of axis {axis}", point)
        if not isinstance(point, Tensor | float):
            kind = type(point).__name__
            raise TypeError(f"points of axis {axis} must be a tensor or a float, got {kind}")
    tensors = [point for point in points if isinstance(point, Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    for tensor in tensors:
        if tensor.device != device:
            raise ValueError(f"points must share a device, got {device} and {tensor.device}")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError("points must not require gradients: series are not differentiated")
    for tensor in tensors:
        checks.known_tensor("points", tensor)
    dtype = reduce(torch.promote_types, [t.dtype for t in tensors] or [torch.float64])
    return [
        point if isinstance(point, Tensor) else torch.tensor(point, dtype=dtype, device=device)
        for point in points
    ]


def _check_range(axis: int, points: Tensor, low: float, high: float) -> None:
    """Raise where a point is NaN or beyond the ends by more than their rounding."""
    if points.numel() == 0:
        return
    smallest, largest = torch.stack(torch.aminmax(points)).tolist()
    slack = 4 * torch.finfo(points.dtype).eps * max(abs(low), abs(high))
    if math.isnan(smallest):
        raise ValueError(f"points of axis {axis} must not be NaN")
    if smallest < low - slack or largest > high + slack:
        raise ValueError(
            f"points of axis {axis} must lie in [{low:g}, {high:g}], "
            f"got values from {smallest:g} to {largest:g}"
        )
