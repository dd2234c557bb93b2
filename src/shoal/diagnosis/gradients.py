"""What each way to differentiate an equilibrium costs, and how far off it is."""

import math
import weakref
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.core.checks import seeded
from shoal.core.measuring import peak_memory, timed
from shoal.core.torch_compat import pytree
from shoal.diagnosis.model_loop import ModelLoop
from shoal.equilibrium import (
    Anderson,
    Equilibrium,
    Gradient,
    Implicit,
    Neumann,
    NewtonKrylov,
    OneStep,
    Picard,
    Unrolled,
)

GRADIENTS: tuple[Gradient, ...] = (
    Implicit(),
    OneStep(),
    Neumann(1),
    Neumann(5),
    Neumann(20),
    Unrolled(),
)
_SOLVERS = (Picard(max_steps=100), Anderson(history=10), NewtonKrylov())


class GradientCost(NamedTuple):
    """What a gradient costs, and how far it is from the exact one.

    Attributes:
        gradient: The method.
        relative: The norm of its error over that of the exact gradient.
        cosine: Of the angle to the exact gradient; below zero it leads uphill.
        backward_evaluations: Products with the transposed Jacobian in the backward pass.
        seconds: Of a forward and a backward pass.
        memory: Bytes that the forward pass keeps for the backward pass, parameters and inputs left
            out.
        peak: The most bytes that both passes hold at once, besides parameters and inputs.
        samples: Of how many samples: those whose equilibrium and exact gradient were found.
    """

    gradient: Gradient
    relative: float
    cosine: float
    backward_evaluations: int
    seconds: float
    memory: int
    peak: int
    samples: int

    @property
    def wrong(self) -> bool:
        """Whether it leads uphill."""
        return self.cosine < 0

    @property
    def name(self) -> str:
        """The name of the method."""
        terms = f"({self.gradient.terms})" if isinstance(self.gradient, Neumann) else ""
        return type(self.gradient).__name__ + terms


def gradient_costs(
    loop: ModelLoop,
    found: Tensor,
    *,
    cotangent: Any = None,
    seed: int = 0,
    gradients: tuple[Gradient, ...] = GRADIENTS,
) -> tuple[GradientCost, ...]:
    """Measure gradients against the exact one, for samples whose equilibrium is known.

    Args:
        loop: The loop.
        found: Equilibria, in rows; samples without one are left out.
        cotangent: The derivative of a loss by the state; random by default.
        seed: Of the random one.
        gradients: The methods; the first must be ``Implicit``.
    """
    loop, tensors = _differentiable(loop)
    weights = _cotangent(loop, found, cotangent, seed)
    if not tensors or not bool(weights.any()):
        return ()
    layer = _layer(loop, gradients[0])
    _passes(loop, layer, weights, tensors)  # once before, for fair times
    weights = torch.where(_solved(layer)[:, None], weights, 0.0)
    samples = int(weights.any(1).sum())
    costs: list[GradientCost] = []
    truth: Tensor | None = None
    for gradient in gradients:
        flat, layer, seconds, memory, peak = _measured(loop, gradient, weights, tensors)
        truth = flat if truth is None else truth
        size = truth.norm()
        if not 0 < float(size) < math.inf:
            return ()
        cosine = torch.dot(flat, truth) / (flat.norm() * size).clamp_min(1e-300)  # of zero: zero
        relative = float((flat - truth).norm() / size)
        products = _products(gradient, layer)
        numbers = (relative, float(cosine), products, seconds, memory, peak, samples)
        costs.append(GradientCost(gradient, *numbers))
    return tuple(costs)


def _solved(layer: Equilibrium) -> Tensor:
    """Which samples were solved by the last call of a layer, forward and backward."""
    forward = layer.solution
    assert forward is not None
    backward = forward.adjoint
    return forward.converged if backward is None else forward.converged & backward.converged


def _differentiable(loop: ModelLoop) -> tuple[ModelLoop, list[Tensor]]:
    """The loop, with inputs to differentiate by if nothing else is there, and these tensors."""
    tensors = loop.parameters
    if tensors:
        return loop, tensors
    inputs = pytree.tree_map_only(
        Tensor,
        lambda t: t.detach().requires_grad_() if t.is_floating_point() else t,
        loop.inputs,
    )
    loop = replace(loop, inputs=inputs)
    return loop, loop.parameters


