r"""The ways to differentiate a fixed point: each attaches itself to a solution.

Let $z = f(z, \theta)$ and let $w = f(z^*, \theta)$ be one evaluation at the solution, whose
dependence on $\theta$ autograd knows. Then $dz = (I - J)^{-1} dw$: a cotangent of $z$ becomes
one of $w$ by the adjoint equation $g = v + J^\top g$, a tangent of $w$ one of $z$ by the tangent
equation $k = dw + J k$. Both are equilibria of maps themselves, so that derivatives of any order
follow.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from shoal.core.checks import integer, one_of, real
from shoal.core.torch_compat import (
    apply,
    below_transform,
    depends,
    extremes,
    full_precision,
    in_forward_mode,
    in_full_precision,
    is_batched_by_autograd,
    is_followed,
    is_known,
    is_mapped,
    is_transformed,
    largest,
    next_operation,
    outside_tensors,
    without_forward_mode,
    without_fused_attention,
)
from shoal.equilibrium.driver import Outcome, drive_through, repeat
from shoal.equilibrium.problem import (
    FunctionProblem,
    Linearization,
    LinearProblem,
    Problem,
    mapped,
    merged_rows,
)
from shoal.equilibrium.solution import OnFailure, Solution, SolveLog, Status, handle_failure
from shoal.equilibrium.solver import DampedPicard, Picard, Solver

_LOW, _HIGH = 2.0**-10, 2.0**10  # right-hand sides between them are solved for as they are
_DUAL_TENSORS_LAST = (
    "the tangent of a dual tensor through an equilibrium cannot be differentiated again, since its "
    "linear equation is solved without a graph; take torch.func.jvp or jacfwd, which can"
)
_HIDDEN = (
    "f uses a tensor that requires a gradient but is not among its inputs, nor a parameter of the "
    "module that it is. Its first derivatives by backward() are right; for second ones and for "
    "torch.func pass the tensor in `inputs`, or make f a module"
)
_CHANGED = (
    "f must be the same function in the backward pass, got one with another value at the same "
    "point: give a module as the cell, not a function that refers to one, and change neither its "
    "mode nor its weights between the passes"
)
_NOT_BATCHED = (
    "several cotangents at once (is_grads_batched=True, or vectorize=True) are not for equilibria; "
    "take torch.func.jacrev, or torch.func.vmap of a vjp"
)
_NOT_MAPPED = (
    "gradient must be Implicit(), Neumann() or OneStep() in torch.func.vmap, got Unrolled(), "
    "whose number of steps depends on the values"
)


@dataclass(frozen=True)
class Gradient(ABC):
    """How the gradient of a fixed point is computed; a custom one is one subclass.

    Args:
        failed: Gradient of samples whose forward or backward solve failed, where failures do not
            raise. ``"best"`` uses the iterates of least residual in both equations; it is not
            exact, but bounded as the iterates are. ``"zero"`` leaves the samples out. Where a cell
            returns NaN for a sample, gradients of weights are NaN, as in any network.
    """

    failed: str = field(default="best", kw_only=True)
    solvers: ClassVar[tuple[type[Solver], ...]] = (Solver,)  # kinds that it can differentiate
    needs_near: ClassVar[bool] = False  # whether it takes the map near the solution
    starts_anywhere: ClassVar[bool] = True  # whether the gradient is the same from any start

    def __post_init__(self) -> None:
        """Check the fields."""
        one_of("failed", self.failed, ("best", "zero"))

    @abstractmethod
    def attach(
        self, outcome: Outcome, problem: Problem, start: Tensor, options: "SolveOptions"
    ) -> Tensor:
        """The value of a solution, with a gradient.

        Args:
            outcome: The solution; its value has the shape (samples, size) and no gradient.
            problem: The map. Autograd follows ``problem.evaluate(z)`` to all that it depends on.
            start: Where the solve began.
            options: How to solve.
        """

    def solve(self, problem: Problem, start: Tensor, options: "SolveOptions") -> Solution:
        """Solve for a fixed point, and attach the gradient to it."""
        if not start.numel():  # as layers of PyTorch return empty tensors for empty batches
            return _empty(problem.evaluate(start), start)
        followed = torch.is_grad_enabled() or in_forward_mode()
        with without_forward_mode():
            outcome = options.solve_forward(problem, start, followed=followed)
        solution = outcome.solution
        if not followed:
            return solution.with_value(solution.value.clone())  # which may be one of the inputs
        z = self.attach(outcome, problem, start, options)
        if self.failed == "zero" and not outcome.converged:
            z = torch.where(solution.converged[:, None], z, z.detach())
        return solution.with_value(z)

    def exact(self) -> "Implicit":
        """The implicit gradient, to full accuracy, in place of this one."""
        return Implicit()


def _empty(value: Tensor, start: Tensor) -> Solution:
    """The solution for no samples."""
    count = len(start)
    status = torch.zeros(count, dtype=torch.int8, device=start.device)
    return Solution(value, status, status.to(start.dtype), status.int(), evaluations=1)


def _with_steps(solution: Solution, value: Tensor) -> Tensor:
    """A solution with the gradient of steps that autograd has followed to a value near it."""
    change = value - value.detach()
    # where the map is not finite, no gradient is
    finite = (solution.status != Status.NOT_FINITE)[:, None]
    return solution.value + torch.where(finite, change, 0.0)


@final
@dataclass(frozen=True)
class Implicit(Gradient):
    r"""The exact gradient, by the implicit function theorem.

    The backward pass solves $g = v + J^\top g$ at the fixed point, with a separate solver and
    tolerance. Memory is independent of the number of steps, and the gradient can be differentiated
    again.

    Args:
        solver: Solver of the backward pass; by default the same as in the forward pass.
        rtol: Relative tolerance of the backward pass; by default the solver's. An absolute
            tolerance applies only if ``solver`` has one, since gradients have no natural size.
        failed: ``"best"`` or ``"zero"``, see :class:`Gradient`.

    Example:
        >>> from shoal.equilibrium import Anderson, Implicit
        >>> Implicit(Anderson(history=3), rtol=1e-4).solver.history
        3
    """

    solver: Solver | None = None
    rtol: float | None = field(default=None, kw_only=True)
    needs_near: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.solver is not None and not isinstance(self.solver, Solver):
            raise TypeError(f"solver must be a Solver, such as Picard(), got {self.solver!r}")
        if self.rtol is not None:
            object.__setattr__(self, "rtol", real("rtol", self.rtol, at_least=0, below=1))

    def attach(
        self,
        outcome: Outcome,
        problem: Problem,
        start: Tensor,  # noqa: ARG002
        options: "SolveOptions",
    ) -> Tensor:
        """One evaluation at the solution, whose derivative is multiplied by the inverse."""
        return _with_implicit_gradient(outcome, _ImplicitRule(self, options, problem))

    def exact(self) -> "Implicit":
        """The same with the default tolerances."""
        return Implicit(None if self.solver is None else self.solver.with_tolerances(None, None))

    def invert(self, equation: LinearProblem, options: "SolveOptions") -> Tensor:
        r"""The solution of $g = v + Mg$, without a gradient."""
        return options.solve_backward(equation).solution.value

    def invert_followed(self, equation: LinearProblem, options: "SolveOptions") -> Tensor:
        """The same, differentiable again."""
        return _with_implicit_gradient(
            options.solve_backward(equation), _ImplicitRule(self, options, equation)
        )

    def adjoint_solver(self, forward: Solver) -> Solver:
        """The solver of the backward pass, given the forward solver."""
        solver = forward if self.solver is None else self.solver
        atol = None if self.solver is None else solver.atol
        rtol = solver.rtol if self.rtol is None else self.rtol
        return solver.with_tolerances(rtol, 0.0 if atol is None else atol)


@final
@dataclass(frozen=True)
class Unrolled(Gradient):
    """The gradient of the iteration itself, step by step.

    The solve is repeated with a graph, so memory grows with the number of steps. The result is the
    gradient of the returned iterate. As the iterate converges to the fixed point, it converges to
    the implicit gradient. An iteration that starts near the fixed point is short, and its gradient
    is rough: after one step, it equals that of :class:`OneStep`.

    It supports ``Picard`` and ``DampedPicard``. The other solvers divide by residuals that vanish
    as they converge, and have no useful derivative; :class:`Implicit` works with every solver. It
    does not support ``torch.vmap``, since the number of steps depends on the values.
    """

    solvers: ClassVar[tuple[type[Solver], ...]] = (Picard, DampedPicard)
    starts_anywhere: ClassVar[bool] = False

    def attach(
        self,
        outcome: Outcome,
        problem: Problem,
        start: Tensor,
        options: "SolveOptions",
    ) -> Tensor:
        """The same steps again."""
        if any(map(is_mapped, (outcome.solution.steps, start, *problem.tensors))):
            raise NotImplementedError(_NOT_MAPPED)
        steps = repeat(problem, options.solver, start, outcome.reached)
        return _with_steps(outcome.solution, steps)


@final
@dataclass(frozen=True)
class OneStep(Gradient):
    r"""The gradient of one last step $f(z^*)$ with $z^*$ held fixed (Jacobian-free; inexact).

    It omits the factor $(I - J^\top)^{-1}$ of the exact gradient. It needs no solve, and is a
    descent direction only if the map contracts strongly enough.
    """

    def attach(
        self,
        outcome: Outcome,
        problem: Problem,
        start: Tensor,  # noqa: ARG002
        options: "SolveOptions",  # noqa: ARG002
    ) -> Tensor:
        """One evaluation at the solution."""
        return _with_steps(outcome.solution, problem.evaluate(outcome.solution.value))


@final
@dataclass(frozen=True)
class Neumann(Gradient):
    r"""The implicit gradient with a partial sum of its Neumann series (inexact).

    It replaces $(I - J^\top)^{-1} v$ by $\sum_{i=0}^{k} (J^\top)^i v$: $k$ products and no solve.
    The error is $(J^\top)^{k+1}(I - J^\top)^{-1} v$, which is small if the map contracts strongly
    and unbounded otherwise. :meth:`shoal.Equilibrium.gradient_error` measures it for a given batch.

    Args:
        terms: $k$, the number of terms after the first. Zero is :class:`OneStep`.
    """

    terms: int = 5
    needs_near: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        object.__setattr__(self, "terms", integer("terms", self.terms, at_least=0))

    def attach(
        self,
        outcome: Outcome,
        problem: Problem,
        start: Tensor,  # noqa: ARG002
        options: "SolveOptions",
    ) -> Tensor:
        """One evaluation at the solution, whose derivative is multiplied by the sum."""
        return _with_implicit_gradient(outcome, _ImplicitRule(self, options, problem))

    def invert(self, equation: LinearProblem, options: "SolveOptions") -> Tensor:  # noqa: ARG002
        """The first terms of the series."""
        total = equation.right
        for _ in range(self.terms):
            total = equation.evaluate(total)
        return total

    invert_followed = invert  # by autograd


def check_gradient(gradient: Gradient | None) -> Gradient:
    """Return the gradient method, the implicit one by default, or refuse another object."""
    if gradient is None:
        return Implicit()
    if not isinstance(gradient, Gradient):
        raise TypeError(f"gradient must be a Gradient, such as Implicit(), got {gradient!r}")
    return gradient


def check_differentiable(gradient: Gradient, solver: Solver) -> None:
    """Refuse a solver that a gradient method cannot differentiate."""
    kinds, names = gradient.solvers, " and ".join(kind.__name__ for kind in gradient.solvers)
    if not issubclass(type(solver), kinds):
        raise ValueError(  # noqa: TRY004
            f"gradient must be Implicit() or OneStep() for the solver {type(solver).__name__}, got "
            f"{type(gradient).__name__}(), which is for {names}: Implicit() is exact with every "
            "solver"
        )


@dataclass(frozen=True, eq=False)
class SolveOptions:
    """How to solve, forward and backward, and what to do if that fails.

    Attributes:
        solver: The method of the forward pass.
        fallbacks: The methods that continue where it fails, one after the other, in both passes.
        gradient: The gradient method.
        on_failure: Response to samples that do not converge, in both passes.
        log: Log of the outcomes.
    """

    solver: Solver = field(default_factory=Picard)
    fallbacks: tuple[Solver, ...] = field(default=(), kw_only=True)
    gradient: Gradient = field(default_factory=Implicit)
    on_failure: OnFailure = "warn"
    log: SolveLog = field(default_factory=SolveLog)

    solvers: tuple[Solver, ...] = field(init=False)
    adjoint_solvers: tuple[Solver, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Check that the gradient method supports the solver; choose the solvers of both passes."""
        check_differentiable(self.gradient, self.solver)
        exact = self.gradient if isinstance(self.gradient, Implicit) else Implicit()
        solvers = (self.solver, *self.fallbacks)
        adjoint = dict.fromkeys(map(exact.adjoint_solver, solvers))  # the gradient's solver once
        object.__setattr__(self, "solvers", solvers)
        object.__setattr__(self, "adjoint_solvers", tuple(adjoint))

    def solve_forward(self, problem: Problem, start: Tensor, *, followed: bool = False) -> Outcome:
        """Solve for the fixed point.

        Args:
            problem: The map.
            start: Where to begin.
            followed: Whether the map near the solution is wanted.
        """
        near = followed and self.gradient.needs_near
        near = near and not in_forward_mode() and not is_transformed(start)
        outcome = drive_through(problem, self.solvers, start, followed=near)
        tried = self.solvers if Solver in self.gradient.solvers else None
        self.report("forward", outcome.solution, converged=outcome.converged, tried=tried)
        return outcome

    def solve_backward(self, equation: LinearProblem) -> Outcome:
        """Solve a linear equation of the implicit gradient.

        Samples that fail get the iterate of least residual, or zero, as the gradient method says.
        A right-hand side that is not finite is passed on as it is, as gradient scalers expect.

        Args:
            equation: The equation. Its right-hand side may be of any size; it is divided by its
                size, row by row unless samples are coupled.
        """
        right = equation.right.detach()
        size, finite = _unit(right, coupled=equation.samples_coupled)
        as_it_is = isinstance(size, float) and _LOW < size < _HIGH and finite is None
        if as_it_is and not self.adjoint_solvers[0].atol:
            size = None
        unit = right if size is None else right / size
        if finite is not None:
            unit = unit.masked_fill(~finite, 0.0)
        with without_forward_mode():
            scaled = LinearProblem(equation.near, unit, adjoint=equation.adjoint)
            outcome = drive_through(scaled, self.adjoint_solvers, unit)
        solution = outcome.solution
        value, residual = solution.value, solution.residual
        if self.gradient.failed == "zero" and not outcome.converged:
            of_zero: Tensor = torch.linalg.vector_norm(unit, dim=1).to(residual.dtype)
            value = torch.where(solution.converged[:, None], value, 0.0)
            residual = torch.where(solution.converged, residual, of_zero)
        if size is not None:
            value = value * size
            residual = residual * (size if isinstance(size, float) else size[:, 0])
        if finite is not None:
            value = torch.where(finite, value, right)
            residual = residual.masked_fill(~finite[:, 0], 0.0)
        if value is not solution.value:
            solution = replace(solution, value=value, residual=residual)
            outcome = replace(outcome, solution=solution)
        self.report("backward", solution, converged=outcome.converged, tried=self.adjoint_solvers)
        return outcome

    def report(
        self,
        where: str,
        solution: Solution,
        *,
        converged: bool,
        tried: Sequence[Solver] | None = None,
    ) -> None:
        """Log an outcome, and raise or warn if a sample failed.

        Args:
            where: ``"forward"`` or ``"backward"``.
            solution: The outcome.
            converged: Whether all samples converged.
            tried: The solvers that were used; ``None`` if another one would not be taken.
        """
        solution = solution.on_host()
        if self.log.keep(where, solution, converged=converged):
            subjects = {
                "forward": "The equilibrium",
                "backward": "The backward pass of the equilibrium",
            }
            names = None if tried is None else [type(solver).__name__ for solver in tried]
            handle_failure(solution, self.on_failure, subjects[where], tried=names)

    def exact(self, *, silent: bool) -> "SolveOptions":
        """These options with exact gradients, for measuring a network.

        Args:
            silent: Whether failures may be left to a status. It is not in the log of training.
        """
        on_failure = self.on_failure
        if on_failure == "status" and not silent:
            on_failure = "warn"
        gradient = self.gradient.exact()
        return SolveOptions(self.solver, gradient, on_failure, fallbacks=self.fallbacks)


