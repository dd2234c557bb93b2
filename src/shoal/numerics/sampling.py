"""Values of a function on nested Chebyshev grids, each of them computed once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from shoal.core import checks

from .chebyshev import Box
from .series import chebyshev_nodes, coefficients_from_values

Function: TypeAlias = Callable[..., Tensor]

_CHECK_POINTS = (128, 24, 10)
"""Off-grid points per axis for one, two, three variables: up to 1000 values of the function."""
_IRRATIONALS = (math.sqrt(5) / 2 - 0.5, math.sqrt(2) - 1, math.sqrt(3) - 1)


@dataclass(frozen=True, eq=False)
class Samples:
    """A function, or several, on the tensor grid of Chebyshev nodes of a box.

    Args:
        function: Takes a vector of nodes per axis, returns the values on their tensor grid.
        box: Lower and upper end per axis.
        values: The values. shape: (..., n_0 + 1, n_1 + 1, ...), n the degrees
    """

    function: Function
    box: Box
    values: Tensor

    @classmethod
    def first(
        cls, function: Function, box: Box, max_degrees: Sequence[int], degree: int
    ) -> "Samples":
        """Sample a function on the coarsest grid, of a degree along each axis."""
        degrees = [min(degree, largest) for largest in max_degrees]
        return cls(function, box, function(*_grid(box, degrees)))

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degree per axis."""
        return tuple(size - 1 for size in self.values.shape[-len(self.box) :])

    @property
    def nodes(self) -> list[Tensor]:
        """Nodes per axis."""
        return _grid(self.box, self.degrees)

    @property
    def scale(self) -> float:
        """Largest absolute value."""
        return float(self.values.abs().max())

    def profile(self, axis: int) -> Tensor:
        """Return the largest Chebyshev coefficients, by degree, among the fibres of an axis."""
        dim = axis - len(self.box)
        fibres = coefficients_from_values(self.values, dim).movedim(dim, 0)
        return fibres.flatten(1).abs().amax(1) if fibres.ndim > 1 else fibres.abs()

    def refined(self, axis: int) -> "Samples":
        """Return the samples with twice the degree along ``axis``; only new values are computed."""
        nodes = self.nodes
        low, high = self.box[axis]
        degree, dim = 2 * self.degrees[axis], axis - len(self.box)
        nodes[axis] = chebyshev_nodes(degree, low, high)[1::2]
        between = self.function(*nodes)
        known = self.values.movedim(dim, 0)
        fibres = known.new_empty(degree + 1, *known.shape[1:])
        fibres[::2], fibres[1::2] = known, between.movedim(dim, 0)
        values = fibres.movedim(0, dim).contiguous()
        return replace(self, values=values)


def _grid(box: Box, degrees: Sequence[int]) -> list[Tensor]:
    pairs = zip(box, degrees, strict=True)
    return [chebyshev_nodes(degree, low, high) for (low, high), degree in pairs]


def off_grid(box: Box, count: int | None = None) -> list[Tensor]:
    """Return ascending quasi-random points per axis, as dense as Chebyshev nodes near the ends.

    Args:
        box: Lower and upper end per axis.
        count: How many there are per axis; by default up to 1000 in all.

    Example:
        >>> [len(points) for points in off_grid(((0.0, 1.0), (0.0, 2.0)))]
        [24, 24]
    """
    count = _CHECK_POINTS[len(box) - 1] if count is None else count
    steps = torch.arange(count, dtype=torch.float64) + 0.5
    points = []
    for (low, high), irrational in zip(box, _IRRATIONALS, strict=False):
        t = torch.cos(math.pi * (steps * irrational).frac()).sort().values
        points.append((low * (1 - t) + high * (1 + t)) / 2)
    return points


def sampled_function(function: Function) -> Function:
    """Return ``function``, as one of node vectors, with its values checked.

    Raises:
        ValueError: When called: the values are not finite, or their last dimensions not those of
            the grid.
    """
    checks.function("function", function)

    def sample(*nodes: Tensor) -> Tensor:
        shape = torch.Size(len(axis) for axis in nodes)
        with torch.no_grad():
            values = checks.float_tensor("values of the function", function(*nodes))
        if values.shape[-len(nodes) :] != shape:
            raise ValueError(
                f"values of the function must have shape {tuple(shape)}, one dimension per axis, "
                f"got {tuple(values.shape)}"
            )
        return values.to(nodes[0])

    return sample
