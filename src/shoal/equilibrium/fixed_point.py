"""Differentiable fixed points of a function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from shoal.core.torch_internals import (
    apply,
    has_gradient,
    in_full_precision,
    is_transformed,
    uncompiled,
    vjp,
)
from shoal.equilibrium.base import Solver
from shoal.equilibrium.batching import looped
from shoal.equilibrium.driver import Outcome, repeat
from shoal.equilibrium.methods import Gradient, Implicit, OneStep, Unrolled, check_gradient
from shoal.equilibrium.options import SolveOptions
from shoal.equilibrium.problem import Evaluation, FunctionProblem, Problem
from shoal.equilibrium.solution import Solution, check_on_failure
from shoal.equilibrium.solve import check_solver, function_problem

__all__ = ["differentiable_fixed_point", "fixed_point"]

_HIDDEN = (
    "f uses a tensor that requires a gradient but is not among its arguments; the implicit "
    "gradient would miss it. Pass it in `inputs` or `parameters`"
)


class FixedPointOptions(TypedDict, total=False):
    """The keywords of ``fixed_point`` but for ``on_failure``, for type checkers."""

    inputs: Sequence[Tensor]
    parameters: Sequence[Tensor]
    separable: bool
    solver: Solver | None
    gradient: Gradient | None


@overload
def fixed_point(
    f: Callable[..., Tensor],
    z0: Tensor,
    *,
    on_failure: Literal["raise", "warn"] = "raise",
    **options: Unpack[FixedPointOptions],
) -> Tensor: ...
@overload
def fixed_point(
    f: Callable[..., Tensor],
    z0: Tensor,
    *,
    on_failure: Literal["status"],
    **options: Unpack[FixedPointOptions],
) -> Solution: ...
@uncompiled
@in_full_precision
def fixed_point(
    f: Callable[..., Tensor],
    z0: Tensor,
    *,
    inputs: Sequence[Tensor] = (),
    parameters: Sequence[Tensor] = (),
    separable: bool = False,
    solver: Solver | None = None,
    gradient: Gradient | None = None,
    on_failure: str = "raise",
) -> Tensor | Solution:
    r"""Find a fixed point $z = f(z)$ for each sample, differentiable in inputs and parameters.

    Under autocast it runs in the dtype of ``z0``, forward and backward.

    The implicit gradient is for reverse mode, to any order; it has no forward mode (``jvp``,
    ``jacfwd``), which the equilibria of networks have.

    Args:
        f: Called as ``f(z, *inputs, *parameters)``; returns a tensor like ``z``. Sample $i$ of the
            result must depend on sample $i$ of ``z`` only.
        z0: Where to start, of shape (samples, ...). No gradient flows to it.
        inputs: Tensors with one entry per sample.
        parameters: Tensors that all samples share.
        separable: Whether ``f`` may be called for some of the samples alone, with the rows of
            ``z`` and ``inputs`` that belong to them. Then converged samples stop costing work.
        solver: The method; ``Picard()`` by default.
        gradient: ``Implicit()``, the default and exact; ``Unrolled()`` or ``OneStep()``.
        on_failure: ``"raise"`` a ``ConvergenceError``, ``"warn"`` with a ``ConvergenceWarning``,
            or only say it in the ``"status"`` that is returned: in the forward pass and in the
            backward pass. What gradient samples have that failed, the ``gradient`` says.

    Returns:
        The fixed points, like ``z0``. With ``on_failure="status"`` a ``Solution``, as of
        :func:`shoal.solve`, whose ``value`` they are, differentiable, and whose ``adjoint`` says
        how the last backward pass ended.

    Raises:
        ConvergenceError: If a sample does not converge and ``on_failure`` is ``"raise"``.
        TypeError: If an argument is not of its kind, or if ``f`` uses a tensor that requires a
            gradient but is not among its arguments: an implicit gradient would miss it.
        ValueError: If a shape does not fit or an option is unknown.

    Example:
        >>> import torch
        >>> from shoal.equilibrium import fixed_point
        >>> a = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        >>> z0 = torch.ones(1, 1, dtype=torch.float64)
        >>> z = fixed_point(lambda z, a: (z + a / z) / 2, z0, parameters=(a,))
        >>> z.sum().backward()
        >>> round(z.item(), 9), round(a.grad.item(), 9)  # √2 and 1/(2√2)
        (1.414213562, 0.353553391)
    """
    problem = function_problem(f, z0, inputs, parameters, separable=separable)
    options = SolveOptions(
        check_solver("solver", solver), check_gradient(gradient), check_on_failure(on_failure)
    )
    start = z0.detach().reshape(len(z0), -1).clone()
    flat, status, residual, steps = differentiable_fixed_point(problem, start, options)
    value = flat.view(z0.shape)
    if options.on_failure != "status":
        return value
    known = options.log.forward
    assert known is not None
    return Solution(value, status, residual, steps, known.evaluations, known.note, options.log)


def differentiable_fixed_point(
    problem: FunctionProblem, start: Tensor, options: SolveOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The fixed point of a function in its inputs and parameters, for arguments that were checked.

    Args:
        problem: The function, its inputs and its parameters.
        start: Where to start, of shape (samples, size).
        options: How to solve and to differentiate.

    Returns:
        The fixed points, with a gradient; status, residual and steps of each sample.
    """
    if isinstance(options.gradient, Implicit):
        _refuse_hidden(problem, start)
        call = _Call(
            problem.function, problem.shape, len(problem.inputs), problem.separable, options
        )
        tensors = (*problem.inputs, *problem.parameters)
        flat, status, residual, steps = apply(_Implicit, call, start, *tensors)
        return options.held(flat, status), status, residual, steps
    if isinstance(options.gradient, Unrolled):  # the very iteration that is repeated: a cold start
        options = options.without_recall()
    outcome = options.solve_forward(problem, start)
    found = outcome.solution
    value = options.attached(outcome, _followed(problem, options, start, outcome))
    return value, found.status, found.residual, found.steps


