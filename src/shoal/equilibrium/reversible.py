r"""Relaxed iterations that can be run backwards: their exact gradient in constant memory.

Two states alternate, $y' = \beta y + (1 - \beta) f(z)$ and $z' = \beta z + (1 - \beta) f(y')$.
Both equations can be solved for the previous states, so the backward pass needs no step to be
stored (McCallum et al. 2025, "Reversible deep equilibrium models").
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from shoal.core.checks import integer, real
from shoal.core.torch_compat import (
    in_full_precision,
    is_batched_by_autograd,
    is_transformed,
    next_operation,
    outside_tensors,
)
from shoal.equilibrium.driver import Outcome
from shoal.equilibrium.gradients import Gradient, SolveOptions
from shoal.equilibrium.problem import Problem
from shoal.equilibrium.solution import Solution, Status
from shoal.equilibrium.verdict import Verdict

_MISSED = 1e-3  # relative distance of the reversed iteration's end from the start, if it failed


@final
@dataclass(frozen=True)
class Reversible(Gradient):
    r"""The exact gradient of a damped iteration that is run backwards, in constant memory.

    Two states are updated alternately, $y' = \beta y + (1 - \beta) f(z)$ and
    $z' = \beta z + (1 - \beta) f(y')$. This replaces the solver's method and runs to the solver's
    tolerance or for a number of steps. The backward pass recomputes each step's states from the
    next. The result is the gradient of the returned iterate, converged or not, as for
    :class:`Unrolled` but in constant memory. It costs four evaluations of the map and two products
    with its Jacobian per step. Rounding errors grow by $1/\beta$ in each backward step; a pass that
    fails to recover the initial state is reported as failed. After McCallum et al. 2025.

    Args:
        damping: $\beta$, the weight of the old state, above 0 and below 1.
        steps: Number of steps; by default, it runs until all samples have converged.
        failed: ``"best"`` or ``"zero"``, see :class:`Gradient`.
    """

    damping: float = 0.5
    steps: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        damping = real("damping", self.damping, above=0, below=1)
        object.__setattr__(self, "damping", damping)
        if self.steps is not None:
            object.__setattr__(self, "steps", integer("steps", self.steps, at_least=1))

    def solve(self, problem: Problem, start: Tensor, options: SolveOptions) -> Solution:
        """The last iterate of the relaxed iteration, with that iteration's gradient.

        Samples that diverge keep their iterate of least residual.
        """
        if not start.numel():
            return super().solve(problem, start, options)
        if is_transformed(start, *problem.tensors):
            raise NotImplementedError(
                "gradient must be Implicit(), Neumann() or OneStep() in transforms of torch.func, "
                "got Reversible()"
            )
        with torch.no_grad():
            y, solution, steps = _iterate(problem, start, self, options)
        converged = bool(solution.converged.all())
        options.report("forward", solution, converged=converged)
        if not torch.is_grad_enabled():
            return solution
        _check_given(problem, solution.value)
        value = _Reversed.apply(  # type: ignore[no-untyped-call]
            y, solution.value, start, problem, options, steps, *problem.tensors
        )
        if self.failed == "zero" and not converged:
            value = torch.where(solution.converged[:, None], value, value.detach())
        return replace(solution, value=value)

    def attach(
        self, outcome: Outcome, problem: Problem, start: Tensor, options: SolveOptions
    ) -> Tensor:
        """Not used: the iteration is this method's, not the solver's."""
        raise NotImplementedError


def _check_given(problem: Problem, z: Tensor) -> None:
    """Refuse a map that depends on tensors outside of its inputs and parameters."""
    point, since = z.detach().requires_grad_(), next_operation()
    with torch.enable_grad():
        value = problem.evaluate(point)
    tensors = outside_tensors(value, point, problem.tensors, since)
    if tensors is None or {*map(id, tensors)} - {*map(id, problem.tensors)}:
        raise TypeError(
            "gradient must be Implicit() for a cell that refers to tensors that require gradients "
            "and are neither inputs nor parameters of it, got Reversible(); pass them in `inputs`, "
            "or make the cell a module"
        )


def _iterate(
    problem: Problem, start: Tensor, gradient: Reversible, options: SolveOptions
) -> tuple[Tensor, Solution, Tensor]:
    """Iterate until all samples have ended, or for the method's number of steps.

    Returns:
        The first state, the second state as a solution, and the number of steps of each sample.
    """
    solver, y, z, step = options.solver, start, start, 0
    if gradient.steps is not None:
        solver = replace(solver, max_steps=gradient.steps)
    verdict = Verdict(solver, problem)
    while True:
        value = problem.evaluate(z)
        due = gradient.steps is None or step in (0, gradient.steps)
        solution = verdict.look(value, z, step) if due else None
        if solution is not None and gradient.steps in (None, step):
            break
        y, z = _step(problem, gradient.damping, y, z, value)
        step += 1
    if verdict.reached is None:
        return y, solution, solution.steps
    y = z = start
    for count in range(int(verdict.reached.amax())):  # again, as samples rest at different steps
        new = _step(problem, gradient.damping, y, z, problem.evaluate(z))
        moving = (verdict.reached > count)[:, None]
        y, z = (torch.where(moving, moved, state) for moved, state in zip(new, (y, z), strict=True))
    return y, solution, verdict.reached


def _step(
    problem: Problem, damping: float, y: Tensor, z: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Both states after one more step, from the map at the second."""
    y = value.lerp(y, damping)
    return y, problem.evaluate(y).lerp(z, damping)


