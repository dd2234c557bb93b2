"""Do I need this DEQ? What a loop does, and what it costs."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from shoal.core.checks import integer, real, seeded
from shoal.core.settings import in_standard_settings
from shoal.diagnosis.equilibria import (
    distinct_equilibria,
    first_found,
    newton_errors,
    solver_costs,
)
from shoal.diagnosis.gradients import gradient_costs
from shoal.diagnosis.iteration import effective_depth, iterate
from shoal.diagnosis.jacobian import jacobian_spectrum
from shoal.diagnosis.kernel_regime import kernel_change
from shoal.diagnosis.model_loop import ModelLoop, loop_of
from shoal.diagnosis.result import Diagnosis
from shoal.equilibrium import Anderson, NewtonKrylov, Solution
from shoal.equilibrium.driver import drive_through
from shoal.equilibrium.problem import FunctionProblem
from shoal.equilibrium.state import State

_MIXED = (
    "samples depend on each other, so that all of the state was taken as one sample; "
    "batched=False says so"
)
_UNTRUE = (
    "autograd's derivative of the cell differs from finite differences: something in it is "
    "detached, or has a derivative of its own; the Jacobian and gradients are autograd's"
)
_STEPS = {torch.float64: 1e-5, torch.float32: 1e-2}  # of differences, over the state's size
_VAGUE = 0.25
_RANDOM = "the cell draws random numbers: all that is said is of one draw, the same at every step"


@in_standard_settings
def diagnose(
    model: Callable[..., Any],
    z0: State | None = None,
    *inputs: Any,
    output: Callable[[State], Tensor] | None = None,
    tolerance: float = 0.01,
    starts: int = 4,
    steps: int = 500,
    batched: bool = True,
    cotangent: State | None = None,
    reference: Module | Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> Diagnosis:
    r"""Measure what a loop does: does it settle, how deep is it in effect, what does it cost?

    It is for deep equilibrium models and for looped and recursive ones alike, trained or not, in
    evaluation mode and without fused attention, which has no second derivatives. Nothing of the
    model is changed. Some tens of samples say as much as all.

    Args:
        model: A cell, called as ``cell(z, *inputs)``, module or function; a ``shoal.Equilibrium``;
            or, without a ``z0``, a whole model, called as ``model(*inputs)``, that has an
            equilibrium inside: a ``shoal.Equilibrium``, a network made by ``shoal.build``, or a
            layer of torchdeq, its own or that of ``shoal.adapters.torchdeq``.
        z0: Where the loop starts: a tensor of shape (samples, ...) or a tree of such tensors;
            ``None`` for a whole model, which starts by itself.
        inputs: What the cell is called with besides the state, or the model with.
        output: What the state is for, as a function of it: the readout. Of a whole model it is
            known, and ``output`` is applied to what it returns.
        tolerance: Within which relative distance an output is as good as its limit.
        starts: From how many starts to look for equilibria: the model's own, zero, and random ones
            of the size of the equilibrium.
        steps: How many applications of the cell the plain iteration makes at most.
        batched: For a cell, whether the first dimension of the state counts samples.
        cotangent: The derivative of your loss by the state, to compare gradients with; random by
            default.
        reference: The whole model as it was before training, or its state dictionary, to compare
            the tangent kernels.
        seed: Of the random starts and cotangents.

    Returns:
        The measurements: ``print`` them, :meth:`~Diagnosis.plot` them, or
        :meth:`~Diagnosis.save` them as a page.

    Raises:
        TypeError: If an argument is not of its kind.
        ValueError: If shapes do not fit, or a whole model has no equilibrium inside.

    Example:
        >>> import torch, shoal
        >>> u = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
        >>> d = shoal.diagnose(lambda z, u: -0.5 * z + u, torch.zeros_like(u), u)
        >>> d.behavior, round(d.spectrum.radius, 6), d.depth.quantile(1.0)
        ('settles', 0.5, 7)
    """
    real("tolerance", tolerance, above=0, below=1)
    starts, steps = integer("starts", starts, at_least=1), integer("steps", steps, at_least=2)
    loop = loop_of(model, z0, inputs, output=output, batched=batched)
    with loop.evaluating():
        problem, start = loop.layer.problem(loop.z0, *loop.inputs)
        with torch.no_grad():
            problem.evaluate(start.clone())  # says what is wrong with a cell that fails
        mixed = _mixes(problem, start)
        if mixed:
            loop = loop.as_one_sample()
            problem, start = loop.layer.problem(loop.z0, *loop.inputs)
        costs, solutions = solver_costs(problem, start)
        found = first_found(solutions)
        named = _starts(start, found, starts, seed)
        known = torch.where(_vague(problem, found, start)[:, None], torch.nan, found)
        runs = [iterate(problem, z, w, steps=steps, known=known) for w, z in named.items()]
        rows = found.isfinite().all(1).nonzero()[:, 0]
        spectrum = jacobian_spectrum(problem, found.nan_to_num(), rows) if len(rows) else None
        others = [_solved(problem, z) for z in list(named.values())[1:]]
        equilibria = distinct_equilibria(
            problem,
            list(named.values()),
            [*map(_where_found, solutions), *others],
            certified=_certified(loop),
            norm=0.0 if spectrum is None else spectrum.norm,
        )
        depth = effective_depth(loop, problem, start, runs[0], found, tolerance)
        gradients = gradient_costs(loop, found, cotangent=cotangent, seed=seed)
        change = None if reference is None else kernel_change(loop, model, inputs, reference)
        notes = tuple(_notes(problem, found, mixed=mixed))
    return Diagnosis(
        _name(model),
        len(start),
        start.shape[1],
        tuple(runs),
        depth,
        equilibria,
        spectrum,
        costs,
        gradients,
        change,
        _parameter_bytes(loop),
        start.numel() * start.element_size(),
        notes,
    )


def _name(model: Callable[..., Any]) -> str:
    return model.__name__ if inspect.isfunction(model) else type(model).__name__


def _mixes(problem: FunctionProblem, start: Tensor) -> bool:
    """Whether samples depend on each other, where they start or elsewhere."""
    generator = seeded("seed", 0)
    noise = torch.randn(start.shape, generator=generator, dtype=torch.float64).to(start)
    half = torch.randperm(len(start), generator=generator)[:, None].to(start.device) % 2 == 1
    for z in (start, start + noise):  # a product with a mean, say, does not tell at zero
        near = problem.linearize(z)
        if not bool(near.value.isfinite().all()):
            continue  # nothing can be told: what is not a number spreads by itself
        with torch.no_grad():
            sent = noise.masked_fill(half, 0.0)  # by half of them, what no sum cancels
            if near.samples_coupled and bool(near.pull(sent).masked_fill(~half, 0.0).any()):
                return True
    return False


def _vague(problem: FunctionProblem, found: Tensor, start: Tensor) -> Tensor:
    """Which equilibria may be off by a large part of their size, so that nothing goes there."""
    sizes = [torch.linalg.vector_norm(z, dim=1, dtype=torch.float64) for z in (found, start)]
    size: Tensor = torch.maximum(sizes[0], 1e-3 * sizes[1])  # of one that is zero
    return ~(newton_errors(problem, found) <= _VAGUE * size)


def _notes(problem: FunctionProblem, found: Tensor, *, mixed: bool) -> Iterator[str]:
    """What else to know."""
    if mixed:
        yield _MIXED
    if getattr(problem.scope, "random", False):
        yield _RANDOM
    if found.dtype in _STEPS and not _differentiates(problem, found):
        yield _UNTRUE


def _differentiates(problem: FunctionProblem, found: Tensor) -> bool:
    """Whether a product with the Jacobian at equilibria is what differences say, roughly."""
    there = found.isfinite().all(1, keepdim=True)
    z = found.nan_to_num()
    noise = torch.randn(z.shape, generator=seeded("seed", 1), dtype=torch.float64).to(z)
    length = _STEPS[z.dtype] * max(float(z.square().mean().sqrt()), 1e-3)
    product = torch.where(there, problem.derivative_at(z)(noise).detach(), 0.0)
    with torch.no_grad():
        ends = [problem.evaluate(z + side * length * noise) for side in (1, -1)]
        difference = torch.where(there, (ends[0] - ends[1]) / (2 * length), 0.0)
    size = max(float(product.norm()), float(difference.norm()), 1e-2 * float(noise.norm()))
    return not float((product - difference).norm()) > 0.2 * size


def _certified(loop: ModelLoop) -> bool:
    """Whether the loop is known to contract, by a bound that holds everywhere."""
    return loop.network is not None and loop.network.well_posedness().contraction


def _starts(start: Tensor, found: Tensor, count: int, seed: int) -> dict[str, Tensor]:
    """The states to start from, by what they are."""
    named = {"its own start": start}
    if bool(start.any()) and count > 1:
        named["zero"] = torch.zeros_like(start)
    known = torch.cat([found[found.isfinite().all(1)], start])
    size = float(known.double().square().mean().sqrt()) or 1.0
    generator = seeded("seed", seed)
    for number in range(1, count - len(named) + 1):
        noise = torch.randn(start.shape, generator=generator, dtype=torch.float64)
        named[f"random state {number}"] = 2 * size * noise.to(start)
    return named


def _solved(problem: FunctionProblem, start: Tensor) -> Tensor:
    """The equilibria from another start; not a number where none is found."""
    return _where_found(drive_through(problem, (Anderson(), NewtonKrylov()), start).solution)


def _where_found(solution: Solution) -> Tensor:
    """The equilibria of a solution; not a number where it failed."""
    return torch.where(solution.converged[:, None], solution.value, torch.nan)


def _parameter_bytes(loop: ModelLoop) -> int:
    parameters = {id(p): p for module in loop.modules for p in module.parameters()}
    return sum(p.numel() * p.element_size() for p in parameters.values())
