r"""Derivatives of kernels at single pairs of inputs, by the implicit function theorem.

They are exact also where a surface has none: near angles of 0 and π, at inputs of zero, and at
inputs with themselves.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from shoal.architectures import ImplicitNetwork
from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError
from shoal.kernels.approximations.surface import (
    Surface,
    to_unit,
)
from shoal.kernels.function import KernelFunction
from shoal.kernels.plan import Plan
from shoal.kernels.result import Kernels
from shoal.numerics import chebyshev_basis, differentiate

_SMALLEST_ANGLE = 1e-7  # at which c still tells an angle, ...
_WIDER = 10.0  # ... unless biases hide it: then angles grow by this factor ...
_WIDEST = 0.1  # ... up to here
_SMALLEST_NORM = 1e-100  # stands in for a norm of zero, of an input with itself
_FEW_NORMS = 2  # that of inputs of one norm, and one that stands for zero
_CORNER = 1e-3  # relative difference of norms below which kinks still make one at an angle of zero
_NOTHING = 1e-8  # stands in for a norm of zero, relative to the other


def derivatives(
    function: KernelFunction,
    names: tuple[str, ...],
    kernels: Callable[..., Kernels],
    *point: Tensor,
) -> tuple[Tensor, Tensor]:
    """Both kernels and their derivatives in the point and in variances, elementwise.

    Args:
        function: Whose variances they are.
        names: Of the variances.
        kernels: Maps a function, in which tensors stand for the variances, and a point to kernels.
        point: Tensors of one shape, in float64.

    Returns:
        Values, of shape (2, ...), and derivatives, of shape (len(point) + len(names), 2, ...).
    """
    values = [torch.full_like(point[0], getattr(function.architecture, name)) for name in names]
    with torch.enable_grad():
        leaves = [t.detach().clone().requires_grad_() for t in (*point, *values)]
        tensors = tuple(zip(names, leaves[len(point) :], strict=True))
        found = kernels(replace(function, variances=tensors), *leaves[: len(point)])
        slopes = [
            torch.stack(
                torch.autograd.grad(k.sum(), leaves, retain_graph=True, materialize_grads=True)
            )
            for k in found
        ]
    return torch.stack([k.detach() for k in found]), torch.stack(slopes, dim=1)


def own_derivatives(plan: Plan, names: tuple[str, ...], norm: Tensor) -> Tensor:
    """Kernels of inputs with themselves: values, derivatives in the norm's log and in variances.

    Args:
        plan: How the matrix is computed; inputs of one norm are taken at that.
        names: Of the variances.
        norm: Norms in float64. shape: (n,)

    Returns:
        All of them. shape: (2 + len(names), 2, n)
    """
    function = plan.function
    if function.architecture.positively_homogeneous:
        return _own_at(function, names, 0.0).to(norm.device) * norm**2
    if plan.squared_norm is not None:
        common = math.sqrt(plan.squared_norm)
        norm = torch.where(norm > common / 2, common, norm)  # the others stand for zero
    norm = norm.clamp(min=_SMALLEST_NORM)
    distinct, inverse = norm.unique(return_inverse=True)
    if len(distinct) <= _FEW_NORMS:
        values = [_own_at(function, names, point) for point in distinct.log().tolist()]
        return torch.cat(values, -1).to(norm.device)[..., inverse]
    return _own(function, names, distinct.cpu().log()).to(norm.device)[..., inverse]


@cached
def _own_at(function: KernelFunction, names: tuple[str, ...], log_norm: float) -> Tensor:
    """Own kernels and derivatives at one norm, kept. shape: (2 + len(names), 2, 1)."""
    return _own(function, names, torch.tensor([log_norm], dtype=torch.float64))


def _own(function: KernelFunction, names: tuple[str, ...], log_norm: Tensor) -> Tensor:
    """Own kernels and their derivatives, one by one, given the logarithms of the norms."""

    def kernels(f: KernelFunction, log: Tensor) -> Kernels:
        return f.own(torch.exp(2 * log))

    values, slopes = derivatives(function, names, kernels, log_norm)
    return torch.cat([values[None], slopes])


def pair_derivatives(
    plan: Plan, names: tuple[str, ...], i: Tensor, j: Tensor, angle: Tensor
) -> Tensor:
    """Derivatives of both kernels at some pairs of rows and columns, whose angles are known.

    Returns:
        Those in the logarithms of both norms at a fixed angle, in variances, and in the angle at
        fixed norms. They remain finite where inputs are parallel. shape: (3 + len(names), 2, n)
    """
    result = angle.new_zeros(3 + len(names), 2, len(i))
    # Along one direction, where c does not tell the angle, pairs of one norm, and all of a
    # positively homogeneous kernel, are as an input with itself.
    norms = plan.left.norm[i], plan.right.norm[j]
    apart = angle
    if not plan.function.architecture.positively_homogeneous:
        apart = torch.maximum(angle, (norms[0] - norms[1]).abs() / torch.maximum(*norms))
        apart = apart.nan_to_num(0.0)  # both are zero
    along = apart == 0 if _smooth(plan.function) else apart < _SMALLEST_ANGLE
    others = (apart > 0).nonzero()[:, 0]
    if len(others):
        result[..., others] = _distinct_pairs(plan, names, i[others], j[others], angle[others])
    if bool(along.any()):
        own = own_derivatives(plan, names, norms[0][along].sqrt() * norms[1][along].sqrt())
        exact = torch.cat([own[1:2] / 2, own[1:2] / 2, own[2:]])
        share = apart[along] / _SMALLEST_ANGLE
        result[:-1, :, along] = exact + share * (result[:-1, :, along] - exact)
    return result


def _distinct_pairs(
    plan: Plan, names: tuple[str, ...], i: Tensor, j: Tensor, angle: Tensor
) -> Tensor:
    """Derivatives at the nearest angles at which all layers tell a pair's inputs apart."""
    smallest, rest = _SMALLEST_ANGLE, torch.arange(len(i), device=i.device)
    result = _pairs_apart(plan, names, i, j, angle, smallest)
    while smallest < _WIDEST:
        rest = rest[(~result[..., rest].isfinite()).flatten(0, -2).any(0)]
        if not len(rest):
            return result
        smallest *= _WIDER
        result[..., rest] = _pairs_apart(plan, names, i[rest], j[rest], angle[rest], smallest)
    raise AccuracyError("the derivatives of the kernel at nearly equal inputs are lost to rounding")


