"""Points of a box, and the largest error of a series there."""

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.numerics import Chebyshev

Box = tuple[tuple[float, float], ...]


def scattered(box: Box, count: int = 50_000) -> list[Tensor]:
    """Random points of a box, with its corners among them."""
    generator = torch.Generator().manual_seed(0)
    points = []
    for axis, (low, high) in enumerate(box):
        x = low + (high - low) * torch.rand(count, dtype=torch.float64, generator=generator)
        corner = torch.arange(8) >> axis & 1
        x[:8] = torch.tensor([low, high], dtype=torch.float64)[corner][:count]
        points.append(x)
    return points


def on_grid(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An elementwise function as one of the nodes of each axis."""
    return lambda *nodes: function(*torch.meshgrid(*nodes, indexing="ij"))


def largest_error(series: Chebyshev, function: Callable[..., Tensor]) -> float:
    """The largest difference at scattered points."""
    points = scattered(series.box)
    return float((series(*points) - function(*points)).abs().max())
