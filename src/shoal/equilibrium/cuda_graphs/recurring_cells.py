r"""The equilibria of a user's module that may be recorded: on a GPU, one CUDA graph per solve.

A backward solve evaluates the module once more inside of its graph, at the solution, and takes
products with the transposed Jacobian there.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.torch_compat import has_loose_tensors, lent_tensors, named_tensors, pytree
from shoal.equilibrium.cuda_graphs.recurring import Recurrences, Recurring, attempt, recurring
from shoal.equilibrium.solvers.base import Solver
from shoal.equilibrium.solvers.limits import Limits
from shoal.equilibrium.solvers.problem import (
    Evaluation,
    FunctionLinearization,
    FunctionProblem,
    Linearization,
    LinearProblem,
    is_wide,
    row_sizes,
)
from shoal.equilibrium.solvers.records import Outcome
from shoal.equilibrium.solvers.solution import Solution
from shoal.equilibrium.solvers.state import State, StateLayout

_KNOWN_BY_VALUE = (Tensor, type(None), bool, int, float, str)


@dataclass(frozen=True)
class _Cell:
    """A module with what is not a tensor of its inputs, as a map of rows.

    Known by all that may differ between its solves, of which there is one registry per module.
    """

    module: nn.Module = field(compare=False)
    function: Callable[..., State] = field(compare=False)
    layout: StateLayout = field(compare=False)
    shapes: tuple[torch.Size, ...]
    orders: tuple[tuple[int, ...], ...]
    leaves: tuple[tuple[type, Any], ...]  # of the inputs; without those that are tensors
    tree: str
    modes: tuple[bool, ...]
    unflatten: Callable[[list[Any]], Any] = field(compare=False)

    def evaluation(self, tensors: Sequence[Tensor]) -> Callable[[Tensor], Evaluation]:
        """The map for input tensors; autograd follows the state alone."""
        given = iter(tensors)
        leaves = [next(given) if kind is Tensor else leaf for kind, leaf in self.leaves]
        inputs = self.unflatten(leaves)
        weights = {name: t.detach() for name, t in named_tensors(self.module).items()}

        def evaluate(z: Tensor) -> Evaluation:
            with lent_tensors(self.module, weights):
                value = self.function(self.layout.state(z), *inputs)
            return Evaluation(self.layout.returned(value, z))

        return evaluate


@dataclass(frozen=True)
class _AtOnce:
    """The equilibrium after some steps."""

    cell: _Cell
    count: int  # of input tensors

    def __call__(self, steps: int, limits: Limits, start: Tensor, *tensors: Tensor) -> Any:
        evaluate = self.cell.evaluation(tensors[: self.count])
        z, _, residual, seen = attempt(evaluate, start, steps, limits)
        return (z, residual), seen


@dataclass(frozen=True)
class _AdjointAtOnce:
    """The solution of the adjoint equation after some steps, solved for at size one."""

    cell: _Cell
    count: int
    mixes: bool  # whether samples may see each other, and are measured in one unit
    warm: bool

    def __call__(
        self, steps: int, limits: Limits, right: Tensor, z: Tensor, *others: Tensor
    ) -> Any:
        tensors, guess = others[: self.count], others[self.count]
        size, finite = row_sizes(right)
        wide = is_wide(size, finite) if self.mixes else None
        if self.mixes:
            size = size.masked_fill(~finite, 0.0).amax().expand_as(size)
        unit = (right / size).masked_fill(~finite, 0.0)
        with torch.enable_grad():
            point = z.detach().requires_grad_()
            value = self.cell.evaluation(tensors)(point).value

        def evaluate(g: Tensor) -> Evaluation:
            (pulled,) = torch.autograd.grad(
                value, point, g, retain_graph=True, materialize_grads=True
            )
            return Evaluation(unit + pulled)

        g, _, residual, seen = attempt(evaluate, guess if self.warm else unit, steps, limits)
        if wide is not None:
            seen = seen.masked_fill(wide, torch.inf)
        residual = (residual * size[:, 0]).masked_fill(~finite[:, 0], 0.0)
        return (torch.where(finite, g * size, right), residual), seen


class CellProblem(FunctionProblem):
    """The problem of a module that may be recorded.

    Args:
        module: Has all the tensors that the function is not given.
        function: The module, or a method of it: takes the state and the inputs; does the same
            operations every time.
        layout: How states lie in rows.
        inputs: Trees of tensors, and whatever else the module takes.
        separable: Whether it may be called for some of the samples alone.
        scope: Makes the context in which it is called.
    """

    def __init__(
        self,
        module: nn.Module,
        function: Callable[..., State],
        layout: StateLayout,
        inputs: Sequence[Any],
        *,
        separable: bool,
        scope: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        super().__init__(function, layout, inputs, separable=separable, scope=scope)
        self.module = module
        leaves, tree = pytree.tree_flatten(self.inputs)
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        kinds = (
            (Tensor, None) if isinstance(leaf, Tensor) else (type(leaf), leaf) for leaf in leaves
        )
        modes = tuple(one.training for one in module.modules())
        unflatten = partial(pytree.tree_unflatten, treespec=tree)
        places = layout.shapes, layout.orders
        self.cell = _Cell(
            module, function, layout, *places, tuple(kinds), str(tree), modes, unflatten
        )

    def may_recur(self, solver: Solver) -> bool:
        """Whether the solver's steps are to the map's value, and nothing is known against it."""
        known = all(kind in _KNOWN_BY_VALUE for kind, _ in self.cell.leaves)
        random = getattr(self.scope, "random", None)  # of which no graph converges
        return known and not random and bool(solver.follows_map(self))

    def at_once(
        self, form: Any, solver: Solver, changing: Sequence[Tensor], known: Recurrences
    ) -> Recurring | None:
        """A solve as one of its kind."""

        def outcome(found: list[Tensor], steps: int) -> Outcome:
            value, residual = found
            return Outcome(Solution.of_steps(value, residual, steps), None, converged=True)

        weights = list(named_tensors(self.module).values())
        found = recurring(form, solver, changing, weights, outcome, known)
        if found is not None and found.recurrence.refused is None:  # not all weights are known
            found.recurrence.refused = any(map(has_loose_tensors, self.module.modules()))
        return None if found is None or found.recurrence.refused else found

    def recurring(
        self, solver: Solver, start: Tensor | None, known: Recurrences
    ) -> Recurring | None:
        """The solve as one of its kind, for a graph."""
        if start is None or not self.may_recur(solver):
            return None
        form = _AtOnce(self.cell, len(self.tensors))
        return self.at_once(form, solver, (start, *self.tensors), known)

    def linearize(self, z: Tensor, kept: Tensor | None = None) -> Linearization:  # noqa: ARG002
        """One evaluation, whose graph is kept; equations near it may be recorded too."""
        return _CellLinearization(self, z)


class _CellLinearization(FunctionLinearization):
    problem: CellProblem

    def adjoint(self, right: Tensor) -> LinearProblem:
        return _CellAdjoint(self, right, adjoint=True)


class _CellAdjoint(LinearProblem):
    near: _CellLinearization

    def recurring(
        self, solver: Solver, start: Tensor | None, known: Recurrences
    ) -> Recurring | None:
        """The adjoint solve as one of its kind, for a graph."""
        near, problem = self.near, self.near.problem
        if (self.may_mix and solver.atol) or not problem.may_recur(solver):
            return None
        guess = self.right if start is None else start
        form = _AdjointAtOnce(problem.cell, len(problem.tensors), self.may_mix, start is not None)
        changing = (self.right, near.z.detach(), *problem.tensors, guess)
        return problem.at_once(form, solver, changing, known)
