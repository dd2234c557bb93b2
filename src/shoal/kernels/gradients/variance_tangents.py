"""Derivatives of kernel matrices in variances, entry by entry."""

from collections.abc import Iterable

import torch
from torch import Tensor

from shoal.kernels.arguments import checked_samples
from shoal.kernels.function import KernelFunction
from shoal.kernels.gradients.derivatives import own_derivatives
from shoal.kernels.gradients.first_order import Derivatives
from shoal.kernels.gradients.variance_changes import variance_changes
from shoal.kernels.gradients.variance_slopes import slope_entries
from shoal.kernels.inputs import Inputs
from shoal.kernels.plan import GRADIENT_COST, Plan
from shoal.kernels.result import Kernels

_FEW_TANGENTS = 1 << 13  # pairs whose tangents are cheaper one by one than by a surface


def variance_tangents(
    function: KernelFunction, x: Tensor, names: Iterable[str]
) -> dict[str, Kernels]:
    """Derivatives of both kernel matrices of some inputs in variances, entry by entry.

    Args:
        function: The kernels.
        x: The inputs. shape: (n, p)
        names: Of the variances, none of which is zero.

    Returns:
        Two symmetric matrices for each name.

    Example:
        >>> import torch, shoal
        >>> f = shoal.kernel_function(shoal.DEQ("relu", 0.2, 0.8))
        >>> variance_tangents(f, torch.eye(2).double(), ["input_variance"])["input_variance"].ck
        tensor([[0.5556, 0.1863],
                [0.1863, 0.5556]], dtype=torch.float64)
    """
    names = tuple(names)
    inputs = Inputs(checked_samples("x", x))
    plan = Plan.of(function, inputs, inputs, few_pairs=_FEW_TANGENTS, cost=GRADIENT_COST)
    matrix = Derivatives(plan, names, None)
    result = x.new_empty(len(names), 2, len(inputs), len(inputs))
    for strip in plan.strips(None):
        block = result[..., strip.rows, strip.columns]
        cosine = plan.cosines(strip)
        single = matrix.single(strip, cosine).triu(1)
        cosine.masked_fill_(~single.logical_not().triu(1), 0.0)
        for part, whole, entries in matrix.entries(strip, cosine):
            for number, slope in enumerate(matrix.slopes):
                block[number, :, part] = torch.stack(slope_entries(plan.backend, slope, whole))
            if matrix.slopes:
                continue
            block[..., part, :] = 0.0
            changes = variance_changes(function, names, whole, entries.ck, entries.in_cosine[0])
            for number, change in changes:
                block[number, :, part] += change.of_entries(entries)
        where = single.nonzero(as_tuple=True)
        for some, _, _, _, slopes in matrix.pairs(*strip.inputs(where)):
            block[..., where[0][some], where[1][some]] = slopes[2:-1].to(block)
        own = own_derivatives(plan, names, inputs.norm[strip.rows])[2:]
        block.diagonal(dim1=-2, dim2=-1).copy_(own)
        for each in result.flatten(0, 1):
            plan.mirror(each, strip)
    return {name: Kernels(*matrices) for name, matrices in zip(names, result, strict=True)}
