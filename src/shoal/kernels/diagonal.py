"""Kernels of inputs with their partners: the diagonal of a matrix, and nothing else of it."""

import numpy as np
import torch
from torch import Tensor

from shoal.core.exceptions import AccuracyError
from shoal.kernels.approximations.choice import ANGULAR_TOLERANCE, common_norm
from shoal.kernels.approximations.surface import angular_surface
from shoal.kernels.function import KernelFunction
from shoal.kernels.inputs import Inputs, pair_angles
from shoal.kernels.plan import check_overflow, pairs_at_angles
from shoal.kernels.result import Kernels


def own_diagonal(function: KernelFunction, x: Tensor) -> Kernels:
    """Both kernels of each input with itself, in the dtype of the inputs. shapes: (..., n)."""
    square = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64) ** 2
    check_overflow(square.detach(), square.detach(), torch.float64)
    return _rounded(function.own(square), x.dtype)


def partner_diagonal(function: KernelFunction, first: Tensor, second: Tensor) -> Kernels:
    """Both kernels of each input with its partner, from angles as exact as those of a matrix."""
    dtype = first.dtype
    batch = np.broadcast_shapes(first.shape[:-1], second.shape[:-1])
    first, second = (x.expand(*batch, x.shape[-1]).double() for x in (first, second))
    left, right = (Inputs(x.detach().reshape(-1, x.shape[-1])) for x in (first, second))
    check_overflow(left.norm**2, right.norm**2, torch.float64)
    values = _values(function, left, right).view(2, *batch)
    kernels = Kernels(values[0], values[1])
    tensors = first, second, *(value for _, value in function.variances)
    if torch.is_grad_enabled() and any(
        t.requires_grad for t in tensors
    ):  # values as above, derivatives by the products
        norms = [torch.linalg.vector_norm(x, dim=-1) for x in (first, second)]
        bound = norms[0] * norms[1]
        products = torch.minimum(torch.maximum((first * second).sum(-1), -bound), bound)
        smooth = function(norms[0] ** 2, norms[1] ** 2, products)
        kernels = Kernels(*(k + (s - s.detach()) for k, s in zip(kernels, smooth, strict=True)))
    return _rounded(kernels, dtype)


def _values(function: KernelFunction, left: Inputs, right: Inputs) -> Tensor:
    """Both kernels, by a series in the angle if norms do not matter, or scalar equations."""
    each = torch.arange(len(left), device=left.points.device)
    angle = pair_angles(left, right, each, each, (left.unit * right.unit).sum(-1))
    norms = torch.cat([left.norm, right.norm])
    present = norms[norms > 0]
    square = common_norm(function, present, torch.float64) if len(present) else None
    if square is None:
        return pairs_at_angles(function, left.norm, right.norm, angle)
    try:
        series = angular_surface(function, square, ANGULAR_TOLERANCE[torch.float64])
    except AccuracyError:  # too rough for one series
        return pairs_at_angles(function, left.norm, right.norm, angle)
    own, ones = angle.new_tensor(series.diagonal)[:, None], series.features(left.norm)
    values = own * series.pairs(ones, ones, angle)
    if function.architecture.positively_homogeneous:
        return values * left.norm * right.norm
    zero = (left.norm == 0) | (right.norm == 0)  # which the series does not know
    if bool(zero.any()):
        values[:, zero] = pairs_at_angles(function, left.norm[zero], right.norm[zero], angle[zero])
    return values


def _rounded(kernels: Kernels, dtype: torch.dtype) -> Kernels:
    for values in kernels:
        check_overflow(values.detach(), values.detach(), dtype)
    return Kernels(*(k.to(dtype) for k in kernels))
