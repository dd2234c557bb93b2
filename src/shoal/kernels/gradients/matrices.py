r"""Gradients of kernel matrices in inputs and variances.

Nothing is unrolled. Most entries are those of a surface, whose coefficients and functions are
differentiated; the diagonal of a symmetric matrix is a function of the norms alone; the rest, such
as pairs of nearly parallel inputs, are differentiated one by one at their fixed points. Strips of
rows are formed again, so that nothing of the size of the matrix is kept between forward and
backward.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.core.settings import in_standard_settings
from shoal.core.threads import side_by_side
from shoal.kernels.arguments import work_space
from shoal.kernels.backends import Adjoint, DifferentiableBlock
from shoal.kernels.function import KernelFunction
from shoal.kernels.gradients.derivatives import angle_gradients
from shoal.kernels.gradients.first_order import Derivatives
from shoal.kernels.gradients.variance_changes import variance_changes
from shoal.kernels.gradients.variance_slopes import slope_entries
from shoal.kernels.inputs import Inputs
from shoal.kernels.plan import Plan
from shoal.kernels.result import Kernels
from shoal.kernels.strips import Strip


@dataclass(frozen=True)
class Job:
    """How to compute a kernel matrix without gradients.

    Attributes:
        function: The kernels; tensors stand for some variances.
        values: Makes the matrices from both inputs, and adds the plans of all of a batch to a list.
        limit: Bytes that a strip of rows may take.
    """

    function: KernelFunction
    values: Callable[[Tensor, Tensor | None, list[Plan]], Kernels]
    limit: int | None


def differentiable_kernel(job: Job, first: Tensor, second: Tensor | None) -> Kernels:
    """The kernels of inputs with equal batch dimensions, with gradients of the first order.

    Example:
        >>> import torch, shoal
        >>> x = torch.eye(2, dtype=torch.float64, requires_grad=True)
        >>> shoal.kernel(shoal.DEQ("relu", 0.2, 0.8), x).ck.trace().backward()
        >>> x.grad
        tensor([[0.8889, 0.0000],
                [0.0000, 0.8889]], dtype=torch.float64)
    """
    if job.function.architecture.ignores_input:
        raise ValueError(
            "a kernel with input_variance = 0 has no gradients: it is at the edge of where kernels "
            "are defined"
        )
    tensors = [value for _, value in job.function.variances]
    return Kernels(*_Matrix.apply(job, first, second, *tensors))  # type: ignore[no-untyped-call]


class _Matrix(torch.autograd.Function):
    """Both matrices."""

    @staticmethod
    def forward(
        ctx: Any, job: Job, first: Tensor, second: Tensor | None, *variances: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(first, *(() if second is None else (second,)), *variances)
        ctx.job, ctx.symmetric, ctx.plans = job, second is None, []
        ctx.names = tuple(
            name
            for (name, _), needed in zip(
                job.function.variances, ctx.needs_input_grad[3:], strict=True
            )
            if needed
        )
        other = None if second is None else second.detach()
        ck, ntk = job.values(first.detach(), other, ctx.plans)
        return ck, ntk

    @staticmethod
    @in_standard_settings
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            into = _Matrix.first_order(ctx, *gradients)
        if not torch.is_grad_enabled():
            return into
        sources = (*gradients, *ctx.saved_tensors)
        return tuple(
            None if g is None else _Refusal.apply(g, *sources)  # type: ignore[no-untyped-call]
            for g in into
        )

    @staticmethod
    def first_order(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of all arguments."""
        first, *rest = ctx.saved_tensors
        second, variances = (None, rest) if ctx.symmetric else (rest[0], rest[1:])
        total = {name: 0.0 for name, _ in ctx.job.function.variances}
        into = [torch.empty_like(x) for x in (first, second) if x is not None]
        for index, plan in zip(np.ndindex(*first.shape[:-2]), ctx.plans, strict=True):
            sums = _Gradients(Derivatives(plan, ctx.names, ctx.job.limit))
            sums.add((gradients[0][index], gradients[1][index]))
            for x, side in zip(into, (sums.left, sums.right), strict=False):
                x[index] = side.total()
            for name, value in zip(ctx.names, sums.variances.tolist(), strict=True):
                total[name] += value
        shares = [v.new_tensor(t) for v, t in zip(variances, total.values(), strict=True)]
        return None, into[0], (None if second is None else into[1]), *shares


