"""Derivatives of kernels in variances as functions of norms and angles, with surfaces of their own.

They serve where a change of a variance is none of norms and cosines, as that of the biases of an
explicit network (see :mod:`shoal.kernels.gradients.variance_changes`).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.kernels.approximations.choice import TOLERANCE
from shoal.kernels.approximations.surface import Span, Surface, norm_span, part_surface, surface
from shoal.kernels.backends import Block, Blocks, DifferentiableBlock, Pair
from shoal.kernels.function import KernelFunction
from shoal.kernels.gradients.derivatives import derivatives
from shoal.kernels.plan import Plan
from shoal.kernels.result import Kernels


@dataclass(frozen=True)
class _Slope(KernelFunction):
    """The derivative of a kernel function in a variance; that of an input with itself is kept.

    Attributes:
        name: Of the variance.
    """

    name: str = ""

    def _pairs(self, a: Tensor, b: Tensor, c: Tensor) -> Kernels:
        plain = KernelFunction(self.architecture, self.trainable, self.width)
        point = torch.broadcast_tensors(a, b, c)
        _, slopes = derivatives(plain, (self.name,), lambda f, *point: f(*point), *point)
        return Kernels(*slopes[-1])


def slope_surface(plan: Plan, name: str, angles: Span) -> Surface:
    """The surface of the derivatives in a variance, divided by the roots of the diagonals.

    Args:
        plan: How the matrix is computed.
        name: Of the variance.
        angles: Range of the angles, without 0 and π.

    Raises:
        AccuracyError: If there is none, or it costs more than the entries.
    """
    function, tolerance = plan.function, 10 * TOLERANCE[plan.left.points.dtype]
    slope = _Slope(function.architecture, function.trainable, function.width, name=name)
    if plan.squared_norm is not None:
        return part_surface(slope, plan.squared_norm, angles, tolerance)
    norms = torch.cat([plan.left.norm, plan.right.norm])
    return surface(slope, norm_span(norms[norms > 0]), angles, tolerance, plan.pairs)


def slope_entries(backend: Blocks, slope: Surface, block: DifferentiableBlock) -> Pair:
    """The derivatives of both kernels of a block in a variance."""
    rows, columns = (
        replace(side.plain, features=slope.features(side.norm).to(side.plain.features))
        for side in (block.rows, block.columns)
    )
    found = torch.empty_like(block.cosine), torch.empty_like(block.cosine)
    backend.evaluate(Block(slope, rows, columns, block.cosine), found)
    return found
