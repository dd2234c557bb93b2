"""Differentiable fixed points of a function."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypedDict, Unpack, overload

from torch import Tensor

from shoal.core.torch_compat import in_full_precision, uncompiled
from shoal.equilibrium.implicit import equilibrium_of
from shoal.equilibrium.maps import OfFunction
from shoal.equilibrium.methods import Gradient, check_gradient
from shoal.equilibrium.solve_options import SolveOptions
from shoal.equilibrium.solvers.base import Solver
from shoal.equilibrium.solvers.solution import Solution, check_on_failure
from shoal.equilibrium.solvers.solve import check_solver, function_problem


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

    Under autocast it runs in the dtype of ``z0``, forward and backward. Tensors that ``f`` uses
    without being given them, such as the parameters of a module, are differentiated by too, in
    reverse and in forward mode, to any order. :class:`shoal.Equilibrium` makes a layer of it.

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
        :func:`shoal.equilibrium.solve`, whose ``value`` they are, and whose ``adjoint``
        says how the last backward pass ended.

    Raises:
        ConvergenceError: If a sample does not converge and ``on_failure`` is ``"raise"``.
        TypeError: If an argument is not of its kind.
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
    found = equilibrium_of(*OfFunction.now(problem).with_tensors(start), start, options)
    value: Tensor = problem.layout.state(found.value)
    if options.on_failure != "status":
        return value
    known = options.log.forward
    assert known is not None
    evaluations, note = known.evaluations, known.note
    return replace(found, value=value, evaluations=evaluations, note=note, log=options.log)
