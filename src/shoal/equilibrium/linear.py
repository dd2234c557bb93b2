r"""The linear equations of the implicit gradient, as operations that can be differentiated again.

With slopes $D$, one row per sample, the two equations

- adjoint: $G = V + s (G \circ D) W$
- tangent: $K = C + D \circ (s K W^\top)$

are each other's transpose, so each one's derivatives need a solve of the other and nothing else.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from shoal.core.torch_internals import apply, in_full_precision, is_transformed
from shoal.equilibrium.batching import vectorized
from shoal.equilibrium.layer import AdjointProblem, TangentProblem
from shoal.equilibrium.options import SolveOptions

__all__ = ["solve_adjoint", "solve_tangent"]


def solve_adjoint(
    right: Tensor, slope: Tensor, weight: Tensor, scale: float, options: SolveOptions
) -> tuple[Tensor, Tensor]:
    r"""Solve $G = V + s (G \circ D) W$; returns $G$ and $G \circ D$."""
    if not torch.is_grad_enabled() and not is_transformed(right, slope, weight):
        solution = _Adjoint.forward(right, slope, weight, scale, options)
    else:
        solution = apply(_Adjoint, right, slope, weight, scale, options)
    return solution, solution * slope


def solve_tangent(
    right: Tensor, slope: Tensor, weight: Tensor, scale: float, options: SolveOptions
) -> Tensor:
    r"""Solve $K = C + D \circ (s K W^\top)$."""
    solution: Tensor = apply(_Tangent, right, slope, weight, scale, options)
    return solution


class _Adjoint(torch.autograd.Function):
    """The adjoint equation, differentiable in the right-hand side, the slopes and the weights."""

    @staticmethod
    def forward(
        right: Tensor, slope: Tensor, weight: Tensor, scale: float, options: SolveOptions
    ) -> Tensor:
        return options.solve_backward(
            lambda unit: AdjointProblem(scale, unit, slope, weight), right
        ).value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, slope, weight, ctx.scale, ctx.options = inputs
        ctx.save_for_backward(output, slope, weight)
        ctx.save_for_forward(output, slope, weight)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        solution, slope, weight = ctx.saved_tensors
        options = ctx.options.without_recall()
        k = solve_tangent(cotangent, slope, weight, ctx.scale, options)
        through = torch.mm(k, weight.t()) * ctx.scale
        return k, solution * through, ctx.scale * torch.mm((solution * slope).t(), k), None, None

    @staticmethod
    @in_full_precision
    def jvp(ctx: FunctionCtx, *tangents: Tensor | None) -> Tensor:
        solution, slope, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        scale, options = ctx.scale, ctx.options  # type: ignore[attr-defined]
        d_right, d_slope, d_weight = tangents[:3]
        right = torch.zeros_like(solution) if d_right is None else d_right
        if d_slope is not None:
            right = right + scale * torch.mm(solution * d_slope, weight)
        if d_weight is not None:
            right = right + scale * torch.mm(solution * slope, d_weight)
        return solve_adjoint(right, slope, weight, scale, options.without_recall())[0]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
        return vectorized(_Adjoint, info.batch_size, in_dims, arguments, per_sample=(0, 1))


class _Tangent(torch.autograd.Function):
    """The tangent equation, differentiable in the same three."""

    @staticmethod
    def forward(
        right: Tensor, slope: Tensor, weight: Tensor, scale: float, options: SolveOptions
    ) -> Tensor:
        return options.solve_backward(
            lambda unit: TangentProblem(scale, unit, slope, weight), right
        ).value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, slope, weight, ctx.scale, ctx.options = inputs
        ctx.save_for_backward(output, slope, weight)
        ctx.save_for_forward(output, slope, weight)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        solution, slope, weight = ctx.saved_tensors
        options = ctx.options.without_recall()
        g, inner = solve_adjoint(cotangent, slope, weight, ctx.scale, options)
        through = torch.mm(solution, weight.t()) * ctx.scale
        return g, g * through, ctx.scale * torch.mm(inner.t(), solution), None, None

    @staticmethod
    @in_full_precision
    def jvp(ctx: FunctionCtx, *tangents: Tensor | None) -> Tensor:
        solution, slope, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        scale, options = ctx.scale, ctx.options  # type: ignore[attr-defined]
        d_right, d_slope, d_weight = tangents[:3]
        right = torch.zeros_like(solution) if d_right is None else d_right
        if d_slope is not None:
            right = right + scale * d_slope * torch.mm(solution, weight.t())
        if d_weight is not None:
            right = right + scale * slope * torch.mm(solution, d_weight.t())
        return solve_tangent(right, slope, weight, scale, options.without_recall())

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
        return vectorized(_Tangent, info.batch_size, in_dims, arguments, per_sample=(0, 1))