def _unit(right: Tensor, *, coupled: bool) -> tuple[Tensor | float | None, Tensor | None]:
    """The size of a right-hand side, and a mask of finite rows if not all are.

    Coupled samples need one unit for all rows, so they get one size.
    """
    least, most = extremes(right)
    size, finite = max(-least, most), None
    if coupled and size < math.inf:
        return size or 1.0, finite
    rows = right.abs().amax(1, keepdim=True)
    if not size < math.inf:
        finite = rows.isfinite()
        rows = rows.masked_fill(~finite, 0.0)
    return largest(rows) or 1.0 if coupled else rows.clamp_min(
        torch.finfo(right.dtype).tiny
    ), finite


@dataclass(eq=False)
class _ImplicitRule:
    """The implicit function theorem at a solution.

    Attributes:
        gradient: The gradient method, which solves the linear equations.
        options: The options of their solves.
        problem: The map.
        near: The map near the solution; ``None`` in forward mode and transforms.
    """

    gradient: Any
    options: SolveOptions
    problem: Any
    near: Linearization | None = None

    def equation(self, right: Tensor, z: Tensor, *tensors: Tensor, adjoint: bool) -> LinearProblem:
        """A linear equation by another evaluation, at a point that depends on the tensors."""
        base = self.problem.with_tensors(*tensors)
        return LinearProblem(base.linearize(z), right, adjoint=adjoint, base=base)


