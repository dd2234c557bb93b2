"""Fixed points of a function, with a gradient and without."""

from collections.abc import Callable, Sequence
from typing import Literal, TypedDict, Unpack, overload

from torch import Tensor

from shoal.core.checks import known_tensor
from shoal.core.torch_compat import in_full_precision, uncompiled
from shoal.equilibrium.driver import drive
from shoal.equilibrium.gradients import Gradient, SolveOptions, check_gradient
from shoal.equilibrium.problem import FunctionProblem
from shoal.equilibrium.solution import Solution, check_on_failure, handle_failure
from shoal.equilibrium.solver import Solver, check_solver
from shoal.equilibrium.state import StateLayout


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
    on_failure: Literal["raise", "warn"] = "warn",
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
    on_failure: str = "warn",
) -> Tensor | Solution:
    r"""Find a fixed point $z = f(z)$ for each sample, differentiable in inputs and parameters.

    Under autocast it runs in the dtype of ``z0``, forward and backward. If ``f`` is a module, its
    parameters receive gradients too. Other tensors that ``f`` refers to receive first derivatives
    by ``backward()``; for second ones and for ``torch.func`` they must be among the inputs.
    :class:`shoal.Equilibrium` makes a layer of it.

    Args:
        f: Function called as ``f(z, *inputs, *parameters)``, which returns a tensor like ``z``.
            Sample $i$ of the result must depend only on sample $i$ of ``z``.
        z0: Initial state of shape (samples, ...). It receives no gradient.
        inputs: Tensors with one entry per sample.
        parameters: Tensors that all samples share.
        separable: Whether samples are independent of one another; each is then scaled on its own in
            the backward pass.
        solver: Solver; ``Picard()`` by default.
        gradient: Gradient method; ``Implicit()`` by default, which is exact.
        on_failure: Response to a failed forward or backward pass: ``"raise"`` a
            ``ConvergenceError``, ``"warn"`` with a ``ConvergenceWarning``, or only return it in the
            ``"status"``. The option ``failed`` of ``gradient`` sets the gradient of failed samples.

    Returns:
        The fixed points, a tensor like ``z0``. With ``on_failure="status"``, a ``Solution`` as of
        :func:`shoal.equilibrium.solve`: ``value`` holds the fixed points, and ``adjoint`` the
        status of the last backward pass.

    Raises:
        ConvergenceError: If a sample does not converge and ``on_failure`` is ``"raise"``.
        TypeError: If an argument has the wrong type.
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
    start = problem.layout.rows(z0).detach().clone()
    solution = options.gradient.solve(problem, start, options)
    value: Tensor = problem.layout.state(solution.value)
    if options.on_failure != "status":
        return value
    return solution.with_value(value, options.log)


def solve(
    f: Callable[..., Tensor],
    z0: Tensor,
    *,
    inputs: Sequence[Tensor] = (),
    parameters: Sequence[Tensor] = (),
    separable: bool = False,
    solver: Solver | None = None,
    on_failure: str = "warn",
) -> Solution:
    r"""Find a fixed point $z = f(z)$ for each sample, without a gradient.

    Under autocast it runs in the dtype of ``z0``.

    Args:
        f: Function called as ``f(z, *inputs, *parameters)``, which returns a tensor like ``z``.
            Sample $i$ of the result must depend only on sample $i$ of ``z``.
        z0: Where to start, of shape (samples, ...).
        inputs: Tensors with one entry per sample.
        parameters: Tensors that all samples share.
        separable: Whether samples are independent of one another; each is then scaled on its own in
            the backward pass.
        solver: Solver; ``Picard()`` by default.
        on_failure: ``"raise"`` a ``ConvergenceError``, ``"warn"`` with a ``ConvergenceWarning``,
            or only say it in the ``"status"``.

    Returns:
        The fixed points, with a status, a residual and a number of steps for each.

    Raises:
        ConvergenceError: If a sample does not converge and ``on_failure`` is ``"raise"``.
        TypeError: If an argument has the wrong type.
        ValueError: If a shape does not fit or an option is unknown.

    Example:
        >>> import torch
        >>> from shoal.equilibrium import solve
        >>> u = torch.tensor([[0.5], [1.0]], dtype=torch.float64)
        >>> solve(lambda z, u: torch.tanh(z / 2) + u, u, inputs=(u,), separable=True)
        Solution(2 of 2 samples converged, at most 30 steps, largest residual 4.9e-13)
    """
    solver, on_failure = check_solver("solver", solver), check_on_failure(on_failure)
    problem = function_problem(f, z0, inputs, parameters, separable=separable)
    start = problem.layout.rows(z0).detach().clone()
    solution = drive(problem, solver, start).solution
    solution = solution.with_value(problem.layout.state(solution.value))
    tried = [type(solver).__name__]
    handle_failure(solution, on_failure, "The fixed-point solve", tried=tried)
    return solution


def function_problem(
    f: Callable[..., Tensor],
    z0: Tensor,
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    *,
    separable: bool,
) -> FunctionProblem:
    """Check the arguments of a solve and make its problem of them."""
    if not callable(f):
        raise TypeError(f"f must be callable, got {f!r}")
    if not isinstance(separable, bool):
        raise TypeError(f"separable must be True or False, got {separable!r}")
    layout = StateLayout.from_state(known_tensor("z0", z0))
    _check_tensors("parameters", parameters)
    for tensor in _check_tensors("inputs", inputs):
        if tensor.dim() == 0 or len(tensor) != len(z0):
            raise ValueError(
                f"inputs must have one entry per sample of z0, {len(z0)}, "
                f"got shape {tuple(tensor.shape)}"
            )
    return FunctionProblem(f, layout, (*inputs, *parameters), separable=separable)


def _check_tensors(name: str, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return tensors that a function can compute with, or say why they are none.

    Their values and layouts are not checked; sparse matrices are allowed.
    """
    if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence):
        raise TypeError(f"{name} must be a sequence of tensors, got {type(tensors).__name__}")
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be tensors, got {type(tensor).__name__}")
        kinds = {"meta": tensor.is_meta, "nested": tensor.is_nested, "MKL-DNN": tensor.is_mkldnn}
        for kind, is_it in kinds.items():
            if is_it:
                raise TypeError(f"{name} must be ordinary tensors, got a {kind} tensor")
    return tensors
