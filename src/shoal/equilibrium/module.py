"""Any module, or any function, as a layer that returns its equilibrium."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shoal.core.checks import flag, seeded
from shoal.core.torch_compat import full_precision, is_mapped, pytree, uncompiled
from shoal.equilibrium.anderson import Anderson
from shoal.equilibrium.broyden import Broyden
from shoal.equilibrium.gradients import Gradient, SolveOptions, check_gradient
from shoal.equilibrium.prepared_cell import PreparedCell, prepared_inputs
from shoal.equilibrium.problem import CallScope, FunctionProblem
from shoal.equilibrium.recording import Recorder
from shoal.equilibrium.solution import LastSolution, Solution, SolveLog, check_on_failure
from shoal.equilibrium.solver import Picard, Solver, check_solver
from shoal.equilibrium.state import State, StateLayout

_NOT_TRACED = (
    "torch.export, torch.jit.trace and ONNX support only explicit networks, got one whose number "
    "of solver steps depends on the inputs; shoal.design and shoal.distill return explicit networks"
)
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

    Parameters of the cell and its inputs receive gradients: exactly, by the implicit function
    theorem, in reverse and in forward mode, to any order, in memory independent of the number of
    steps. Other tensors that the cell refers to receive first derivatives by ``backward()``; for
    other derivatives, pass them as inputs or make them parameters of the cell.

    A training run continues if some samples do not converge. They get the iterate of smallest
    residual and a bounded gradient, with one warning per kind of failure. ``solution`` has the
    status of every sample in both passes, and ``log`` counts all failures.

    Random numbers that the cell draws, as for dropout, are the same in every step of a solve and of
    its gradient. Autocast applies to the cell as usual. Its results are cast to the dtype of
    ``z0``, and the tolerance is then that of autocast's dtype.

    Args:
        cell: Called as ``cell(z, *inputs, **named)``; returns a state like ``z``, a tensor or a
            tree of tensors. It must be the same function at every call. A :class:`PreparedCell`
            computes terms independent of the state once per solve.
        solver: The solver, or several: each continues where the previous one failed. By default
            ``Picard(max_steps=100)``, then ``Anderson(history=10)``, then ``Broyden()``.
        gradient: Gradient method; by default :class:`Implicit`, which is exact.
        on_failure: Response to samples that do not converge: ``"warn"`` once for each kind of
            failure, ``"raise"`` a ``ConvergenceError``, or only report it as ``"status"``.
        batched: Whether the first dimension of the state counts independent samples. If not, as for
            the nodes of a graph, the whole state is one sample.
        separable: Whether samples are independent of one another; each is then scaled on its own in
            the backward pass.
        warm_start: Whether solves in training begin where the last one ended, if the state had the
            same shape. It is meant for full-batch training.
        graphs: Whether Picard iterations on a GPU are recorded as CUDA graphs from the second solve
            of a shape on. One ordinary evaluation confirms each result. A cell that cannot be
            recorded, such as one with random numbers, is evaluated step by step.

    Attributes:
        solution: Result of the last call, a :class:`Solution` whose ``value`` is the state.
        log: Numbers of solves, samples and failures in both passes since construction.

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
        if not callable(cell) or isinstance(cell, type):
            kind = cell.__name__ + ", a class" if isinstance(cell, type) else type(cell).__name__
            raise TypeError(f"cell must be a module or a function, got {kind}")
        self.cell = cell
        first, *fallbacks = _solvers(solver)
        gradient = check_gradient(gradient)
        if Solver not in gradient.solvers:
            fallbacks = []
        self.options = SolveOptions(
            first,
            gradient,
            check_on_failure(on_failure),
            fallbacks=tuple(fallbacks),
            log=SolveLog(once=True),
        )
        self.batched, self.separable = flag("batched", batched), flag("separable", separable)
        self.warm_start = flag("warm_start", warm_start)
        self.recorder = Recorder() if flag("graphs", graphs) else None
        if self.separable and not self.batched:
            raise ValueError("separable must be False for a state that is one sample, got True")
        self.solution: Solution | None = None
        self._last = LastSolution()

    @property
    def log(self) -> SolveLog:
        """The outcomes of this module's solves."""
        return self.options.log

    def forget(self) -> None:
        """Let the next solve start cold."""
        self._last.value = None

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
        if torch.jit.is_tracing() or torch.compiler.is_exporting():  # type: ignore[attr-defined, no-untyped-call]
            raise TypeError(_NOT_TRACED)
        problem, start = self.problem(z0, *inputs, **named)
        self._last.scope = scope = problem.scope
        if scope is not None and scope.autocast:
            options = _for_autocast(options, start.dtype, scope.dtype)
        warm = self.warm_start and self.training and torch.is_grad_enabled()
        warm = warm and options.gradient.starts_anywhere
        if warm:
            start = self._last.choose_start(start)
        with full_precision(start):
            solution = options.gradient.solve(problem, start, options)
        if warm:
            self._last.keep(solution)
        state = problem.layout.state(solution.value)
        detached = solution.with_value(solution.value.detach()).on_host()
        value = detached.value
        if not is_mapped(solution.value):
            value = problem.layout.state(value)
        self.solution = detached.with_value(value, options.log)
        return state

    def problem(self, z0: State, *inputs: Any, **named: Any) -> tuple[FunctionProblem, Tensor]:
        """The equation of a state and inputs, and the start as rows."""
        layout = StateLayout.from_state(z0, batched=self.batched)
        start = layout.rows(z0).detach().clone()
        if self.separable:
            _check_rows((inputs, named), len(start))
        function, scope = self.cell, CallScope(start)
        if isinstance(function, PreparedCell):
            inputs, named, function = prepared_inputs(function, inputs, named), {}, function.step
            scope.begin()
        problem = FunctionProblem(
            function, layout, inputs, named, separable=self.separable, scope=scope
        )
        problem.recorder = self.recorder
        return problem, start

    def problem_at(self, z: State, *inputs: Any, **named: Any) -> tuple[FunctionProblem, Tensor]:
        """The equation near an equilibrium, and the equilibrium as rows, with its gradient.

        Random numbers are the same as in the last solve.
        """
        last = self._last.scope
        with nullcontext() if last is None else last.prepared_again():
            problem, _ = self.problem(z, *inputs, **named)
        if last is not None:
            assert problem.scope is not None
            problem.scope.repeat(last)
        return problem, problem.layout.rows(z)

    def gradient_error(
        self, z0: State, *inputs: Any, cotangent: State | None = None, seed: int = 0, **named: Any
    ) -> GradientError:
        """Measure how far the gradient that this layer trains with is from the exact one.

        It compares the gradients of all parameters, and of inputs that require one.

        Args:
            z0: Where to start.
            inputs: What the cell is called with besides the state.
            cotangent: The derivative of a loss by the state; random by default.
            seed: Seed of the random cotangent.
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
        exact = replace(options, gradient=options.gradient.exact())
        gradient, truth = (
            self._gradient(o, z0, inputs, named, cotangent, tensors) for o in (options, exact)
        )
        size = truth.norm()
        cosine = torch.dot(gradient, truth) / (gradient.norm() * size)
        return GradientError(float((gradient - truth).norm() / size), float(cosine))

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
        gradient = torch.autograd.grad(total, tensors, allow_unused=True, materialize_grads=True)
        return torch.cat([gradient.double().flatten() for gradient in gradient])

    def __getstate__(self) -> dict[str, Any]:
        """Without what happened so far: copies start afresh."""
        return {
            **super().__getstate__(),  # type: ignore[no-untyped-call]
            "solution": None,
            "_last": LastSolution(),
            "options": replace(self.options, log=SolveLog(once=True)),
        }


def _solvers(solver: Solver | Sequence[Solver] | None) -> tuple[Solver, ...]:
    """Return the solvers given as an argument; raise an error for anything else."""
    if solver is None:
        return SOLVERS
    solvers = (solver,) if isinstance(solver, Solver) else solver
    if not isinstance(solvers, Sequence) or isinstance(solvers, str) or not solvers:
        raise TypeError(f"solver must be a Solver or several, such as Picard(), got {solver!r}")
    return tuple(check_solver("solver", one) for one in solvers)


def _for_autocast(
    options: SolveOptions, dtype: torch.dtype, products: torch.dtype | None
) -> SolveOptions:
    """Tolerances that products in autocast's dtype can meet, where none were given."""
    rtol = 0.0 if products is None else _AUTOCAST_RTOL.get(products, 0.0)

    def coarser(solver: Solver) -> Solver:
        if solver.rtol is not None:
            return solver
        return solver.with_tolerances(max(rtol, solver.tolerances(dtype)[0]), solver.atol)

    fallbacks = tuple(map(coarser, options.fallbacks))
    return replace(options, solver=coarser(options.solver), fallbacks=fallbacks)


def _check_rows(inputs: tuple[Any, ...], samples: int) -> None:
    """See that input tensors have a row for each sample."""
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, Tensor) and (leaf.dim() == 0 or len(leaf) != samples):
            raise ValueError(
                f"inputs must have one entry per sample of z0, {samples}, where separable is True, "
                f"got shape {tuple(leaf.shape)}"
            )