def _with_implicit_gradient(outcome: Outcome, rule: _ImplicitRule) -> Tensor:
    """A solution with the derivative of an evaluation there, multiplied by the inverse."""
    z, problem, near = outcome.solution.value, rule.problem, outcome.near
    tensors, since = problem.tensors, next_operation()
    if is_transformed(z) or in_forward_mode():
        z = z.detach()
        with without_fused_attention():
            value = problem.evaluate(z)
        hidden = isinstance(problem, FunctionProblem) and is_transformed(z)
        if hidden and not is_known(value, tensors, since):
            raise TypeError(_HIDDEN)
    else:
        near = problem.linearize(z.detach().requires_grad_()) if near is None else near
        value = near.value
        if not any(tensor.requires_grad for tensor in tensors) and not depends(value, near.z):
            return z.clone()
        rule.near = near
    try:
        result: Tensor = apply(_ImplicitGradient, value, z, rule, *tensors)
    except RuntimeError as error:
        if "INTERNAL ASSERT" not in str(error):  # of a tensor of a transform that is not at work
            raise
        raise TypeError(_HIDDEN) from error
    return result


class _ImplicitGradient(torch.autograd.Function):
    r"""The solution in place of the value of the map there, with the factor $(I - J)^{-1}$."""

    @staticmethod
    def forward(value: Tensor, z: Tensor, rule: _ImplicitRule, *tensors: Tensor) -> Tensor:  # noqa: ARG004
        return z.clone()  # users may change it in place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        value, z, ctx.rule, *tensors = inputs
        ctx.save_for_backward(value, output, *tensors)
        if in_forward_mode():
            ctx.save_for_forward(value, z, *tensors)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        if is_batched_by_autograd(cotangent):
            raise NotImplementedError(_NOT_BATCHED)
        rule: _ImplicitRule = ctx.rule
        followed = torch.is_grad_enabled() or in_forward_mode() or is_transformed(cotangent)
        if rule.near is not None and not followed:
            equation = LinearProblem(rule.near, cotangent, adjoint=True)
            with full_precision(cotangent):
                g = rule.gradient.invert(equation, rule.options)
            return (g, *(None,) * (len(ctx.needs_input_grad) - 1))
        value, z, *tensors = ctx.saved_tensors
        with without_fused_attention(), full_precision(z):
            # tensors may depend on each other, and the point on all of them: views do not
            needed = ctx.needs_input_grad[3:]
            z = _view(z, need=True)
            views = [_view(tensor, need=need) for tensor, need in zip(tensors, needed, strict=True)]
            since = next_operation()
            equation = rule.equation(cotangent, z, *views, adjoint=True)
            _check_same(equation.near.value, value)
            g = rule.gradient.invert_followed(equation, rule.options)
            return None, None, None, *_partials(equation, views, needed, g, since)

    @staticmethod
    @in_full_precision
    @without_fused_attention()
    def jvp(ctx: Any, tangent: Tensor, *input_tangents: Tensor | None) -> Tensor:
        rule: _ImplicitRule = ctx.rule
        value, z, *tensors = ctx.saved_tensors
        if not is_transformed(tangent) or not any(map(is_followed, (tangent, z, *tensors))):
            equation = rule.equation(tangent, z, *tensors, adjoint=False)
            _check_same(equation.near.value, value)
            motion: Tensor = rule.gradient.invert_followed(equation, rule.options)
            return motion if is_transformed(tangent) else apply(_Final, motion)

        if all(t is None for t in input_tangents[2:]):
            raise TypeError(_HIDDEN)

        def followed_motion(
            tangent: Tensor,
            tangents: Sequence[Tensor | None],
            value: Tensor,
            z: Tensor,
            *ts: Tensor,
        ) -> Tensor:
            # second derivatives depend on the motion of the point, in both equations
            z = apply(_ImplicitGradient, value, z, rule, *ts)
            moved = _pushed(rule.problem, tangents, z, *ts)
            _check_same(moved, tangent, _HIDDEN)
            equation = rule.equation(moved, z, *ts, adjoint=False)
            motion: Tensor = rule.gradient.invert_followed(equation, rule.options)
            return motion

        return below_transform(followed_motion, tangent, input_tangents[2:], *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        value, z, rule, *tensors = arguments
        count, (first, second, _, *dims) = info.batch_size, in_dims
        problem, tensors = mapped(rule.problem, tensors, dims, count)
        rows = merged_rows(value, first, count), merged_rows(z, second, count)
        result = apply(
            _ImplicitGradient, *rows, replace(rule, problem=problem, near=None), *tensors
        )
        return result.view(count, len(result) // count, *result.shape[1:]), 0


def _view(tensor: Tensor, *, need: bool) -> Tensor:
    """A view that gradients are taken by; of a tensor whose transform has ended, a leaf."""
    view = tensor.view_as(tensor)  # which takes off the mark of a transform that has ended
    followed = view.requires_grad or is_transformed(view) or not need
    return view if followed else view.detach().requires_grad_()


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


def _check_same(value: Tensor, before: Tensor, message: str | None = None) -> None:
    """Refuse a map that has become another one since the forward pass."""
    off = (value - before).detach().abs()
    off = torch.where(before.detach().isfinite(), off, 0.0)
    size = before.detach().abs().nan_to_num(0.0, 0.0, 0.0)
    if largest(off) > math.sqrt(torch.finfo(value.dtype).eps) * largest(size):
        raise TypeError(_CHANGED if message is None else message)


def _partials(
    equation: LinearProblem,
    tensors: Sequence[Tensor],
    needed: Sequence[bool],
    g: Tensor,
    since: int,
) -> Sequence[Tensor | None]:
    """Cotangents of a map's tensors, each with the others held fixed; differentiable again."""
    near, base = equation.near, equation.base
    assert base is not None
    if is_transformed(near.z, *tensors):
        places = [number for number, t in enumerate(tensors) if t.is_floating_point()]
        by_place = dict(zip(places, base.partials(near.z, tensors, places)(g), strict=True))
        return [by_place.get(number) for number in range(len(tensors))]
    targets = [tensor for tensor, need in zip(tensors, needed, strict=True) if need]
    if isinstance(base, FunctionProblem):
        leaves = outside_tensors(near.value, near.z, [near.z, *tensors], since)
        if leaves is None or {*map(id, leaves)} - {*map(id, (near.z, *tensors))}:
            raise TypeError(_HIDDEN)
    gradients = iter(
        torch.autograd.grad(
            near.value, targets, g, create_graph=torch.is_grad_enabled(), allow_unused=True
        )
        if targets
        else ()
    )
    return [next(gradients) if need else None for need in needed]


def _pushed(
    problem: Problem, tangents: Sequence[Tensor | None], z: Tensor, *tensors: Tensor
) -> Tensor:
    """The tangent of a map's value where the point is held fixed; differentiable again."""
    moving = [number for number, tangent in enumerate(tangents) if tangent is not None]
    if not moving:
        raise TypeError(_HIDDEN)
    pull = problem.partials(z, tensors, moving)
    push = torch.func.vjp(pull, torch.zeros_like(z))[1]  # linear, so that any point will do
    motion: Tensor = push(tuple(tangents[number] for number in moving))[0]
    return motion
