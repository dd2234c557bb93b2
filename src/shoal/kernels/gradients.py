r"""Gradients of kernel matrices in inputs and variances.

Nothing is unrolled. Most entries are those of a surface, whose coefficients and functions are
differentiated (see :mod:`shoal.kernels.adjoint`); the diagonal of a symmetric matrix is a function
of the norms alone; the rest, such as pairs of nearly parallel inputs, are differentiated one by one
at their fixed points. Strips of rows are formed again, so that nothing of the size of the matrix is
kept between forward and backward.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.kernels.adjoint import adjoint
from shoal.kernels.function import KernelFunction
from shoal.kernels.inputs import Inputs
from shoal.kernels.lines import Lines, own_lines
from shoal.kernels.plan import FEW_PAIRS, Plan
from shoal.kernels.result import Kernels
from shoal.kernels.slopes import Slopes, own_slopes
from shoal.kernels.sources import Strip, variance_gradients
from shoal.kernels.special import add_pairs
from shoal.kernels.sums import Sums
from shoal.settings import in_standard_settings

__all__ = ["Job", "differentiable_kernel"]

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Job:
    """How to compute a kernel matrix without gradients.

    Attributes:
        function: The kernels; tensors stand for some variances.
        values: Makes the matrices from both inputs.
        strips: Which rows are computed together.
    """

    function: KernelFunction
    values: Callable[[Tensor, Tensor | None], Kernels]
    strips: Callable[[Plan], Iterator[slice]]


def differentiable_kernel(job: Job, first: Tensor, second: Tensor | None) -> Kernels:
    """The kernels of inputs with equal batch dimensions, with gradients of the first order.

    Example:
        >>> import torch, shoal
        >>> x = torch.eye(2, dtype=torch.float64, requires_grad=True)
        >>> shoal.kernel(shoal.DEQ(shoal.ReLU(), 0.2, 0.8), x).ck.trace().backward()
        >>> x.grad
        tensor([[0.8889, 0.0000],
                [0.0000, 0.8889]], dtype=torch.float64)
    """
    if getattr(job.function.architecture, "input_variance", 1.0) == 0:
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
        ctx.job, ctx.symmetric = job, second is None
        ctx.names = tuple(
            name
            for (name, _), needed in zip(
                job.function.variances, ctx.needs_input_grad[3:], strict=True
            )
            if needed
        )
        ck, ntk = job.values(first.detach(), None if second is None else second.detach())
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
        for index in np.ndindex(*first.shape[:-2]):
            left = Inputs(first[index])
            right = left if second is None else Inputs(second[index])
            function = replace(ctx.job.function, variances=())
            plan = Plan.of(function, left, right, few_pairs=FEW_PAIRS)
            upstream = (gradients[0][index], gradients[1][index])
            sums = _Backward(Lines(plan, ctx.names, ctx.job.strips), upstream).run()
            for x, side, inputs in zip(into, (sums.left, sums.right), (left, right), strict=False):
                x[index] = side.total(inputs)
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


@dataclass(frozen=True, eq=False)
class _Backward:
    """One matrix, strip by strip."""

    lines: Lines
    upstream: Pair

    @property
    def plan(self) -> Plan:
        """How the matrix is computed."""
        return self.lines.plan

    @property
    def names(self) -> tuple[str, ...]:
        """Of the variances."""
        return self.lines.names

    def run(self) -> Sums:
        """All gradients."""
        plan = self.plan
        sums = Sums.of(self.names, plan.left, plan.right)
        for rows in self.lines.strips(plan):
            self._add_strip(sums, rows)
        if plan.symmetric:
            self._add_diagonal(sums)
        return sums

    def _add_strip(self, sums: Sums, rows: slice) -> None:
        plan = self.plan
        columns = slice(plan.columns_from(rows.start), len(plan.right))
        upstream = (self._block(rows, columns, 0), self._block(rows, columns, 1))
        cosine = plan.left.unit[rows] @ plan.right.unit[columns].T
        special = self.lines.special(cosine, rows, columns)
        where = (special & ((upstream[0] != 0) | (upstream[1] != 0))).nonzero(as_tuple=True)
        if len(where[0]):
            single = torch.stack([u[where].double() for u in upstream])
            add_pairs(plan, sums, where[0] + rows.start, where[1] + columns.start, single)
        if self.lines.slopes is not None:
            for tensor in (*upstream, cosine):
                tensor.masked_fill_(special, 0.0)
            self._add_surface(self.lines.slopes, sums, (rows, columns), cosine, upstream)

    def _add_surface(
        self,
        slopes: Slopes,
        sums: Sums,
        parts: tuple[slice, slice],
        cosine: Tensor,
        upstream: Pair,
    ) -> None:
        """What the entries of a strip contribute that the surface knows."""
        sides = [side[part] for side, part in zip(self.lines.sides, parts, strict=True)]
        weights = (sides[0].weights, sides[1].weights)
        surface, radial = slopes.surface, slopes.radial
        found = adjoint(slopes.angles, surface.coefficients, radial, weights, cosine, upstream)
        logs = [
            (weight * side.slopes).sum((0, 2)).double()
            for weight, side in zip((found.rows, found.columns), sides, strict=True)
        ]
        units = self.plan.left.unit, self.plan.right.unit
        sums.left.units[parts[0]] += found.cosine @ units[1][parts[1]]
        sums.right.units[parts[1]] += found.cosine.T @ units[0][parts[0]]
        sums.left.logs[parts[0]] += logs[0]
        sums.right.logs[parts[1]] += logs[1]
        if self.names:
            (norm, own), (other_norm, other_own) = ((s.norm, s.own) for s in sides)
            ends = (norm, other_norm), (logs[0], logs[1]), (own, other_own)
            strip = Strip(found, upstream[1], cosine, *ends)
            found_there = variance_gradients(self.plan.function, strip)
            sums.variances.add_(torch.stack([found_there[name] for name in self.names]))

    def _block(self, rows: slice, columns: slice, q: int) -> Tensor:
        """The gradient of a strip; of a symmetric matrix both halves in the upper one."""
        gradient = self.upstream[q]
        block = gradient[rows, columns].clone(memory_format=torch.contiguous_format)
        if self.plan.symmetric:
            block += gradient[columns, rows].T
            square = block[:, : len(block)]
            square.copy_(square.triu(1))
        return block

    def _add_diagonal(self, sums: Sums) -> None:
        """What inputs with themselves contribute."""
        gradient = torch.stack([u.diagonal().double() for u in self.upstream])
        norm = self.plan.left.norm
        present = norm > 0
        if bool(present.any()):
            own = own_lines(self.plan, self.names, norm[present])
            weighted = (own * gradient[:, present]).sum(1)
            sums.left.logs[present] += weighted[1]
            sums.variances.add_(weighted[2:].sum(1))
        if self.names and not bool(present.all()):
            nothing = own_slopes(self.plan.function, self.names, norm.new_full((1,), 1e-100))
            sums.variances.add_((nothing * gradient[:, ~present]).sum((1, 2))[2:])
