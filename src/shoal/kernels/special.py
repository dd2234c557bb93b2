r"""Derivatives of single pairs, by the implicit function theorem at the fixed point of each.

A kernel is differentiated in $a$, $b$ and $c$, and from there in the logarithms of both norms, at a
fixed angle, and in the angle, at fixed norms. Those remain finite where inputs are parallel.
"""

import math

import torch
from torch import Tensor

from shoal.approximation import chebyshev_basis, differentiate
from shoal.kernels.function import KernelFunction
from shoal.kernels.inputs import Inputs, pair_angles
from shoal.kernels.plan import Plan
from shoal.kernels.result import Kernels
from shoal.kernels.slopes import derivatives, own_slopes
from shoal.kernels.sums import Sums
from shoal.kernels.surface import Surface, to_unit

__all__ = ["add_pairs", "pair_tangents"]

_PAIRS = 1 << 14  # pairs that are differentiated together
_SMALLEST_ANGLE = 1e-7  # at which c still tells an angle; a smaller one, and zero, counts as this
_SMALLEST_NORM = 1e-100  # stands in for a norm of zero, of an input with itself
_NOTHING = 1e-8  # stands in for a norm of zero, relative to the other


def add_pairs(plan: Plan, sums: Sums, i: Tensor, j: Tensor, upstream: Tensor) -> None:
    """Add what some pairs contribute to the gradients.

    Args:
        plan: How the matrix is computed.
        sums: What is added to.
        i: Rows. shape: (n,)
        j: Columns. shape: (n,)
        upstream: The gradients of both kernels in float64. shape: (2, n)
    """
    for part in range(0, len(i), _PAIRS):
        some = slice(part, part + _PAIRS)
        _add_some(plan, sums, i[some], j[some], upstream[:, some])


def pair_tangents(plan: Plan, names: tuple[str, ...], i: Tensor, j: Tensor) -> Tensor:
    """Derivatives of both kernels in variances at some pairs. shape: (len(names), 2, n)."""
    cosine = (plan.left.unit[i] * plan.right.unit[j]).sum(-1)
    angle = pair_angles(plan.left, plan.right, i, j, cosine)
    result = torch.empty(len(names), 2, len(i), dtype=torch.float64, device=i.device)
    # along one direction, where the derivative in c has lost the angle, there is a better way
    along, own = _along(plan, names, i, j, angle)
    others = (~(along & (angle == 0))).nonzero()[:, 0]
    for some in others.split(_PAIRS) if len(others) else ():  # nothing is split into one part
        point = _point(plan, (i[some], j[some]), angle[some])
        result[..., some] = derivatives(plan.function, names, _kernels, *point)[1][3:]
    share = (angle[along] / _SMALLEST_ANGLE).clamp(max=1.0)
    result[..., along] = torch.where(share > 0, own + share * (result[..., along] - own), own)
    return result


def _along(
    plan: Plan, names: tuple[str, ...], i: Tensor, j: Tensor, angle: Tensor
) -> tuple[Tensor, Tensor]:
    """Which pairs have one direction and are as an input with itself, and their derivatives.

    These are pairs of one norm, and all of a positively homogeneous kernel.
    """
    left, right = plan.left.norm[i], plan.right.norm[j]
    along = angle < _SMALLEST_ANGLE
    if not plan.function.architecture.positively_homogeneous:
        along &= left == right
    if not bool(along.any()):
        return along, angle.new_empty(len(names), 2, 0)
    norm = (left[along].sqrt() * right[along].sqrt()).clamp(min=_SMALLEST_NORM)
    return along, own_slopes(plan.function, names, norm)[2:]


def _twins(plan: Plan, i: Tensor, j: Tensor, angle: Tensor) -> Tensor:
    """Which pairs are an input and its own copy."""
    return (angle == 0) & (plan.left.norm[i] == plan.right.norm[j])