def _cotangent(loop: ModelLoop, found: Tensor, cotangent: Any, seed: int) -> Tensor:
    """The derivative of a loss by the state in rows, zero where there is no equilibrium."""
    if cotangent is not None:
        wanted, got = (
            [tuple(t.shape) for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]
            for tree in (loop.z0, cotangent)
        )
        if wanted != got:
            raise ValueError(f"cotangent must be like z0, of shapes {wanted}, got {got}")
        rows = loop.layout.rows(cotangent).to(found)
    else:
        generator = seeded("seed", seed)
        rows = torch.randn(found.shape, generator=generator, dtype=torch.float64).to(found)
    return torch.where(found.isfinite().all(1, keepdim=True), rows, 0.0)


def _layer(loop: ModelLoop, gradient: Gradient) -> Equilibrium:
    """The layer of a loop, with a gradient."""
    own = loop.layer
    solver = _SOLVERS[0] if isinstance(gradient, Unrolled) else _SOLVERS
    return Equilibrium(
        own.cell, solver=solver, gradient=gradient, on_failure="status", batched=own.batched
    )


def _passes(
    loop: ModelLoop, layer: Equilibrium, weights: Tensor, tensors: list[Tensor]
) -> tuple[Tensor, int]:
    """A gradient as one vector, and the bytes kept for it; of a random cell by the same draw."""
    with (
        torch.enable_grad(),
        torch.random.fork_rng([weights.device] if weights.is_cuda else []),
    ):
        torch.manual_seed(0)
        counted = _Kept(tensors, loop)
        with torch.autograd.graph.saved_tensors_hooks(counted, lambda t: t):
            rows = loop.layout.rows(layer(loop.z0, *loop.inputs))
        kept = counted.bytes
        total = (rows * weights).sum()
        if not total.requires_grad:
            return weights.new_zeros(1).double(), 0
        found = torch.autograd.grad(
            total, tensors, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([one.double().flatten() for one in found]), kept


def _measured(
    loop: ModelLoop, gradient: Gradient, weights: Tensor, tensors: list[Tensor]
) -> tuple[Tensor, Equilibrium, float, int, int]:
    """A gradient as one vector, the layer, the seconds, the bytes kept, and those at the peak."""
    layer = _layer(loop, gradient)
    passes = partial(_passes, loop, layer, weights, tensors)
    (flat, memory), seconds = timed(passes, weights.device)
    _, peak = peak_memory(passes, weights.device)
    if not isinstance(gradient, Unrolled):
        memory = _one_evaluation(loop, tensors)
    return flat, layer, seconds, memory, peak


def _products(gradient: Gradient, layer: Equilibrium) -> int:
    solution = layer.solution
    assert solution is not None
    if isinstance(gradient, Neumann):
        return gradient.terms
    if isinstance(gradient, Unrolled):
        return int(solution.steps.max())
    return 0 if solution.adjoint is None else solution.adjoint.evaluations


def _one_evaluation(loop: ModelLoop, tensors: list[Tensor]) -> int:
    """Bytes that autograd keeps of one evaluation: all that is kept, but by unrolled steps."""
    counted = _Kept(tensors, loop)
    problem, start = loop.layer.problem(loop.z0, *loop.inputs)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(counted, lambda t: t):
        value = problem.evaluate(start.requires_grad_())
    found = counted.bytes
    del value  # until here it holds what is counted
    return found


class _Kept:
    """Counts the bytes that autograd keeps, each tensor once, without parameters and inputs."""

    def __init__(self, tensors: list[Tensor], loop: ModelLoop) -> None:
        known = [*tensors, *pytree.tree_leaves((loop.inputs, loop.z0))]
        self.known = {t.untyped_storage().data_ptr() for t in known if isinstance(t, Tensor)}
        self.kept: list[weakref.ref[Tensor]] = []

    def __call__(self, tensor: Tensor) -> Tensor:
        kept = tensor.detach()  # an operation that kept its own output would keep itself
        self.kept.append(weakref.ref(kept))
        return kept

    @property
    def bytes(self) -> int:
        """The bytes that are still kept."""
        alive = [tensor for ref in self.kept if (tensor := ref()) is not None]
        storages = [tensor.untyped_storage() for tensor in alive]
        sizes = {one.data_ptr(): one.nbytes() for one in storages}
        return sum(size for place, size in sizes.items() if place not in self.known)
