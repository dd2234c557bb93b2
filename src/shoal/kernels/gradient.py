r"""Gradients of kernel matrices in inputs and variances.

Nothing is unrolled. Most entries have slopes that are surfaces (see :mod:`shoal.kernels.slopes`):
these are evaluated, multiplied by the upstream gradient and summed, and gradients of cosines go
through two matrix products. The diagonal of a symmetric matrix is a function of the norms alone;
other entries, such as pairs of nearly parallel inputs, are differentiated one by one. Strips of
rows are formed again, so that nothing of the size of the matrix is kept between forward and
backward.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from shoal.core.exceptions import AccuracyError
from shoal.core.settings import in_standard_settings
from shoal.core.threads import side_by_side
from shoal.kernels.arguments import Kernels, PolarInputs, checked_samples, pair_angles, work_space
from shoal.kernels.blocks import Block, Factors, OptionalMatrices, Strip
from shoal.kernels.function import KernelFunction
from shoal.kernels.plan import FEW_PAIRS, Plan
from shoal.kernels.slopes import (
    Slopes,
    angle_gradients,
    diagonal_derivatives,
    pair_derivatives,
    slopes,
)
from shoal.kernels.surface import TOLERANCE, Surface

if TYPE_CHECKING:
    from shoal.kernels.images.function import ImageKernels

_LOGGER = logging.getLogger(__name__)

Upstream = Sequence[Tensor | None]  # gradients of both kernels; None where one does not count

_PAIRS = 1 << 14  # pairs that are differentiated together


Pull = Callable[[Upstream, Sequence[str]], tuple[list[Tensor], Sequence[float]]]
"""Maps gradients of both kernels to those of all inputs, and of some variances."""
Run = Callable[..., tuple[Kernels, Pull]]
"""Maps inputs without gradients to their kernels, and to a function for gradients."""


def differentiable(
    run: Run, function: "KernelFunction | ImageKernels", first: Tensor, second: Tensor | None
) -> Kernels:
    """Kernels with gradients of the first order in the inputs and in variances.

    Args:
        run: Computes them without gradients.
        function: The kernels, with tensors in place of some variances.
        first: The inputs of the rows.
        second: The inputs of the columns; ``None`` if they are the same.

    Example:
        >>> import torch, shoal
        >>> x = torch.eye(2, dtype=torch.float64, requires_grad=True)
        >>> shoal.kernel(shoal.DEQ("relu", 0.2, 0.8), x).ck.trace().backward()
        >>> x.grad
        tensor([[0.8889, 0.0000],
                [0.0000, 0.8889]], dtype=torch.float64)
    """
    names, tensors = [name for name, _ in function.variances], [v for _, v in function.variances]
    inputs = (first,) if second is None else (first, second)
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in (*inputs, *tensors)):
        plain = first.detach(), None if second is None else second.detach()
        return run(*plain, gradients=False)[0]
    if function.architecture.ignores_input:
        raise ValueError(
            "a kernel with input_variance = 0 has no gradients: it is at the edge of where kernels "
            "are defined"
        )
    return Kernels(*_Matrix.apply(run, names, len(inputs), *inputs, *tensors))  # type: ignore[no-untyped-call]


def variance_tangents(
    function: KernelFunction, x: Tensor, names: Iterable[str]
) -> dict[str, Kernels]:
    """Derivatives of both kernel matrices of some inputs in variances, entry by entry.

    Args:
        function: The kernels.
        x: The inputs. shape: (n, p)
        names: Names of the variances, which are not zero.

    Returns:
        Two symmetric matrices for each name.

    Example:
        >>> import torch, shoal
        >>> f = shoal.kernel_function(shoal.DEQ("relu", 0.2, 0.8))
        >>> variance_tangents(f, torch.eye(2).double(), ["input_variance"])["input_variance"].ck
        tensor([[0.5556, 0.1863],
                [0.1863, 0.5556]], dtype=torch.float64)
    """
    names, inputs = tuple(names), PolarInputs(checked_samples("x", x))
    plan = Plan.for_inputs(function, inputs, inputs, few_pairs=FEW_PAIRS)
    matrix = _Derivatives(plan, names)
    result = x.new_zeros(len(names), 2, len(inputs), len(inputs))
    for strip in plan.strips(None):
        block = result[..., strip.rows, strip.columns]
        cosine = plan.cosines(strip)
        single = plan.uncovered(matrix.surface, strip, cosine)
        where = single.triu(1).nonzero(as_tuple=True)
        if matrix.slopes is not None:
            cosine.masked_fill_(single, 0.0)
            for surface, (ck, ntk) in zip(matrix.slopes.variances, block, strict=True):
                matrix.evaluate(surface, strip, cosine, (ck, ntk))
        for part, _, _, _, slope in matrix.pairs(*strip.inputs(where)):
            block[..., where[0][part], where[1][part]] = slope[2:-1].to(block)
        block.diagonal(dim1=-2, dim2=-1).copy_(matrix.diagonal[2:, :, strip.rows])
        for tangent in result.flatten(0, 1):
            plan.mirror(tangent, strip)
    return {name: Kernels(*matrices) for name, matrices in zip(names, result, strict=True)}


class _Matrix(torch.autograd.Function):
    """Both kernel matrices, with gradients by ``run``."""

    @staticmethod
    def forward(
        ctx: Any, run: Run, names: list[str], count: int, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)  # a kernel that does not count is not evaluated
        needed = ctx.needs_input_grad[3 + count :]
        ctx.names = [name for name, flag in zip(names, needed, strict=True) if flag]
        inputs = [t.detach() for t in tensors[:count]] + [None] * (2 - count)
        (ck, ntk), ctx.pull = run(*inputs, gradients=True)
        return ck, ntk

    @staticmethod
    @in_standard_settings
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        if all(g is None for g in gradients):
            return (None,) * len(ctx.needs_input_grad)
        with torch.no_grad():
            points, variances = ctx.pull(gradients, ctx.names)
            tensors, values = ctx.saved_tensors, iter(variances)
            leaves = zip(
                tensors[len(points) :], ctx.needs_input_grad[3 + len(points) :], strict=True
            )
            shares = [t.new_tensor(next(values)) if flag else None for t, flag in leaves]
        into = (*points, *shares)
        if torch.is_grad_enabled():
            sources = *(g for g in gradients if g is not None), *tensors
            into = tuple(
                None if g is None else _Refusal.apply(g, *sources)  # type: ignore[no-untyped-call]
                for g in into
            )
        return None, None, None, *into


class _Refusal(torch.autograd.Function):
    """A gradient that refuses to be differentiated, instead of passing for a constant."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:  # noqa: ARG004
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        raise RuntimeError(
            "kernel matrices have derivatives of the first order only; those of kernel_function "
            "can be differentiated again"
        )