class _Refusal(torch.autograd.Function):
    """A gradient that has none itself, and says so instead of passing for a constant."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:  # noqa: ARG004
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        raise RuntimeError(
            "kernel matrices have derivatives of the first order only; those of kernel_function "
            "can be differentiated again"
        )


class _InputGradients:
    """Gradients of the inputs of the rows, or of the columns, while they are summed up."""

    def __init__(self, inputs: Inputs) -> None:
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


class _Gradients:
    """All gradients of one matrix, while they are summed up."""

    def __init__(self, matrix: Derivatives) -> None:
        plan = matrix.plan
        self.matrix = matrix
        self.left = _InputGradients(plan.left)
        self.right = self.left if plan.symmetric else _InputGradients(plan.right)
        self.variances = plan.left.norm.new_zeros(len(matrix.names))

    def add(self, upstream: tuple[Tensor, Tensor]) -> None:
        """Add what all entries contribute, given the gradients of both kernels."""
        matrix, plan = self.matrix, self.matrix.plan
        if matrix.surface is not None:  # once for all threads
            _ = matrix.factors, matrix.slopes
        half = work_space(matrix.limit, plan.left.points.device) // 2
        entries = half // plan.left.points.element_size()
        for group in _groups(plan.strips(half), entries):
            self._add_group(group, upstream)
        if plan.symmetric:
            gradient = torch.stack([u.diagonal().double() for u in upstream])
            weighted = (matrix.own * gradient).sum(1)
            self.left.logs.add_(weighted[1])
            self.variances.add_(weighted[2:].sum(1))

    def _add_group(self, group: Sequence[Strip], upstream: tuple[Tensor, Tensor]) -> None:
        """What some strips contribute: each in a thread of its own, products in all threads."""
        matrix, plan = self.matrix, self.matrix.plan
        rows, columns = slice(group[0].rows.start, group[-1].rows.stop), group[0].columns
        turning = plan.left.points.new_zeros(rows.stop - rows.start, columns.stop - columns.start)
        work = partial(_strip_gradients, matrix, upstream, turning, Strip(rows, columns))
        found = side_by_side(work, group, in_threads=plan.backend.takes_threads)
        for strip, (pairs, left, right, variances) in zip(group, found, strict=True):
            if pairs is not None:
                self._add_pairs(*pairs)
            self.left.logs[strip.rows] += left
            self.right.logs[strip.columns] += right
            self.variances.add_(variances)
        if matrix.surface is None:
            return
        self.left.units[rows] += turning @ plan.right.unit[columns]
        own = len(turning) if plan.symmetric else 0  # columns that are among the rows
        others = slice(columns.start + own, columns.stop)
        self.right.units[others] += turning[:, own:].T @ plan.left.unit[rows]

    def _add_pairs(self, rows: Tensor, columns: Tensor, upstream: Tensor) -> None:
        """What single pairs contribute, given their gradients. shape of these: (2, n)."""
        plan = self.matrix.plan
        for some, i, j, angle, slopes in self.matrix.pairs(rows, columns):
            weighted = (slopes * upstream[:, some]).sum(1)
            self.variances.add_(weighted[2:-1].sum(1))
            turning = angle_gradients(plan, i, j, angle)
            for q, (side, k) in enumerate(((self.left, i), (self.right, j))):
                side.logs.index_add_(0, k, weighted[q])
                side.direct.index_add_(0, k, weighted[-1][:, None] * turning[q])


def _groups(parts: Iterable[Strip], entries: int) -> Iterator[list[Strip]]:
    """Strips that follow each other: one, or as many as have so many entries."""
    group: list[Strip] = []
    for strip in parts:
        if group and (strip.rows.stop - group[0].rows.start) * group[0].shape[1] > entries:
            yield group
            group = []
        group.append(strip)
    yield group


class _Shares(NamedTuple):
    """What a strip contributes to gradients, but for those of its cosines.

    Attributes:
        pairs: Rows and columns of entries that the surface does not know, and their gradients;
            ``None`` if it knows all.
        left: To those of the logarithms of the rows' norms.
        right: To those of the columns' norms.
        variances: To those of the variances.
    """

    pairs: tuple[Tensor, Tensor, Tensor] | None
    left: Tensor
    right: Tensor
    variances: Tensor


def _strip_gradients(
    matrix: Derivatives,
    upstream: tuple[Tensor, Tensor],
    turning: Tensor,
    around: Strip,
    strip: Strip,
) -> _Shares:
    """What a strip contributes.

    Args:
        matrix: The matrix.
        upstream: The gradients of both kernels.
        turning: Where the gradients of cosines go, mirrored if the matrix is symmetric.
        around: The part of the matrix that has these.
        strip: The strip, in that part.
    """
    plan = matrix.plan
    above, cosine, pairs = _above(plan, strip, upstream), plan.cosines(strip), None
    if plan.symmetric:
        cosine.diagonal().fill_(0.0)  # which counts for nothing
    if not matrix.knows(strip, cosine):
        single = matrix.single(strip, cosine)
        where = (single & (above != 0).any(0)).nonzero(as_tuple=True)
        pairs = *strip.inputs(where), above[:, where[0], where[1]].double()
        if matrix.surface is None:
            return _Shares(pairs, *(above.new_zeros(()) for _ in range(3)))
        above.masked_fill_(single, 0.0)
        cosine.masked_fill_(single, 0.0)
    block = matrix.block(strip, cosine)
    found = plan.backend.adjoint(block, above)
    first, height = strip.rows.start - around.rows.start, len(cosine)
    turning[first : first + height, -cosine.shape[1] :] = found.cosine
    if plan.symmetric:
        plan.backend.mirror(turning[:, : len(turning)], slice(first, first + height))
    variances = _variance_gradients(matrix, block, above, found)
    return _Shares(pairs, found.left, found.right, variances)


def _variance_gradients(
    matrix: Derivatives, block: DifferentiableBlock, upstream: Tensor, found: Adjoint
) -> Tensor:
    """What entries contribute to variances, given the gradients of what moves with these."""
    backend, in_cosine = matrix.plan.backend, None
    total = found.left.new_zeros(len(matrix.names))
    for number, slope in enumerate(matrix.slopes):
        both = torch.stack(slope_entries(backend, slope, block))
        total[number] += (upstream * both).sum(dtype=torch.float64)
    if matrix.slopes or not matrix.names:
        return total
    if found.ck is None:
        ck = torch.empty_like(block.cosine)
        backend.evaluate(block.plain, (ck, torch.empty_like(ck)))
    else:
        ck, in_cosine = found.ck
    if not bool(upstream[1].any()):  # the NTK does not count
        in_cosine = None
    elif in_cosine is None:
        alone = torch.zeros_like(upstream)
        alone[0] = 1.0
        in_cosine = backend.adjoint(block, alone).cosine
    changes = variance_changes(matrix.plan.function, matrix.names, block, ck, in_cosine)
    for number, change in changes:
        total[number] += change.of_sum(found, upstream)
    return total


def _above(plan: Plan, strip: Strip, gradients: tuple[Tensor, Tensor]) -> Tensor:
    """The gradients of a strip; of a symmetric matrix both halves in the upper one."""
    above = gradients[0].new_empty(2, *strip.shape)
    for block, gradient in zip(above, gradients, strict=True):
        if plan.symmetric:
            torch.add(gradient[strip], gradient[strip[::-1]].T, out=block)
            block[:, : len(block)].triu_(1)
        else:
            block.copy_(gradient[strip])
    return above
