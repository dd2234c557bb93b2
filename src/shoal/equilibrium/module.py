"""Any module, or any function, as a layer that returns its equilibrium."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shoal.core.checks import flag, seeded
from shoal.core.torch_compat import full_precision, is_transformed, pytree, uncompiled
from shoal.equilibrium.call_scope import CallScope
from shoal.equilibrium.cuda_graphs.recurring_cells import CellProblem
from shoal.equilibrium.implicit import equilibrium_of
from shoal.equilibrium.maps import OfFunction
from shoal.equilibrium.methods import Gradient, Unrolled, check_gradient, exact_gradient
from shoal.equilibrium.prepared_cell import PreparedCell, prepared_inputs
from shoal.equilibrium.solve_options import SolveOptions
from shoal.equilibrium.solvers.anderson import Anderson
from shoal.equilibrium.solvers.base import Solver
from shoal.equilibrium.solvers.broyden import Broyden
from shoal.equilibrium.solvers.picard import Picard
from shoal.equilibrium.solvers.problem import FunctionProblem, Problem
from shoal.equilibrium.solvers.solution import Solution, SolveLog, check_on_failure
from shoal.equilibrium.solvers.solve import check_solver
from shoal.equilibrium.solvers.state import State, StateLayout
from shoal.equilibrium.solvers.warm import Series

SOLVERS = (Picard(max_steps=100), Anderson(history=10, max_steps=200), Broyden())
_AUTOCAST_RTOL = {torch.bfloat16: 1e-2, torch.float16: 2e-3}  # what such products resolve


class GradientError(NamedTuple):
    """How far a gradient is from the exact one.

    Attributes:
        relative: The norm of the difference over the norm of the exact gradient.
        cosine: The cosine of the angle between the two; below zero, it is no descent direction.
    """

    relative: float
    cosine: float


class Equilibrium(nn.Module):
    r"""The equilibrium $z = f(z, x)$ of any module or function, as a layer.

    Parameters of the cell, its inputs, and tensors that it uses without being given them are
    differentiated by: exactly, by the implicit function theorem, in reverse and in forward mode,
    to any order, in memory that does not grow with the number of steps.

    Samples that do not converge do not stop a training run: they get the iterate of least residual
    and a bounded gradient, a warning tells of each kind of failure once, ``solution`` has the
    status of every sample in both passes, and ``log`` counts them all.

    Random numbers that the cell draws, as for dropout, are the same in every step of a solve and
    of its gradient. Under autocast the cell runs as it would, and its results are kept in the dtype
    of ``z0``; the tolerance is then that of autocast's dtype.

    Args:
        cell: Called as ``cell(z, *inputs, **named)``; returns a state like ``z``, a tensor or a
            tree of tensors. It must be the same function every time it is called. What does not
            depend on the state is computed once per solve by a :class:`PreparedCell`.
        solver: The method, or several: each goes on where those before it failed. By default
            ``Picard(max_steps=100)``, then ``Anderson(history=10)``, then ``Broyden()``.
        gradient: How to differentiate; exactly by default, :class:`Implicit`.
        on_failure: What to do about samples that do not converge: ``"warn"`` once for each kind of
            failure, ``"raise"`` a ``ConvergenceError``, or leave it to the ``"status"``.
        batched: Whether the first dimension of the state counts samples, each of which depends on
            itself alone. If not, as for the nodes of a graph, all of it is one sample.
        separable: Whether the cell may be called for some samples alone, with their rows of the
            state and of all input tensors. Then samples that have converged stop costing work.
        warm_start: Whether solves on the same inputs as before begin where those ended, forward
            and backward, while the module is in training mode; for training on all data at once.
        graphs: Whether solves of ``Picard`` that recur on a GPU may be made as one CUDA graph each.
            The cell must be a module that does the same operations on the device every time, with
            nothing but the state, its inputs, its parameters and buffers, and changes none of them.

    Attributes:
        solution: How the last call went: a :class:`Solution` whose ``value`` is the state.
        log: The number of solves, samples and failures in both passes since the module was made.

    Example:
        >>> import torch, shoal
        >>> class Cell(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.recurrent = torch.nn.Linear(8, 8)
        ...         self.norm = torch.nn.LayerNorm(8)
        ...
        ...     def forward(self, z, x):
        ...         return self.norm(torch.tanh(self.recurrent(z) / 4 + x))
        >>> layer = shoal.Equilibrium(Cell())
        >>> x = torch.randn(5, 8)
        >>> z = layer(torch.zeros(5, 8), x)
        >>> layer.solution.converged
        tensor([True, True, True, True, True])
        >>> z.sum().backward()
        >>> layer.cell.recurrent.weight.grad.shape
        torch.Size([8, 8])
    """

    def __init__(
        self,
        cell: Callable[..., State],
        *,
        solver: Solver | Sequence[Solver] | None = None,
        gradient: Gradient | None = None,
        on_failure: str = "warn",
        batched: bool = True,
        separable: bool = False,
        warm_start: bool = False,
        graphs: bool = False,
    ) -> None:
        super().__init__()
        if not callable(cell):
            raise TypeError(f"cell must be a module or a function, got {type(cell).__name__}")
        self.cell = cell
        first, *others = _solvers(solver)
        gradient = check_gradient(gradient)
        if isinstance(gradient, Unrolled):
            others = []  # all of whose steps are made again
        self.options = SolveOptions(
            first,
            gradient,
            check_on_failure(on_failure),
            fallbacks=tuple(others),
            log=SolveLog(once=True),
        )
        self.batched, self.separable = flag("batched", batched), flag("separable", separable)
        self.warm_start = flag("warm_start", warm_start)
        if flag("graphs", graphs) and not isinstance(cell, nn.Module):
            raise TypeError(f"cell must be a module if graphs is True, got {type(cell).__name__}")
        self.graphs = graphs
        if self.separable and not self.batched:
            raise ValueError("separable must be False for a state that is one sample, got True")
        if self.separable and isinstance(cell, PreparedCell):
            raise ValueError(
                "separable must be False for a PreparedCell, which may prepare tensors that all "
                "samples share, got True"
            )
        self.solution: Solution | None = None
        self._series = Series()
        self._orders: tuple[tuple[int, ...], ...] | None = None
        self._scope: CallScope | None = None  # of the last solve

    @property
    def log(self) -> SolveLog:
        """What the solves of this module came to."""
        return self.options.log

    def forget(self) -> None:
        """Let the next solves start cold, whatever came before; frees the memory of graphs."""
        self._series.clear()
        self.options.known.clear()

    def extra_repr(self) -> str:
        """The methods."""
        solvers = ", ".join(map(repr, (self.options.solver, *self.options.fallbacks)))
        return f"solver={solvers}, gradient={self.options.gradient!r}"

    def forward(self, z0: State, *inputs: Any, **named: Any) -> State:
        """The equilibrium.

        Args:
            z0: Where to start: a tensor of shape (samples, ...), or a tree of such tensors. No
                gradient flows to it.
            inputs: What the cell is called with besides the state.
            named: The same by name.

        Returns:
            The equilibrium, a state like ``z0``.
        """
        return self._solve(self.options, z0, inputs, named)

    @uncompiled
    def _solve(
        self,
        options: SolveOptions,
        z0: State,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
    ) -> State:
        problem, start = self.problem(z0, *inputs, **named)
        assert isinstance(problem.scope, CallScope)
        self._scope = problem.scope
        options = _for_autocast(options, start)
        if self._orders not in (None, problem.layout.orders):
            self._series.clear()  # the last solutions lie otherwise in memory
        self._orders = problem.layout.orders
        options = options.with_recall(self._warm(start, inputs, named))
        with full_precision(start):
            found = equilibrium_of(*OfFunction.now(problem).with_tensors(start), start, options)
        state = problem.layout.state(found.value)
        known = options.log.forward
        assert known is not None
        held = pytree.tree_map(Tensor.detach, state)
        self.solution = replace(
            found, value=held, evaluations=known.evaluations, note=known.note, log=options.log
        )
        return state

    def problem(self, z0: State, *inputs: Any, **named: Any) -> tuple[FunctionProblem, Tensor]:
        """The equation of a state and inputs, as solvers see it, and where to start."""
        layout = StateLayout.of(z0, batched=self.batched)
        start = layout.rows(z0).detach().clone()
        if self.separable:
            _check_rows((inputs, named), len(start))
        cell = self.cell
        function, scope = cell, CallScope(start)
        if isinstance(cell, PreparedCell):
            inputs, function = prepared_inputs(cell, inputs, named), cell.step
            scope.begin()
        elif named:
            inputs, function = (*inputs, named), _by_name(cell)
        if self.graphs and not scope.autocast:
            assert isinstance(cell, nn.Module)
            return CellProblem(
                cell, function, layout, inputs, separable=self.separable, scope=scope
            ), start
        problem = FunctionProblem(
            function, layout, inputs, separable=self.separable, scope=scope, cast=scope.autocast
        )
        return problem, start

    def problem_at(self, z: State, *inputs: Any, **named: Any) -> tuple[Problem, Tensor]:
        """The equation near an equilibrium, and that as rows, with its gradient.

        Random numbers are those of the last solve: of the map whose equilibrium it is.
        """
        last = self._scope
        with nullcontext() if last is None else last.prepared_again():
            problem, _ = self.problem(z, *inputs, **named)
        if last is not None:
            assert isinstance(problem.scope, CallScope)
            problem.scope.repeat(last)
        return problem, problem.layout.rows(z)

    def gradient_error(
        self, z0: State, *inputs: Any, cotangent: State | None = None, seed: int = 0, **named: Any
    ) -> GradientError:
        """Measure how far the gradient that this layer trains with is from the exact one.

        That is for the gradients of all parameters, and of inputs that require one.

        Args:
            z0: Where to start.
            inputs: What the cell is called with besides the state.
            cotangent: The derivative of a loss by the state; random by default.
            seed: Of the random one.
            named: Inputs by name.

        Example:
            >>> import torch, shoal
            >>> x = torch.ones(3, 1, dtype=torch.float64, requires_grad=True)
            >>> layer = shoal.Equilibrium(lambda z, x: z / 2 + x, gradient=shoal.Neumann(3))
            >>> round(layer.gradient_error(torch.zeros(3, 1, dtype=torch.float64), x).relative, 9)
            0.0625
        """
        if cotangent is None:
            generator = seeded("seed", seed)
            cotangent = pytree.tree_map_only(
                Tensor,
                lambda t: torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device),
                z0,
            )
        leaves = pytree.tree_leaves((inputs, named))
        tensors = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
        tensors += [p for p in self.parameters() if p.requires_grad]
        if not tensors:
            raise ValueError(
                "gradient_error needs parameters or inputs that require a gradient, got none"
            )
        options = replace(self.options, log=SolveLog(), on_failure="raise")
        exact = replace(options, gradient=exact_gradient(options.gradient))
        found, truth = (
            self._gradient(o, z0, inputs, named, cotangent, tensors) for o in (options, exact)
        )
        size = truth.norm()
        cosine = torch.dot(found, truth) / (found.norm() * size)
        return GradientError(float((found - truth).norm() / size), float(cosine))

    def _gradient(
        self,
        options: SolveOptions,
        z0: State,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
        cotangent: State,
        tensors: list[Tensor],
    ) -> Tensor:
        """The gradient by some tensors, as one long vector."""
        before = self.solution
        with torch.enable_grad():
            state = self._solve(options, z0, inputs, named)
        self.solution = before
        pairs = zip(pytree.tree_leaves(state), pytree.tree_leaves(cotangent), strict=True)
        total = torch.stack([(leaf * weight).sum() for leaf, weight in pairs]).sum()
        found = torch.autograd.grad(total, tensors, allow_unused=True, materialize_grads=True)
        return torch.cat([gradient.double().flatten() for gradient in found])

    def _warm(self, start: Tensor, inputs: Any, named: Any) -> Any:
        if not (self.warm_start and self.training and torch.is_grad_enabled()):
            return None
        if is_transformed(start):
            return None
        leaves = pytree.tree_leaves((inputs, named))
        return self._series.start(*(leaf for leaf in leaves if isinstance(leaf, Tensor)))

    def __getstate__(self) -> dict[str, Any]:
        """Without what happened so far: copies start afresh."""
        return {
            **super().__getstate__(),  # type: ignore[no-untyped-call]
            "solution": None,
            "_series": Series(),
            "_scope": None,
            "options": replace(self.options, log=SolveLog(once=True), warm=None),
        }


def _solvers(solver: Solver | Sequence[Solver] | None) -> tuple[Solver, ...]:
    """The methods, or say why they are none."""
    if solver is None:
        return SOLVERS
    several = (solver,) if isinstance(solver, Solver) else solver
    if not isinstance(several, Sequence) or isinstance(several, str) or not several:
        raise TypeError(f"solver must be a Solver or several, such as Picard(), got {solver!r}")
    return tuple(check_solver("solver", one) for one in several)


def _for_autocast(options: SolveOptions, start: Tensor) -> SolveOptions:
    """Tolerances that products in autocast's dtype can meet, where none were given."""
    kind = start.device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return options
    rtol = max(
        _AUTOCAST_RTOL.get(torch.get_autocast_dtype(kind), 0.0),
        options.solver.tolerances(start.dtype)[0] if options.solver.rtol is None else 0.0,
    )

    def coarser(solver: Solver) -> Solver:
        return solver if solver.rtol is not None else solver.with_tolerances(rtol, solver.atol)

    fallbacks = tuple(map(coarser, options.fallbacks))
    return replace(options, solver=coarser(options.solver), fallbacks=fallbacks)


def _by_name(cell: Callable[..., State]) -> Callable[..., State]:
    """A cell that takes the inputs that have names as its last one, a dictionary."""

    def call(z: State, *inputs: Any) -> State:
        *others, named = inputs
        return cell(z, *others, **named)

    return call


def _check_rows(inputs: tuple[Any, ...], samples: int) -> None:
    """See that input tensors have a row for each sample."""
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, Tensor) and (leaf.dim() == 0 or len(leaf) != samples):
            raise ValueError(
                f"inputs must have one entry per sample of z0, {samples}, where separable is True, "
                f"got shape {tuple(leaf.shape)}"
            )
