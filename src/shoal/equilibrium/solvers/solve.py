"""Solve for the fixed points of a function."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from shoal.core.checks import float_tensor
from shoal.equilibrium.solvers.base import Solver
from shoal.equilibrium.solvers.driver import drive
from shoal.equilibrium.solvers.picard import Picard
from shoal.equilibrium.solvers.problem import FunctionProblem
from shoal.equilibrium.solvers.solution import Solution, check_on_failure, handle_failure
from shoal.equilibrium.solvers.state import StateLayout


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
        f: Called as ``f(z, *inputs, *parameters)``; returns a tensor like ``z``. Sample $i$ of the
            result must depend on sample $i$ of ``z`` only.
        z0: Where to start, of shape (samples, ...).
        inputs: Tensors with one entry per sample.
        parameters: Tensors that all samples share.
        separable: Whether ``f`` may be called for some of the samples alone, with the rows of
            ``z`` and ``inputs`` that belong to them. Then converged samples stop costing work.
        solver: The method; ``Picard()`` by default.
        on_failure: ``"raise"`` a ``ConvergenceError``, ``"warn"`` with a ``ConvergenceWarning``,
            or only say it in the ``"status"``.

    Returns:
        The fixed points, with a status, a residual and a number of steps for each.

    Raises:
        ConvergenceError: If a sample does not converge and ``on_failure`` is ``"raise"``.
        TypeError: If an argument is not of its kind.
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
    solution = replace(solution, value=problem.layout.state(solution.value))
    tried = [type(solver).__name__]
    handle_failure(solution, on_failure, "The fixed-point solve", tried=tried)
    return solution


def check_solver(name: str, solver: Solver | None) -> Solver:
    """Return the solver, Picard iteration by default, or say that it is none."""
    if solver is None:
        return Picard()
    if not isinstance(solver, Solver):
        raise TypeError(f"{name} must be a Solver, such as Picard(), got {solver!r}")
    return solver


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
    layout = StateLayout.of(float_tensor("z0", z0))
    _check_tensors("parameters", parameters)
    for tensor in _check_tensors("inputs", inputs):
        if tensor.dim() == 0 or len(tensor) != len(z0):
            raise ValueError(
                f"inputs must have one entry per sample of z0, {len(z0)}, "
                f"got shape {tuple(tensor.shape)}"
            )
    return FunctionProblem(f, layout, inputs, parameters, separable=separable)


def _check_tensors(name: str, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return tensors that a function can compute with, or say why they are none.

    What is in them is the function's affair, sparse matrices included.
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