def _point(plan: Plan, pair: tuple[Tensor, Tensor], angle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where pairs are differentiated: a, b and c."""
    norms = plan.left.norm[pair[0]], plan.right.norm[pair[1]]
    left, right = (
        torch.where(n > 0, n, _NOTHING * torch.where(m > 0, m, 1.0))
        for n, m in (norms, norms[::-1])
    )
    return left**2, right**2, left * right * _nudged(angle).cos()


def _nudged(angle: Tensor) -> Tensor:
    return angle.clamp(_SMALLEST_ANGLE, math.pi - _SMALLEST_ANGLE)


def _add_some(plan: Plan, sums: Sums, i: Tensor, j: Tensor, upstream: Tensor) -> None:
    cosine = (plan.left.unit[i] * plan.right.unit[j]).sum(-1)
    angle = pair_angles(plan.left, plan.right, i, j, cosine)
    twins = _twins(plan, i, j, angle)
    if bool(twins.any()):
        slopes = own_slopes(plan.function, sums.names, plan.left.norm[i[twins]])
        weighted = (slopes * upstream[:, twins]).sum(1)
        sums.left.logs.index_add_(0, i[twins], weighted[1] / 2)
        sums.right.logs.index_add_(0, j[twins], weighted[1] / 2)
        sums.variances.add_(weighted[2:].sum(1))
    i, j, angle, upstream = i[~twins], j[~twins], angle[~twins], upstream[:, ~twins]
    if len(i):
        _add_distinct(plan, sums, (i, j), angle, upstream)


def _add_distinct(
    plan: Plan, sums: Sums, pair: tuple[Tensor, Tensor], angle: Tensor, upstream: Tensor
) -> None:
    i, j = pair
    norms = plan.left.norm[i], plan.right.norm[j]
    point = _point(plan, pair, angle)
    slopes = derivatives(plan.function, sums.names, _kernels, *point)[1]
    in_a, in_b, in_c, *others = (slopes * upstream).sum(1)
    sums.left.logs.index_add_(0, i, 2 * point[0] * in_a + point[2] * in_c)
    sums.right.logs.index_add_(0, j, 2 * point[1] * in_b + point[2] * in_c)
    if others:
        sums.variances.add_(torch.stack(others).sum(1))
    around = -point[0].sqrt() * point[1].sqrt() * _nudged(angle).sin() * in_c
    if isinstance(plan.wide, Surface):
        around = _around(plan, plan.wide, i, j, angle, upstream)
    ordinary = (norms[0] > 0) & (norms[1] > 0)
    tangents = _tangents(plan, i, j, angle)
    for side, own, here, other, there, tangent in (
        (sums.left, norms[0], i, plan.right, j, tangents[0]),
        (sums.right, norms[1], j, plan.left, i, tangents[1]),
    ):
        along = torch.where(ordinary, -around / own.clamp(min=1e-300), 0.0)
        steps = along[:, None] * tangent
        from_zero = own == 0  # there the kernel is linear in the input
        steps[from_zero] = in_c[from_zero, None] * other.points[there[from_zero]].double()
        side.direct.index_add_(0, here, steps)


def _kernels(function: KernelFunction, a: Tensor, b: Tensor, c: Tensor) -> Kernels:
    return function(a, b, c)


def _around(
    plan: Plan, wide: Surface, i: Tensor, j: Tensor, angle: Tensor, upstream: Tensor
) -> Tensor:
    """The derivative in the angle by the series for all angles, which is exact at small ones."""
    low, high = wide.angles
    series = differentiate(wide.coefficients[:, 0, 0]).to(angle) * (2 / (high - low))
    slopes = series @ chebyshev_basis(to_unit(angle, wide.angles), series.shape[1] - 1)
    scale = plan.rows.scale[:, i].double() * plan.columns.scale[:, j].double()
    return (slopes * scale * upstream).sum(0)


def _tangents(plan: Plan, i: Tensor, j: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors at one direction towards the other; zero where there is none."""
    first, second = (_directions(s, k) for s, k in ((plan.left, i), (plan.right, j)))
    sign = torch.where(angle < math.pi / 2, 1.0, -1.0)[:, None]
    gap = second - sign * first
    both = []
    for own, away in ((first, gap), (second, -sign * gap)):
        tangent = away - (away * own).sum(-1, keepdim=True) * own
        size = torch.linalg.vector_norm(tangent, dim=-1, keepdim=True)
        both.append(tangent / size.clamp(min=1e-300))
    return both[0], both[1]


def _directions(inputs: Inputs, k: Tensor) -> Tensor:
    return inputs.points[k].double() / inputs.norm[k, None].clamp(min=1e-300)