class _Reversed(torch.autograd.Function):
    """The last iterate; the backward pass makes the steps again, from the last to the first."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        z: Tensor,
        start: Tensor,
        problem: Problem,
        options: SolveOptions,
        steps: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.problem, ctx.options, ctx.steps = problem, options, steps
        ctx.save_for_backward(y, z, start, *tensors)
        return z.clone()

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        if is_batched_by_autograd(cotangent):
            raise NotImplementedError(
                "several cotangents at once (is_grads_batched=True, or vectorize=True) are not for "
                "Reversible(); take one at a time, or Implicit() and torch.func.jacrev"
            )
        if torch.is_grad_enabled():  # autograd does not report tensors that are not asked for
            raise NotImplementedError(
                "gradient must be Implicit(), Neumann() or Unrolled() for second derivatives, "
                "with create_graph=True, got Reversible()"
            )
        y, z, start, *tensors = ctx.saved_tensors
        damping = ctx.options.gradient.damping
        step_gradient = _StepGradient(ctx.problem, tensors, ctx.needs_input_grad[6:])
        states = [y, z, torch.zeros_like(cotangent), cotangent]
        for number in range(int(ctx.steps.amax()), 0, -1):
            moving = (ctx.steps >= number)[:, None]  # the others rest
            y, z, y_bar, z_bar = states
            value, pulled = step_gradient.pull_back(y, (1 - damping) * z_bar * moving)
            y_bar, z = y_bar + pulled, (z - (1 - damping) * value) / damping
            value, pulled = step_gradient.pull_back(z, (1 - damping) * y_bar * moving)
            y, y_bar = (y - (1 - damping) * value) / damping, damping * y_bar
            z_bar = damping * z_bar + pulled
            new = y, z, y_bar, z_bar
            states = [
                torch.where(moving, moved, state) for moved, state in zip(new, states, strict=True)
            ]
        y, z, *_ = states
        _judge(ctx.options, torch.cat([y, z], 1), torch.cat([start, start], 1), cotangent)
        return *(None,) * 6, *step_gradient.totals


class _StepGradient:
    """Products with the transposed Jacobian, and the gradients of tensors summed up by them."""

    def __init__(self, problem: Problem, tensors: Sequence[Tensor], needed: Sequence[bool]) -> None:
        pairs = zip(tensors, needed, strict=True)
        self.leaves = [tensor.detach().requires_grad_(need) for tensor, need in pairs]
        self.problem = problem.with_tensors(*self.leaves)
        self.needed = needed
        self.totals: list[Tensor | None] = [None] * len(self.leaves)

    def pull_back(self, point: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        point = point.detach().requires_grad_()
        with torch.enable_grad():
            value = self.problem.evaluate(point)
        targets = [leaf for leaf, need in zip(self.leaves, self.needed, strict=True) if need]
        pulled, *gradients = torch.autograd.grad(
            value, [point, *targets], g, allow_unused=True, materialize_grads=True
        )
        gradient = iter(gradients)
        for index, need in enumerate(self.needed):
            if need:
                total, new = self.totals[index], next(gradient)
                self.totals[index] = new if total is None else total + new
        return value.detach(), pulled


def _judge(options: SolveOptions, arrived: Tensor, start: Tensor, cotangent: Tensor) -> None:
    """Report whether the reversed iteration has returned to its start."""
    residual = torch.linalg.vector_norm(arrived - start, dim=1)
    size = torch.linalg.vector_norm(start, dim=1).clamp_min(1.0)
    missed = ~(residual <= _MISSED * size)
    status = torch.where(missed, Status.STAGNATED, Status.CONVERGED).to(torch.int8)
    solution = Solution(
        cotangent.detach(), status, residual, torch.zeros_like(status, dtype=torch.int32), 0
    )
    if bool(missed.any()):
        solution = replace(
            solution,
            note="the reversed iteration did not return to its start, as rounding grows by "
            "1/damping in each step: use fewer steps, more damping, or float64",
        )
    options.report("backward", solution, converged=not solution.note)
