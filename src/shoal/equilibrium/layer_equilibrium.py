r"""The equilibrium $Z = \varphi(s Z W^\top + U)$ as a differentiable operation of $U$ and $W$.

By the implicit function theorem a cotangent $V$ of $Z$ gives $\nabla U = G \circ D$ and
$\nabla W = s (G \circ D)^\top Z$, where $D = \varphi'(s Z W^\top + U)$ and
$G = V + s (G \circ D) W$. Forward and backward pass cost one matrix product per step.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from shoal.core.torch_internals import apply, full_precision, in_full_precision, uncompiled
from shoal.equilibrium.batching import vectorized
from shoal.equilibrium.driver import repeat
from shoal.equilibrium.layer import Layer, LayerProblem
from shoal.equilibrium.linear import solve_adjoint, solve_tangent
from shoal.equilibrium.methods import Implicit, OneStep, Unrolled
from shoal.equilibrium.options import SolveOptions
from shoal.equilibrium.picard import without_coarse_steps

__all__ = ["equilibrium"]


@uncompiled
def equilibrium(injection: Tensor, weight: Tensor, layer: Layer, options: SolveOptions) -> Tensor:
    r"""The fixed point $Z$ for each row of $U$.

    Args:
        injection: $U$, of shape (samples, width).
        weight: $W$, of shape (width, width).
        layer: $\varphi$ and $s$.
        options: How to solve and to differentiate.
    """
    if torch.is_autocast_enabled(injection.device.type):
        # tolerances are those of the weights' dtype, so the solve is in that
        with full_precision(injection):
            return equilibrium(injection.to(weight.dtype), weight, layer, options)
    if isinstance(options.gradient, Implicit):
        z, _, status = apply(_Equilibrium, injection, weight, layer, options)
        return options.held(z, status)
    return _of_steps(injection, weight, layer, options)


def _of_steps(injection: Tensor, weight: Tensor, layer: Layer, options: SolveOptions) -> Tensor:
    """The same with the gradient of all steps, or of one more."""
    if isinstance(options.gradient, Unrolled):
        # the very iteration that is repeated below: no shortcuts, and the same start
        solver = without_coarse_steps(options.solver)
        options = replace(options, solver=solver, warm=None)
    detached = LayerProblem(layer, injection.detach(), weight.detach())
    outcome = options.solve_forward(detached, detached.start())
    problem = LayerProblem(layer, injection, weight)
    if isinstance(options.gradient, OneStep):
        return options.attached(outcome, problem.evaluate(outcome.solution.value).value)
    steps = repeat(problem, options.solver, problem.start(), outcome.reached)
    return options.attached(outcome, steps)


class _Equilibrium(torch.autograd.Function):
    """The implicit gradient; the second output is for the backward pass, the third a status."""

    @staticmethod
    def forward(
        injection: Tensor, weight: Tensor, layer: Layer, options: SolveOptions
    ) -> tuple[Tensor, Tensor, Tensor]:
        problem = LayerProblem(layer, injection, weight)
        outcome = options.solve_forward(problem, problem.start())
        assert outcome.kept is not None
        return outcome.solution.value, outcome.kept, outcome.solution.status

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        injection, weight, ctx.layer, ctx.options = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[:2], injection, weight)
        ctx.save_for_forward(*output[:2], injection, weight)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, cotangent: Tensor, *_others: Tensor) -> tuple[Tensor | None, ...]:
        z, inner, injection, weight = ctx.saved_tensors
        layer, options = ctx.layer, ctx.options
        if torch.is_grad_enabled():  # to be differentiated again: the slopes need their history
            inner = layer.preactivation(z, injection, weight)
        _, inner_gradient = solve_adjoint(
            cotangent, layer.slope(inner), weight, layer.scale, options
        )
        d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = torch.mm(inner_gradient.t(), z).mul(layer.scale)
        return inner_gradient, d_weight, None, None

    @staticmethod
    @in_full_precision
    def jvp(ctx: FunctionCtx, *tangents: Tensor | None) -> tuple[Tensor, None, None]:
        z, _, injection, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        layer, options = ctx.layer, ctx.options  # type: ignore[attr-defined]
        d_injection, d_weight = tangents[:2]
        slope = layer.slope(layer.preactivation(z, injection, weight))
        direct = torch.zeros_like(z) if d_injection is None else d_injection
        if d_weight is not None:
            direct = direct + layer.scale * torch.mm(z, d_weight.t())
        d_z = solve_tangent(slope * direct, slope, weight, layer.scale, options.without_recall())
        return d_z, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        return vectorized(_Equilibrium, info.batch_size, in_dims, arguments, per_sample=(0,))
