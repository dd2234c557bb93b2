"""Gradients of kernels of images: blocks are computed again, and differentiated implicitly."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.kernels.calculi.pixels import Images
from shoal.kernels.images.function import ImageKernels
from shoal.kernels.images.matrix import Blocks, ImagePlan, entries, image_kernels
from shoal.kernels.result import Kernels

_COPIES = 12  # of what a block takes without derivatives


class _Job(NamedTuple):
    """What is wanted besides tensors."""

    function: ImageKernels
    blocks: Blocks
    diag: bool


def differentiable_image_kernels(
    function: ImageKernels,
    first: Tensor,
    second: Tensor | None,
    blocks: Blocks,
    *,
    diag: bool,
) -> Kernels:
    """The kernels with gradients of the first order in the images and in variances.

    Example:
        >>> import torch, shoal
        >>> x = torch.ones(1, 1, 3, 3, dtype=torch.float64, requires_grad=True)
        >>> net = shoal.ConvDEQ("relu", 0.2, 0.8, padding="circular")
        >>> shoal.kernel(net, x).ck.sum().backward()
        >>> x.grad.sum()
        tensor(0.8889, dtype=torch.float64)
    """
    tensors = [value for _, value in function.variances]
    job = _Job(function, blocks, diag)
    return Kernels(*_Matrix.apply(job, first, second, *tensors))  # type: ignore[no-untyped-call]


class _Matrix(torch.autograd.Function):
    """Both matrices."""

    @staticmethod
    def forward(
        ctx: Any, job: _Job, first: Tensor, second: Tensor | None, *variances: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(first, *(() if second is None else (second,)), *variances)
        ctx.job, ctx.symmetric = job, second is None
        plain = replace(job.function, variances=())
        ck, ntk = image_kernels(plain, first, second, job.blocks, diag=job.diag)
        return ck, ntk

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError("kernels of images have derivatives of the first order only")
        count = 1 if ctx.symmetric else 2
        points, variances = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        first, second = points[0], None if ctx.symmetric else points[1]
        leaves = [value.detach().double().requires_grad_() for value in variances]
        into = [torch.zeros_like(t, dtype=torch.float64) for t in (*points, *variances)]
        names = [name for name, _ in ctx.job.function.variances]
        named = tuple(zip(names, leaves, strict=True))
        function = replace(ctx.job.function, variances=named)
        plan = ImagePlan.of(function, first, second, ctx.job.blocks.memory // _COPIES)
        shape = plan.shape[:1] if ctx.job.diag else plan.shape
        each = max(1, plan.fitting // len(plan.displacements))
        symmetric = ctx.symmetric and not ctx.job.diag
        for i, j in entries(shape, each, symmetric=symmetric, device=first.device):
            seen = _upstream(upstream, i, j, symmetric=ctx.symmetric, diag=ctx.job.diag)
            _add(plan, i, j, seen.to(first.device), leaves, into)
        into = [t.to(like) for t, like in zip(into, (*points, *variances), strict=True)]
        return None, into[0], None if ctx.symmetric else into[1], *into[count:]


def _upstream(
    gradients: tuple[Tensor, ...], i: Tensor, j: Tensor, *, symmetric: bool, diag: bool
) -> Tensor:
    """Gradients of some entries, and of those that mirror them. shape: (2, entries)."""
    if diag:
        return torch.stack([g[i] for g in gradients]).double()
    found = torch.stack([g[i, j] for g in gradients]).double()
    if symmetric:
        mirrored = torch.stack([g[j, i] for g in gradients]).double()
        found = torch.where((i == j).to(found.device), found, found + mirrored)
    return found


def _add(
    plan: ImagePlan,
    i: Tensor,
    j: Tensor,
    upstream: Tensor,
    leaves: list[Tensor],
    into: list[Tensor],
) -> None:
    """Add what some entries contribute to the gradients of images and variances."""
    shift = 0 if plan.symmetric else plan.shape[0]
    used, places = torch.cat([i, j + shift]).unique(return_inverse=True)
    block = plan.images.points[used.to(plan.images.points.device)].double().requires_grad_()
    with torch.enable_grad():
        images = Images.of(plan.function.architecture, block, differentiable=True)
        part = replace(
            plan, images=images, symmetric=True, shape=(len(used), len(used)), fused=None
        )
        values = part.values(places[: len(i)], places[len(i) :])
        found = torch.autograd.grad(
            (values * upstream).sum(), [block, *leaves], materialize_grads=True
        )
    images_first, *variances = found
    sides = into[: 1 if plan.symmetric else 2]
    for number, side in enumerate(sides):
        mine = (used >= shift) if number else (used < plan.shape[0])
        where = (used[mine] - number * shift).to(side.device)
        side.index_add_(0, where, images_first[mine.to(side.device)])
    for total, gradient in zip(into[len(sides) :], variances, strict=True):
        total.add_(gradient)
