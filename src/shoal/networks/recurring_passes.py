"""Passes through an equilibrium network that recur: on a GPU, one CUDA graph in each direction.

The graph of a forward pass goes from the inputs to the outputs; that of a backward pass from the
outputs' cotangents to the gradients of all weights. Whether both have solved their equations, and
whether the inputs are finite, is looked at once, at the end of each.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from shoal.core.torch_compat import (
    apply,
    has_hooks,
    has_loose_tensors,
    in_full_precision,
    is_transformed,
    own_tensors,
    submodules,
)
from shoal.equilibrium.cuda_graphs import graphs
from shoal.equilibrium.cuda_graphs.graphs import Function, place
from shoal.equilibrium.cuda_graphs.recurring import Recurrence, attempt
from shoal.equilibrium.methods import Implicit, Reversible, Unrolled
from shoal.equilibrium.recurrent.layer import AdjointAtOnce, Layer, LayerLinearization, LayerProblem
from shoal.equilibrium.recurrent.loop import recurrent_problem
from shoal.equilibrium.solvers.limits import Limits
from shoal.equilibrium.solvers.solution import Solution

if TYPE_CHECKING:
    from shoal.networks.equilibrium import EquilibriumNetwork

Solve = Callable[[Tensor], tuple[tuple[Tensor, ...], Tensor]]  # of an adjoint's right-hand side


class _Pass(NamedTuple):
    """A pass of a network that may be made at once.

    Attributes:
        network: The network.
        weights: Its parameters and buffers, by name.
        wanted: Whether the inputs and each of the weights have a gradient.
        addresses: Where the weights are.
        recurrences: What is known of such passes, forward and backward.
    """

    network: "EquilibriumNetwork[Any]"
    weights: dict[str, Tensor]
    wanted: tuple[bool, ...]
    addresses: list[int]
    recurrences: tuple[Recurrence, Recurrence]


def recurring_pass(
    network: "EquilibriumNetwork[Any]", x: Tensor, general: Callable[[Tensor], Tensor]
) -> Tensor:
    """The outputs for inputs, at once where that is known to do, else in general.

    Args:
        network: The network.
        x: Inputs, not yet checked: those of a kind that has passed before fit, and whether
            they are finite is looked at with the solution.
        general: The pass that checks them.
    """
    one = _pass(network, x)
    if one is None:
        return general(x)
    found = one.recurrences[0].run(lambda steps: _forward(one, x, steps), (x,))
    if found is None:
        output = general(x)
        last = network.options.log.forward
        if last is not None:
            one.recurrences[0].learn(last, converged=bool(last.converged.all()))
        return output
    (output, z, residual, *slopes), steps = found
    network.options.report("forward", Solution.of_steps(z, residual, steps), converged=True)
    if not slopes:
        return output
    made = [output, z, *slopes]
    attached: Tensor = apply(_Differentiable, one, made, x, *one.weights.values())
    return attached


def _pass(network: "EquilibriumNetwork[Any]", x: Tensor) -> _Pass | None:
    """A pass as one of its kind; ``None`` if it cannot be made at once."""
    if not isinstance(x, Tensor) or x.dim() < 2 or "parametrizations" in submodules(network):
        return None
    weights, options = own_tensors(network), network.options
    several = list(weights.values())
    if not graphs.can_record(x, *several) or torch.is_autocast_enabled(x.device.type):
        return None
    followed = torch.is_grad_enabled()
    wanted = tuple(followed and t.requires_grad for t in (x, *several))
    if followed and (has_hooks() or (network.warm_start and network.training)):
        return None  # checkpointing counts what is kept; or solves begin with a guess
    kind = options.solver, options.gradient, followed, wanted, place((x,), several)
    forward = options.known.of(kind)
    if forward.refused is None:
        forward.backward, forward.refused = Recurrence(), not _is_elementary(network, x)
    assert forward.backward is not None
    if forward.refused:
        return None
    return _Pass(network, weights, wanted, _addresses(several), (forward, forward.backward))


def _addresses(weights: Iterable[Tensor]) -> list[int]:
    return [weight.data_ptr() for weight in weights]


def _is_elementary(network: "EquilibriumNetwork[Any]", x: Tensor) -> bool:
    """Whether it has one layer whose solves may recur, and is differentiated exactly if at all.

    All of its weights must be known, as those are that it holds as parameters or buffers.
    """
    (layer, weight), *others = network.turn
    options = network.options
    if has_loose_tensors(network) or others or type(layer) is not Layer:
        return False
    if isinstance(options.gradient, Unrolled | Reversible):
        return False
    if torch.is_grad_enabled() and not isinstance(options.gradient, Implicit):
        return False
    return LayerProblem(layer, x, weight).may_recur(options.solver)  # by the number of rows


def _forward(one: _Pass, like: Tensor, steps: int) -> Function:
    """A pass with so many steps, as a function of the inputs."""
    network, followed = one.network, torch.is_grad_enabled()
    limits = Limits.of(network.options.solver, network.spec.width, like.dtype)

    def run(x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        injections = network.injections(x)
        problem, start = recurrent_problem(network.turn, injections)
        z, evaluation, residual, seen = attempt(problem.evaluate, start, steps, limits)
        assert evaluation.kept is not None
        seen = torch.add(seen, x.sum(), alpha=0.0)  # no number if an input is not finite
        slopes = (network.layer.slope(evaluation.kept),) if followed else ()
        return (network._read(z, injections), z, residual, *slopes), seen

    return run


def _gradients(
    one: _Pass, tensors: Sequence[Tensor], solve: Solve
) -> tuple[tuple[Tensor, ...], Tensor]:
    """The gradients of the inputs and the weights that are wanted, and what the solve adds to them.

    Args:
        one: The pass.
        tensors: The outputs' cotangent, the equilibrium, its slopes, and the inputs.
        solve: Solves the adjoint equation.
    """
    cotangent, z, slope, x = tensors
    several = zip((x, *one.weights.values()), one.wanted, strict=True)
    leaves = [tensor.detach().requires_grad_(want) for tensor, want in several]
    network = one.network.having(dict(zip(one.weights, leaves[1:], strict=True)))
    with torch.enable_grad():
        point = z.detach().requires_grad_()
        injections = network.injections(leaves[0])
        output = network._read(point, injections)
        ((layer, recurrent),) = network.turn
    (right,) = torch.autograd.grad(output, point, cotangent, retain_graph=True)
    (g, *known), seen = solve(right)
    inner = g * slope
    needed = [leaf for leaf in leaves if leaf.requires_grad]
    ends = [(output, cotangent), (injections[0], inner)]
    ends = [(end, by) for end, by in ends if end.requires_grad]
    found = torch.autograd.grad(
        [end for end, _ in ends], needed, [by for _, by in ends], materialize_grads=True
    )
    gradients = [
        torch.addmm(gradient, inner.t(), z, alpha=layer.scale) if leaf is recurrent else gradient
        for leaf, gradient in zip(needed, found, strict=True)
    ]
    return (*gradients, g, *known), seen


class _Differentiable(torch.autograd.Function):
    """The outputs of a pass, with the gradient of its inputs and weights."""

    @staticmethod
    def forward(ctx: Any, one: _Pass, made: list[Tensor], *tensors: Tensor) -> Tensor:
        output, z, slope = made
        ctx.one = one
        ctx.save_for_backward(z, slope, *tensors)
        return output

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        one = ctx.one
        z, slope, *tensors = ctx.saved_tensors
        one = one._replace(weights=dict(zip(one.weights, tensors[1:], strict=True)))
        moved = _addresses(tensors[1:]) != one.addresses
        if torch.is_grad_enabled() or moved or is_transformed(cotangent):
            return None, None, *_again(one, tensors, cotangent)
        changing = cotangent.contiguous(), z, slope, tensors[0].detach()
        found = one.recurrences[1].run(lambda steps: _backward(one, z, steps), changing)
        options = one.network.options
        if found is not None:
            (*gradients, g, residual), steps = found
            options.report("backward", Solution.of_steps(g, residual, steps), converged=True)
        else:
            drive = partial(_driven, one, changing)
            (*gradients, _), _ = _gradients(one, changing, drive)
            last = options.log.backward
            assert last is not None
            one.recurrences[1].learn(last, converged=bool(last.converged.all()))
        several = iter(gradients)
        return None, None, *(next(several) if want else None for want in one.wanted)


def _backward(one: _Pass, z: Tensor, steps: int) -> Function:
    """A backward pass with so many steps, as a function of tensors."""
    options = one.network.options
    ((layer, recurrent),) = one.network.having(one.weights).turn
    assert isinstance(options.gradient, Implicit)
    solver = options.gradient.adjoint_solver(options.solver)
    limits = Limits.of(solver, z.shape[1], z.dtype)
    form, weight = AdjointAtOnce(layer.scale), recurrent.detach()

    def run(*tensors: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        return _gradients(
            one, tensors, lambda right: form(steps, limits, right, tensors[2], weight)
        )

    return run


def _driven(
    one: _Pass, tensors: Sequence[Tensor], right: Tensor
) -> tuple[tuple[Tensor, ...], Tensor]:
    """The solution of the adjoint equation, step by step."""
    _, z, slope, x = tensors
    network = one.network.having({name: t.detach() for name, t in one.weights.items()})
    ((layer, weight),) = network.turn
    inner = layer.preactivation(z, network.inject(x), weight)
    near = LayerLinearization(layer, z, inner, weight, slope)
    g = network.options.solve_backward(near.adjoint(right)).solution.value
    return (g,), g


def _again(one: _Pass, tensors: Sequence[Tensor], cotangent: Tensor) -> list[Tensor | None]:
    """The gradients of a pass that is made once more: they are followed, or weights have moved."""
    followed = torch.is_grad_enabled()
    wanted = [
        tensor.requires_grad and want for tensor, want in zip(tensors, one.wanted, strict=True)
    ]
    needed = [tensor for tensor, want in zip(tensors, wanted, strict=True) if want]
    with torch.enable_grad():
        output = one.network.having(one.weights)._forward(tensors[0])
    found = iter(
        torch.autograd.grad(
            output, needed, cotangent, create_graph=followed, materialize_grads=True
        )
    )
    return [next(found) if want else None for want in wanted]
