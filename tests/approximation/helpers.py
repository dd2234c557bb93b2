"""Points of a box, and the largest error of a series there."""

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.approximation import Chebyshev, PiecewiseChebyshev

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


def largest_error(series: Chebyshev | PiecewiseChebyshev, function: Callable[..., Tensor]) -> float:
    """The largest difference at scattered points."""
    points = scattered(series.box)
    return float((series(*points) - function(*points)).abs().max())