@dataclass(frozen=True, eq=False)
class _Derivatives:
    """The first derivatives of a matrix: slopes for most entries, scalar equations for others.

    Attributes:
        plan: The plan of the matrix.
        names: Names of the variances.
    """

    plan: Plan
    names: tuple[str, ...]

    @cached_property
    def slopes(self) -> Slopes | None:
        """The slopes; ``None`` if pairs are differentiated one by one."""
        plan = self.plan
        homogeneous = plan.function.architecture.positively_homogeneous
        if plan.surface is None or (plan.pairs < FEW_PAIRS and not homogeneous):
            return None
        try:
            tolerance = TOLERANCE[plan.like.dtype]
            return slopes(plan.function, self.names, plan.surface, tolerance, plan.squared_norm)
        except AccuracyError as error:
            level = logging.WARNING if plan.pairs > _PAIRS else logging.INFO
            _LOGGER.log(level, "gradients are computed pair by pair, which is slow: %s", error)
            return None

    @property
    def surface(self) -> Surface | None:
        """The range of norms and angles of the slopes."""
        return None if self.slopes is None else self.slopes.row_logs

    def evaluate(
        self, surface: Surface, strip: Strip, cosine: Tensor, out: OptionalMatrices
    ) -> None:
        """Write one of the slopes of both kernels, or of one, at a strip."""
        rows, columns = self.factors
        self.plan.backend.evaluate(
            Block(surface, rows[strip.rows], columns[strip.columns], cosine), out
        )

    def pairs(self, i: Tensor, j: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor, Tensor]]:
        """Parts of pairs: their slice, rows, columns, angles, :func:`pair_derivatives`."""
        rows, columns = self.plan.row_inputs, self.plan.column_inputs
        for start in range(0, len(i), _PAIRS):
            part = slice(start, start + _PAIRS)
            row_numbers, column_numbers = i[part], j[part]
            cosine = (rows.unit[row_numbers] * columns.unit[column_numbers]).sum(-1)
            angle = pair_angles(rows, columns, row_numbers, column_numbers, cosine)
            slope = pair_derivatives(self.plan, self.names, row_numbers, column_numbers, angle)
            yield part, row_numbers, column_numbers, angle, slope

    @cached_property
    def diagonal(self) -> Tensor:
        """Diagonal kernels of the rows, and derivatives; see :func:`diagonal_derivatives`."""
        norm = self.plan.row_inputs.norm
        exact = partial(diagonal_derivatives, self.plan.function, self.names)
        if self.slopes is None:
            return exact(norm, self.plan.squared_norm)
        values = self.plan.diagonal
        derivatives = torch.cat([values[None], self.slopes.diagonal_at(norm) * values])
        zero = norm == 0
        if bool(zero.any()):
            derivatives[..., zero] = exact(norm[zero], self.plan.squared_norm)
        return derivatives

    @cached_property
    def factors(self) -> tuple[Factors, Factors]:
        """Scales and features of rows and columns."""
        plan = self.plan
        rows = self._slope_factors(plan.row_inputs, plan.rows)
        return rows, rows if plan.symmetric else self._slope_factors(
            plan.column_inputs, plan.columns
        )

    def _slope_factors(self, inputs: PolarInputs, values: Factors) -> Factors:
        assert self.slopes is not None
        norm = torch.where(inputs.norm > 0, inputs.norm, inputs.norm.max())
        return Factors(values.scale, self.slopes.row_logs.features(norm).to(values.scale))