def _followed(problem: Problem, options: SolveOptions, start: Tensor, outcome: Outcome) -> Tensor:
    """The steps that are differentiated: one more, or all of them again."""
    if isinstance(options.gradient, OneStep):
        return problem.evaluate(outcome.solution.value.detach()).value
    return repeat(problem, options.solver, start, outcome.reached)


def _refuse_hidden(problem: FunctionProblem, start: Tensor) -> None:
    """See that no transform follows a tensor that is hidden in the function.

    Plain reverse mode is checked for in the solve, by its first evaluation (see ``_Closed``).
    """
    tensors = (*problem.inputs, *problem.parameters)
    if not is_transformed(start, *tensors) and torch.autograd.forward_ad._current_level < 0:
        return
    inputs, parameters = ([t.detach() for t in ts] for ts in (problem.inputs, problem.parameters))
    bare = FunctionProblem(problem.function, problem.shape, inputs, parameters, separable=False)
    with torch.enable_grad():
        value = bare.evaluate(start).value
    if has_gradient(value):
        raise TypeError(_HIDDEN)
    batched = torch._C._functorch.is_batchedtensor
    if batched(value) and not any(map(batched, (start, *tensors))):
        raise TypeError(
            "f uses a tensor that is mapped over by vmap but is not among its arguments. Pass it "
            "in `inputs` or `parameters`"
        )


@dataclass(frozen=True, eq=False)
class _Call:
    """What of a solve is not a tensor."""

    function: Callable[..., Tensor]
    shape: torch.Size
    count: int  # of the inputs; the parameters follow them
    separable: bool
    options: SolveOptions

    def solve(self, start: Tensor, tensors: Sequence[Tensor]) -> Solution:
        """Solve it."""
        if isinstance(self.function, _Adjoint):
            others = tensors[1:]
            return self.options.solve_backward(
                lambda right: _AdjointProblem(self, [right.view_as(tensors[0]), *others]), start
            )
        inputs, parameters = tensors[: self.count], tensors[self.count :]
        problem = _Closed(self.function, self.shape, inputs, parameters, separable=self.separable)
        return self.options.solve_forward(problem, start).solution


class _Closed(FunctionProblem):
    """The problem of a function that must not depend on anything unseen."""

    _unseen = True

    def evaluate(self, z: Tensor) -> Evaluation:
        if not self._unseen:
            return super().evaluate(z)
        self._unseen = False
        with torch.enable_grad():
            evaluation = super().evaluate(z)
        if evaluation.value.requires_grad:
            raise TypeError(_HIDDEN)
        return evaluation


@dataclass(frozen=True, eq=False)
class _Adjoint:
    r"""$g \mapsto v + J^\top g$, of which the gradient is a fixed point; itself differentiable."""

    function: Callable[..., Tensor]

    def __call__(self, g: Tensor, v: Tensor, z: Tensor, *tensors: Tensor) -> Tensor:
        _, pull = vjp(lambda t: self.function(t, *tensors), z)
        return v + pull(g)[0]


class _AdjointProblem(Problem):
    """The same for a solver: the map is linearized once, then products are all it takes."""

    def __init__(self, call: _Call, tensors: Sequence[Tensor]) -> None:
        v, z, *others = tensors
        self.call, self.tensors, self.shape = call, tensors, v.shape
        adjoint = call.function
        assert isinstance(adjoint, _Adjoint)
        self.right = v.reshape(len(v), -1)
        _, self.pull = vjp(lambda t: adjoint.function(t, *others), z)

    def evaluate(self, z: Tensor) -> Evaluation:
        return Evaluation(self.right + self.jacobian_product(z, z))

    def jacobian_product(self, z: Tensor, tangent: Tensor) -> Tensor:  # noqa: ARG002
        product: Tensor = self.pull(tangent.view(self.shape))[0]
        return product.reshape(tangent.shape)

    def packing_pays(self, dropped: int) -> bool:  # noqa: ARG002
        return self.call.separable

    def rows(self, index: Tensor) -> "_AdjointProblem":
        count = self.call.count
        inputs = [t.index_select(0, index) for t in self.tensors[:count]]
        return _AdjointProblem(self.call, [*inputs, *self.tensors[count:]])


class _Implicit(torch.autograd.Function):
    """The implicit gradient; the adjoint equation is solved by this very operation.

    It returns all of a solution that is a tensor, so that transforms see the status too.
    """

    @staticmethod
    def forward(call: _Call, start: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        found = call.solve(start, [t.detach() for t in tensors])
        return found.value, found.status, found.residual, found.steps

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.call = inputs[0]
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(output[0], *inputs[2:])

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, cotangent: Tensor, *_status: Tensor) -> tuple[Tensor | None, ...]:
        value, *tensors = ctx.saved_tensors
        call: _Call = ctx.call
        shape = (len(value), *call.shape)
        z, v = value.view(shape), cotangent.view(shape)
        options = call.options
        if isinstance(call.function, _Adjoint):  # of higher order: not the next of a series
            options = options.without_recall()
        adjoint = _Call(
            _Adjoint(call.function), call.shape, call.count + 2, call.separable, options
        )
        g: Tensor = apply(_Implicit, adjoint, cotangent, v, z, *tensors)[0]
        _, pull = vjp(lambda *ts: call.function(z, *ts), *tensors)
        return None, None, *pull(g.view(shape))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        return looped(_Implicit, info.batch_size, in_dims, arguments)