def _pairs_apart(
    plan: Plan, names: tuple[str, ...], i: Tensor, j: Tensor, angle: Tensor, smallest: float
) -> Tensor:
    """Derivatives at angles that are at least so far from 0 and π."""
    left, right = _nonzero_norms(plan, i, j)
    nearest = angle.clamp(smallest, math.pi - smallest)
    a, b, c = left**2, right**2, left * right * nearest.cos()
    _, slopes = derivatives(plan.function, names, lambda f, *point: f(*point), a, b, c)
    in_a, in_b, in_c = slopes[:3]
    turned = angle.expand_as(in_c).clone()
    if not _smooth(plan.function):  # with kinks the NTK's in_c grows as 1/sin θ
        corner = (left - right).abs() < _CORNER * torch.maximum(left, right)
        corner |= plan.function.architecture.positively_homogeneous
        turned[1] = torch.where(corner, nearest, angle)
    around = -left * right * turned.sin() * in_c
    if plan.wide is not None:  # its series is exact at small angles too
        ordinary = (plan.left.norm[i] > 0) & (plan.right.norm[j] > 0)
        around = torch.where(ordinary, _around(plan, plan.wide, i, j, angle), around)
    logs = torch.stack([2 * a * in_a + c * in_c, 2 * b * in_b + c * in_c])
    return torch.cat([logs, slopes[3:], around[None]])


def _smooth(function: KernelFunction) -> bool:
    """Whether no activation has kinks: derivatives in c are finite and continuous at all angles."""
    if isinstance(function.architecture, ImplicitNetwork):
        return False
    return not any(c.activation.kinks for c in function.architecture.layers(function.width).cells)


def _nonzero_norms(plan: Plan, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    """Norms of pairs, and next to nothing instead of zero."""
    left, right = plan.left.norm[i], plan.right.norm[j]
    return (
        torch.where(left > 0, left, _NOTHING * torch.where(right > 0, right, 1.0)),
        torch.where(right > 0, right, _NOTHING * torch.where(left > 0, left, 1.0)),
    )


def angle_gradients(plan: Plan, i: Tensor, j: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the angles of some pairs in both inputs; zero where there is none.

    That in an input of zero is the one in an input next to it, orthogonal to the other.
    """
    first, second = (
        inputs.points[k].double() / inputs.norm[k, None].clamp(min=1e-300)
        for inputs, k in ((plan.left, i), (plan.right, j))
    )
    sign = torch.where(angle < math.pi / 2, 1.0, -1.0)[:, None]
    gap, (left, right) = second - sign * first, _nonzero_norms(plan, i, j)
    both = []
    for own, away, norm, other in (
        (first, gap, left, plan.right.norm[j]),
        (second, -sign * gap, right, plan.left.norm[i]),
    ):
        away = away - (away * own).sum(-1, keepdim=True) * own
        size = (norm * torch.linalg.vector_norm(away, dim=-1)).clamp(min=1e-300)
        both.append(torch.where((other > 0)[:, None], -away / size[:, None], 0.0))
    return both[0], both[1]


def _around(plan: Plan, wide: Surface, i: Tensor, j: Tensor, angle: Tensor) -> Tensor:
    """The derivative in the angle by the series for all angles. shape: (2, n)."""
    low, high = wide.angles
    series = differentiate(wide.coefficients[:, 0, 0]).to(angle) * (2 / (high - low))
    slopes = series @ chebyshev_basis(to_unit(angle, wide.angles), series.shape[1] - 1)
    return slopes * plan.rows.scale[:, i].double() * plan.columns.scale[:, j].double()
