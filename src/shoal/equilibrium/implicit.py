r"""Equilibria as differentiable operations: one theorem for every map.

Let $z = f(z, \theta)$ and let $w = f(z^*, \theta)$ be one evaluation at the solution, of which
autograd knows how it depends on $\theta$, whatever $\theta$ is. Then $dz = (I - J)^{-1} dw$: a
cotangent of $z$ becomes one of $w$ by the adjoint equation $g = v + J^\top g$, a tangent of $w$
one of $z$ by the tangent equation $k = dw + J k$. Both are equilibria of maps themselves, so
derivatives of any order follow.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from shoal.core.torch_compat import (
    apply,
    below_transform,
    in_forward_mode,
    in_full_precision,
    is_batched_by_autograd,
    is_followed,
    is_mapped,
    is_transformed,
    kept_as_they_are,
    next_operation,
    outside_tensors,
    partial_derivatives,
    point_at,
    without_forward_mode,
    without_fused_attention,
)
from shoal.equilibrium.maps import Adjoint, Map, OfFunction, Tangent, copies, merged_rows
from shoal.equilibrium.methods import Neumann, OneStep, Reversible, Unrolled
from shoal.equilibrium.reversible import reversible_equilibrium
from shoal.equilibrium.solve_options import SolveOptions
from shoal.equilibrium.solvers.driver import Outcome, repeat
from shoal.equilibrium.solvers.problem import (
    FunctionProblem,
    Linearization,
    LinearProblem,
    Problem,
)
from shoal.equilibrium.solvers.solution import Solution

_DUAL_TENSORS_LAST = (
    "the tangent of a dual tensor through an equilibrium cannot be differentiated again, since its "
    "linear equation is solved without a graph; take torch.func.jvp or jacfwd, which can"
)
_HIDDEN = (
    "f uses a tensor that requires a gradient but is not among its arguments, in an operation that "
    "cannot be looked into. First derivatives are right; for second ones pass it in `inputs`"
)
_NOT_BATCHED = (
    "several cotangents at once (is_grads_batched=True, or vectorize=True) are not for equilibria; "
    "take torch.func.jacrev, or torch.func.vmap of a vjp"
)
_NOT_MAPPED = (
    "gradient must be Implicit(), Neumann() or OneStep() in torch.func.vmap, got Unrolled(), "
    "whose number of steps depends on the values"
)


def equilibrium_of(
    of: Map, tensors: Sequence[Tensor], start: Tensor, options: SolveOptions
) -> Solution:
    """The fixed point of a map for each row, differentiable in all that the map depends on.

    Args:
        of: The map.
        tensors: Those that its problem is made of.
        start: Where to start, of shape (samples, size). No gradient flows to it.
        options: How to solve and to differentiate.
    """
    if isinstance(options.gradient, Reversible):
        if isinstance(of, OfFunction):
            of, tensors = of.differentiated(start)
        return reversible_equilibrium(of, tensors, start, options)
    if isinstance(options.gradient, OneStep | Unrolled):
        return _of_steps(of, tensors, start, options)
    if is_transformed(start, *tensors):
        found = _opaque(of, options, start, tensors)
        if isinstance(of, OfFunction):  # which may take another branch there
            of, tensors = of.also_at(found.value)
        with without_fused_attention():
            value = of.problem(*tensors).evaluate(found.value).value
        return _attached(found, value, of, options, None, tensors)
    problem = of.problem(*tensors)
    since = next_operation()
    if isinstance(of, OfFunction) and isinstance(problem, FunctionProblem):
        problem.is_followed = torch.is_grad_enabled() and not in_forward_mode()
    outcome = _solved(problem, start, options)
    found = outcome.solution
    if isinstance(of, OfFunction):  # which may have returned a tensor that it was given
        found = found.with_value(found.value.clone())
    if not torch.is_grad_enabled() and not in_forward_mode():
        return found
    near = outcome.near or _linearized(problem, outcome)
    if isinstance(of, OfFunction):
        of, tensors = of.seen(near.value, near.z, since)
        followed = bool(tensors) or of.hidden
    else:
        followed = any(tensor.requires_grad for tensor in tensors)
    if not followed and not in_forward_mode():
        return found
    # where there are formulas, or leaves by which to differentiate, it is for its tangent alone
    direct = near.has_formulas or (isinstance(of, OfFunction) and of.has_leaves_alone)
    value = found.value if direct and not in_forward_mode() else near.value
    return _attached(found, value, of, options, near, tensors)


def _opaque(of: Map, options: SolveOptions, start: Tensor, tensors: Sequence[Tensor]) -> Solution:
    """The outcome of a solve that transforms leave alone."""
    value, status, residual, steps = apply(_Solve, of, options, start.detach(), *tensors)
    return Solution(value, status, residual, steps, evaluations=0)


def _linearized(problem: Problem, outcome: Outcome) -> Linearization:
    """The map near the solution, by another evaluation."""
    point = point_at(outcome.solution.value)
    kept = None if in_forward_mode() else outcome.kept  # which has no tangent
    attention = without_fused_attention() if in_forward_mode() else nullcontext()
    with attention:  # one evaluation, whatever is done to more
        return kept_as_they_are(lambda: problem.linearize(point, kept))


def _solved(problem: Problem, start: Tensor, options: SolveOptions) -> Outcome:
    """Solve for the fixed point of a map, or a linear equation at size one."""
    with without_forward_mode():
        if isinstance(problem, LinearProblem):
            return options.solve_backward(problem)
        return options.solve_forward(problem, start)


def _attached(
    found: Solution,
    value: Tensor,
    of: Map,
    options: SolveOptions,
    near: Linearization | None,
    tensors: Sequence[Tensor],
) -> Solution:
    z = apply(_Attached, value, found.value.detach(), of, options, near, *tensors)
    return found.with_value(options.held(z, found))


def _of_steps(of: Map, tensors: Sequence[Tensor], start: Tensor, options: SolveOptions) -> Solution:
    """The fixed point with the derivatives of its last step, or of all steps made again."""
    problem = of.problem(*tensors)
    if isinstance(options.gradient, OneStep):
        if is_transformed(start, *tensors):
            found = _opaque(of, options, start, tensors)
        else:
            with without_forward_mode():
                found = options.solve_forward(problem, start).solution
        followed = problem.evaluate(found.value.detach()).value
        return found.with_value(options.attached(found, followed))
    if any(map(is_mapped, (start, *tensors))):
        raise NotImplementedError(_NOT_MAPPED)
    options = options.without_recall()  # the very iteration that is repeated: a cold start
    with without_forward_mode():
        outcome = options.solve_forward(problem, start)
    solution = outcome.solution
    followed = repeat(problem, options.solver, start, outcome.reached)
    return solution.with_value(options.attached(solution, followed))


class _Solve(torch.autograd.Function):
    """A solve without derivatives, as an operation that transforms leave alone."""

    @staticmethod
    def forward(of: Map, options: SolveOptions, start: Tensor, *tensors: Tensor) -> Any:
        problem = of.problem(*tensors)
        found = _solved(problem, start, options).solution
        return found.value, found.status, found.residual, found.steps

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG004
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *_cotangents: Tensor) -> tuple[None, ...]:
        return (None,) * len(ctx.needs_input_grad)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[None, ...]:  # noqa: ARG004
        return (None,) * 4

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        of, options, start, *tensors = arguments
        count = info.batch_size
        mapped, tensors = copies(of, tensors, in_dims[3:], count)
        rows = merged_rows(start, in_dims[2], count)
        results = apply(_Solve, mapped, options, rows, *tensors)
        split = tuple(r.view(count, len(r) // count, *r.shape[1:]) for r in results)
        return split, (0,) * len(split)


class _Attached(torch.autograd.Function):
    r"""The solution in place of the value of the map there, with the factor $(I - J)^{-1}$."""

    @staticmethod
    def forward(
        value: Tensor,  # noqa: ARG004
        z: Tensor,
        of: Map,  # noqa: ARG004
        options: SolveOptions,  # noqa: ARG004
        near: Linearization | None,
        *tensors: Tensor,  # noqa: ARG004
    ) -> Tensor:
        # what a layer's solve has made is its own, to be read; users may change what they get
        own = near is not None and near.has_formulas and not in_forward_mode()
        return z.view_as(z) if own else z.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        value, z, ctx.of, ctx.options, ctx.near, *tensors = inputs
        ctx.save_for_backward(output, *tensors)
        ctx.save_for_forward(value, z, *tensors)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        if is_batched_by_autograd(cotangent):
            raise NotImplementedError(_NOT_BATCHED)
        needed = ctx.needs_input_grad[5:]
        if not _is_last(ctx, cotangent):
            with without_fused_attention():
                g = _through(ctx, Adjoint, cotangent, *ctx.saved_tensors)
                return *(None,) * 5, *_partials(ctx.of, g, needed, *ctx.saved_tensors)
        g = _through(ctx, Adjoint, cotangent)  # users may have changed in place what they got
        if ctx.near.has_formulas:
            return *(None,) * 5, *ctx.near.partials(g, needed)
        if ctx.needs_input_grad[0]:  # the rest is autograd's, through the evaluation at hand
            return g, *(None,) * (len(ctx.needs_input_grad) - 1)
        return *(None,) * 5, *partial_derivatives(ctx.near.value, ctx.of.used, g)

    @staticmethod
    @in_full_precision
    @without_fused_attention()
    def jvp(ctx: Any, tangent: Tensor | None, *others: Tensor | None) -> Tensor:
        assert tangent is not None
        _, z, *tensors = ctx.saved_tensors
        if not is_transformed(tangent):
            found: Tensor = apply(_Final, _through(ctx, Tangent, tangent, z, *tensors))
            return found
        if not any(map(is_followed, (tangent, *ctx.saved_tensors))):
            return _through(ctx, Tangent, tangent, z, *tensors)

        def again(
            tangents: Sequence[Tensor | None], value: Tensor, z: Tensor, *ts: Tensor
        ) -> Tensor:
            # what is differentiated again must know that the point moves, in both equations
            z = apply(_Attached, value, z, ctx.of, ctx.options, None, *ts)
            return _through(ctx, Tangent, _pushed(ctx.of, tangents, z, *ts), z, *ts)

        return below_transform(again, others[4:], *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        value, z, of, options, _, *tensors = arguments
        count = info.batch_size
        rows = (merged_rows(t, d, count) for t, d in zip((value, z), in_dims[:2], strict=True))
        mapped, tensors = copies(of, tensors, in_dims[5:], count)
        result = apply(_Attached, *rows, mapped, options, None, *tensors)
        return result.view(count, len(result) // count, *result.shape[1:]), 0


class _Final(torch.autograd.Function):
    """A tangent that is not to be differentiated: how the point moves is not in its graph."""

    @staticmethod
    def forward(tangent: Tensor) -> Tensor:
        return tangent.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        raise NotImplementedError(_DUAL_TENSORS_LAST)


def _is_last(ctx: Any, right: Tensor) -> bool:
    """Whether nothing will be differentiated again or mapped, so that what is at hand suffices."""
    if ctx.near is None or torch.is_grad_enabled() or in_forward_mode():
        return False
    return not is_transformed(right)


def _through(ctx: Any, equation: type[Adjoint], right: Tensor, *tensors: Tensor) -> Tensor:
    """The solution of a linear equation at the fixed point, differentiable where that is wanted.

    Args:
        ctx: Of the fixed point.
        equation: The adjoint or the tangent equation.
        right: Its right-hand side.
        tensors: The fixed point, and the tensors of the map, unless nothing will be differentiated.
    """
    options: SolveOptions = ctx.options
    gradient = options.gradient
    if _is_last(ctx, right):
        if isinstance(gradient, Neumann):
            return _partial_sum(equation.at(ctx.near, right), right, gradient.terms)
        return options.solve_backward(equation.at(ctx.near, right)).solution.value
    if isinstance(gradient, Neumann):
        problem = equation(ctx.of).problem(right, *tensors)
        return _partial_sum(problem, right, gradient.terms)
    if isinstance(ctx.of, Adjoint):  # of higher order: not the next of a series
        options = options.without_recall()
    return equilibrium_of(equation(ctx.of), (right, *tensors), right, options).value


def _partials(
    of: Map, g: Tensor, needed: Sequence[bool], z: Tensor, *tensors: Tensor
) -> Sequence[Tensor | None]:
    """Cotangents of a map's tensors, each with the others held fixed; differentiable again."""
    if is_transformed(z, *tensors):
        found = torch.func.vjp(lambda *ts: of.problem(*ts).evaluate(z).value, *tensors)
        several: tuple[Tensor, ...] = found[1](g)
        return several
    since = next_operation()
    with torch.enable_grad():
        # tensors may depend on each other, and the point on all of them: what is new does not
        point, *views = (tensor.view_as(tensor) for tensor in (z, *tensors))
        near = of.problem(*views).linearize(point)
    if near.has_formulas:
        return near.partials(g, needed)
    if isinstance(of, OfFunction):
        seen = outside_tensors(near.value, point, [point, *views], since)
        if of.hidden or seen is None or {id(t) for t in seen} - {id(t) for t in (point, *views)}:
            raise TypeError(_HIDDEN)
    wanted = [view for view, need in zip(views, needed, strict=True) if need]
    gradients = iter(
        torch.autograd.grad(
            near.value, wanted, g, create_graph=torch.is_grad_enabled(), allow_unused=True
        )
        if wanted
        else ()
    )
    return [next(gradients) if need else None for need in needed]


def _pushed(of: Map, tangents: Sequence[Tensor | None], z: Tensor, *tensors: Tensor) -> Tensor:
    """The tangent of a map's value where the point is held fixed; differentiable again."""
    moving = [number for number, tangent in enumerate(tangents) if tangent is not None]
    if not moving:
        raise TypeError(_HIDDEN)

    def value(*moved: Tensor) -> Tensor:
        others = dict(zip(moving, moved, strict=True))
        together = (others.get(number, tensor) for number, tensor in enumerate(tensors))
        return of.problem(*together).evaluate(z).value

    pull = torch.func.vjp(value, *(tensors[number] for number in moving))[1]
    push = torch.func.vjp(pull, torch.zeros_like(z))[1]  # linear, so that any point will do
    found: Tensor = push(tuple(tangents[number] for number in moving))[0]
    return found


def _partial_sum(problem: Problem, right: Tensor, terms: int) -> Tensor:
    """The first terms of the Neumann series of a linear equation."""
    total = right
    for _ in range(terms):
        total = problem.evaluate(total).value
    return total