class _InputGradients:
    """Gradients of the inputs of the rows, or of the columns, while they are summed up."""

    def __init__(self, inputs: PolarInputs) -> None:
        self.inputs = inputs
        self.units = torch.zeros_like(inputs.points)  # in the directions, not yet projected
        self.logs = torch.zeros_like(inputs.norm)  # in the logarithms of the norms
        self.direct = torch.zeros_like(inputs.points, dtype=torch.float64)  # in the inputs

    def total(self) -> Tensor:
        """The gradient of the inputs, in their dtype."""
        inputs, norm = self.inputs, self.inputs.norm[:, None]
        unit = inputs.unit.double()
        units = self.units.double()
        along = self.logs[:, None] - (units * unit).sum(-1, keepdim=True)
        total = (units + along * unit) / torch.where(norm > 0, norm, 1.0)
        return (torch.where(norm > 0, total, 0.0) + self.direct).to(inputs.points.dtype)


def pull(
    plan: Plan, upstream: Upstream, names: Sequence[str], limit: int | None
) -> tuple[list[Tensor], Tensor]:
    """Gradients of the inputs and of some variances, given those of both kernels."""
    matrix, variances = _Derivatives(plan, tuple(names)), plan.row_inputs.norm.new_zeros(len(names))
    row_sums = _InputGradients(plan.row_inputs)
    column_sums = row_sums if plan.symmetric else _InputGradients(plan.column_inputs)
    if matrix.slopes is not None:  # once for all threads
        _ = matrix.factors
    threads = torch.get_num_threads() if plan.backend.takes_threads else 1
    parts = list(plan.strips(work_space(limit, plan.like.device) // 2))
    for start in range(0, len(parts), threads):  # few enough to keep their entries
        group = parts[start : start + threads]
        shares = side_by_side(partial(_strip_gradients, matrix, upstream), group)
        for (rows, columns), share in zip(group, shares, strict=True):
            variances.add_(share.variances)
            row_sums.logs[rows] += share.row_logs
            column_sums.logs[columns] += share.column_logs
            if share.cosine is not None:
                row_sums.units[rows] += share.cosine @ plan.column_inputs.unit[columns]
                column_sums.units[columns] += share.cosine.T @ plan.row_inputs.unit[rows]
            if share.pairs is not None:
                variances.add_(_add_pairs(matrix, row_sums, column_sums, *share.pairs))
    if plan.symmetric:
        for derivatives, gradient in zip(matrix.diagonal.unbind(1), upstream, strict=True):
            if gradient is not None:
                weighted = derivatives * gradient.diagonal().double()
                row_sums.logs.add_(weighted[1])
                variances.add_(weighted[2:].sum(1))
    sides = (row_sums,) if plan.symmetric else (row_sums, column_sums)
    return [side.total() for side in sides], variances


def _add_pairs(
    matrix: _Derivatives,
    row_sums: _InputGradients,
    column_sums: _InputGradients,
    rows: Tensor,
    columns: Tensor,
    upstream: Tensor,
) -> Tensor:
    """Add the gradients of single pairs, and return their share in gradients of variances."""
    variances = row_sums.logs.new_zeros(len(matrix.names))
    for part, i, j, angle, slope in matrix.pairs(rows, columns):
        weighted = (slope * upstream[:, part]).sum(1)
        variances += weighted[2:-1].sum(1)
        angle_slopes = angle_gradients(matrix.plan, i, j, angle)
        for q, (side, k) in enumerate(((row_sums, i), (column_sums, j))):
            side.logs.index_add_(0, k, weighted[q])
            side.direct.index_add_(0, k, weighted[-1][:, None] * angle_slopes[q])
    return variances


class _StripGradients(NamedTuple):
    """Gradients of one strip.

    Attributes:
        row_logs: Gradients of the logarithms of the rows' norms.
        column_logs: Gradients of the logarithms of the columns' norms.
        variances: Gradients of the variances.
        cosine: Gradients of its cosines; ``None`` if there are no slopes.
        pairs: Rows and columns of entries that the slopes do not cover, and their gradients;
            ``None`` if they cover all.
    """

    row_logs: Tensor
    column_logs: Tensor
    variances: Tensor
    cosine: Tensor | None
    pairs: tuple[Tensor, Tensor, Tensor] | None


def _strip_gradients(matrix: _Derivatives, upstream: Upstream, strip: Strip) -> _StripGradients:
    """Gradients of one strip, given the gradients of both kernels."""
    plan, slope, cosine, pairs = matrix.plan, matrix.slopes, matrix.plan.cosines(strip), None
    gradients = [None if u is None else _upper_gradient(plan, strip, u) for u in upstream]
    if plan.symmetric:
        cosine.diagonal().fill_(0.0)  # without influence
    single = plan.uncovered(matrix.surface, strip, cosine)
    if bool(single.any()):
        counted = [u != 0 for u in gradients if u is not None]
        where = (single & torch.stack(counted).any(0)).nonzero(as_tuple=True)
        values = [cosine.new_zeros(len(where[0])) if u is None else u[where] for u in gradients]
        pairs = *strip.inputs(where), torch.stack(values).double()
        cosine.masked_fill_(single, 0.0)
        for gradient in gradients:
            if gradient is not None:
                gradient.masked_fill_(single, 0.0)
    if slope is None:
        zero = plan.row_inputs.norm.new_zeros(())
        return _StripGradients(zero, zero, zero, None, pairs)
    work = [None if u is None else torch.empty_like(u) for u in gradients]

    def weighted(surface: Surface) -> Tensor:
        """The slopes of both kernels times their gradients."""
        matrix.evaluate(surface, strip, cosine, tuple(work))
        both = zip(work, gradients, strict=True)
        parts = [k.mul_(u) for k, u in both if k is not None and u is not None]
        return parts[0].add_(parts[1]) if len(parts) > 1 else parts[0]

    total = weighted(slope.row_logs)
    row_logs, column_logs = total.sum(1, dtype=torch.float64), total.sum(0, dtype=torch.float64)
    if slope.column_logs is not slope.row_logs:
        column_logs = weighted(slope.column_logs).sum(0, dtype=torch.float64)
    variances = [weighted(each).sum(dtype=torch.float64) for each in slope.variances]
    turned = weighted(slope.angle).div_(cosine.square_().sub_(1.0).neg_().sqrt_().neg_())
    changes = torch.stack(variances) if variances else row_logs.new_zeros(0)
    return _StripGradients(row_logs, column_logs, changes, turned, pairs)


def _upper_gradient(plan: Plan, strip: Strip, gradient: Tensor) -> Tensor:
    """The gradient of a strip; the upper half of a symmetric matrix gets both halves."""
    if not plan.symmetric:
        return gradient[strip].clone(memory_format=torch.contiguous_format)
    upper = gradient[strip] + gradient[strip[::-1]].T
    upper[:, : len(upper)].triu_(1)
    return upper
