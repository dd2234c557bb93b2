"""A loop as a function of a model's inputs: its first state, its step, and its output."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.nn import Module

from shoal.core.checks import flag, function, integer
from shoal.core.torch_compat import pytree

State = Any  # a tensor, or a tree of tensors, whose first dimension counts samples
Output = Any  # likewise
Memory = Any  # likewise: what a stop rule keeps of each sample


class StopRule(Protocol):
    """A rule that stops samples one by one; trees of tensors with one entry per sample."""

    def begin(self, output: Output, state: State) -> Memory:
        """Return what the rule remembers of the first iteration."""

    def update(self, memory: Memory, output: Output, state: State, n: int) -> tuple[Memory, Tensor]:
        """Return the memory after iteration ``n`` (2, 3, ...), and which samples stop there."""


class Parts(Protocol):
    """The three functions of a loop, and how samples are taken out of a context."""

    @property
    def modules(self) -> tuple[Module, ...]:
        """The modules whose parameters the loop depends on."""

    def begin(self, *inputs: Any) -> tuple[State, Any]:
        """Return the first state, and all else that iterations and the output depend on."""

    def step(self, state: State, context: Any, n: int) -> State:
        """Return the next state."""

    def head(self, state: State, context: Any) -> Output:
        """Return the model's output for a state."""

    def select(self, context: Any, rows: Tensor) -> Any:
        """Return the context of some samples."""

    def tensors(self, context: Any) -> list[Tensor]:
        """Return the floating-point tensors of a context that a step may depend on."""

    def with_tensors(self, context: Any, tensors: Sequence[Tensor]) -> Any:
        """Return a context with other tensors in place of these."""


class Loop:
    """The iteration of a model, as a function of the model's inputs.

    ``Loop(cell, z0, *inputs)`` describes a loop for one batch; with a function in place of ``z0``,
    it also runs on other inputs. :func:`find_loop` finds the loop inside a model.

    Args:
        cell: A module or function, ``cell(z, *inputs) -> z``.
        z0: The first state, a tensor or a tree of tensors with one entry per sample, or a function
            ``z0(*inputs)`` that returns it.
        inputs: Further arguments of the cell. Tensors with as many entries as the state has
            samples belong to these samples; others are shared.
        head: The model's output as a function of the state; the state itself if ``None``.
        steps: Number of iterations that the model runs.
        uses_step: Whether the cell takes the number of the iteration, from 0, as last argument.
        samples_coupled: Whether samples of a batch depend on one another.

    Attributes:
        steps: Number of iterations that the model runs; ``None`` if unknown.
        max_steps: Number of iterations that step embeddings allow; ``None`` if there is no limit.
        uses_step: Whether a step index or embedding enters the cell.
        dynamic: Whether the loop runs on other batches: new samples, and other batch sizes.
        samples_coupled: Whether samples of a batch depend on one another.
        inputs: Batch for which the loop was constructed or found.
        solves: Whether the model solves for the equilibrium; ``steps`` is then its solver's count.
        note: Limitations, in words; empty if there are none.
    """

    solves = False

    def __init__(
        self,
        cell: Callable[..., State],
        z0: State | Callable[..., State],
        *inputs: Any,
        head: Callable[[State], Output] | None = None,
        steps: int | None = None,
        uses_step: bool = False,
        samples_coupled: bool = False,
    ) -> None:
        function("cell", cell)
        function("head", head)
        self._parts: Parts = _CellParts(cell, z0, head, flag("uses_step", uses_step))
        self.inputs = inputs
        self.steps = None if steps is None else integer("steps", steps, at_least=1)
        self.max_steps: int | None = None
        self.uses_step = uses_step
        self.dynamic = callable(z0)
        self.samples_coupled = flag("samples_coupled", samples_coupled)
        self.note = ""

    @classmethod
    def of(
        cls,
        parts: Parts,
        *inputs: Any,
        steps: int | None = None,
        max_steps: int | None = None,
        uses_step: bool = False,
        dynamic: bool = True,
        samples_coupled: bool = False,
        note: str = "",
    ) -> Self:
        """Return the loop with the given three functions; arguments are named as attributes."""
        loop = cls.__new__(cls)
        loop._parts, loop.inputs, loop.steps, loop.max_steps = parts, inputs, steps, max_steps
        loop.uses_step, loop.dynamic, loop.note = uses_step, dynamic, note
        loop.samples_coupled = samples_coupled
        return loop

    def __repr__(self) -> str:
        steps = "an unknown number of" if self.steps is None else self.steps
        note = f" ({self.note})" if self.note else ""
        return f"<Loop of {steps} steps{note}>"

    @property
    def modules(self) -> tuple[Module, ...]:
        """The modules whose parameters the loop depends on."""
        return self._parts.modules

    def begin(self, *inputs: Any) -> tuple[State, Any]:
        """Return the first state, and the context of all iterations.

        Args:
            inputs: The model's inputs; those of the loop's own batch if there are none.
        """
        if inputs and not self.dynamic and not _same(inputs, self.inputs):
            raise ValueError(
                "inputs must be the batch for which the loop was made"
                + (
                    f": {self.note}"
                    if self.note
                    else "; for other batches, pass z0 as a function of the inputs"
                )
            )
        return self._parts.begin(*(inputs or self.inputs))

    def step(self, state: State, context: Any, n: int) -> State:
        """Return the state after iteration ``n``, which counts from 0."""
        if self.max_steps is not None and n >= self.max_steps:
            raise ValueError(
                f"steps must be at most {self.max_steps}, the number of the model's step "
                f"embeddings, got {n + 1}"
            )
        return self._parts.step(state, context, n)

    def head(self, state: State, context: Any) -> Output:
        """Return the model's output for a state."""
        return self._parts.head(state, context)

    def select(self, state: State, context: Any, rows: Tensor) -> tuple[State, Any]:
        """Return the state and the context of some samples."""
        return _take(state, rows), self._parts.select(context, rows)

    def as_cell(self, context: Any) -> tuple[Callable[..., State], list[Tensor]]:
        """Return a step as a function of the state and tensors, and the tensors of a context."""

        def cell(state: State, *tensors: Tensor) -> State:
            return self._parts.step(state, self._parts.with_tensors(context, tensors), 0)

        return cell, self._parts.tensors(context)

    def states(self, *inputs: Any, steps: int | None = None) -> Iterator[State]:
        """Iterate over the states after 1, 2, ... iterations."""
        return (state for state, _ in self._states(inputs, self._count(steps)))

    def outputs(self, *inputs: Any, steps: int | None = None) -> Iterator[Output]:
        """Iterate over the outputs after 1, 2, ... iterations."""
        several = self._states(inputs, self._count(steps))
        return (self.head(state, context) for state, context in several)

    def _states(self, inputs: tuple[Any, ...], steps: int) -> Iterator[tuple[State, Any]]:
        state, context = self.begin(*inputs)
        for n in range(steps):
            state = self.step(state, context, n)
            yield state, context

    def run(
        self,
        *inputs: Any,
        steps: int | None = None,
        until: StopRule | None = None,
        counts: bool = False,
    ) -> Any:
        """Return the model's output.

        Args:
            inputs: The model's inputs; those of the loop's own batch if there are none.
            steps: Number of iterations; if ``None``, the full count of the rule, or as many as
                the model runs.
            until: A rule that stops samples earlier. Each sample's output is that of its own last
                iteration. Stopped samples are left out of the computation, unless samples are
                coupled.
            counts: Whether to return the output and the iterations of each sample.
        """
        steps = self._count(getattr(until, "steps", None) if steps is None else steps)
        if until is not None:
            output, used = self._run_until(inputs, steps, until)
            return (output, used) if counts else output
        state, context = self.begin(*inputs)
        for n in range(steps):
            state = self.step(state, context, n)
        output = self.head(state, context)
        if not counts:
            return output
        first = pytree.tree_leaves(state)[0]
        return output, torch.full((len(first),), steps, device=first.device)

    def _run_until(
        self, inputs: tuple[Any, ...], steps: int, rule: StopRule
    ) -> tuple[Output, Tensor]:
        """Run with a stop rule, which is asked after each iteration but the last."""
        if not self.dynamic and self.note:
            raise ValueError(f"until needs a loop that runs on other batches: {self.note}")
        state, context = self.begin(*inputs)
        first = pytree.tree_leaves(state)[0]
        active = torch.arange(len(first), device=first.device)
        used = torch.zeros_like(active)
        output, memory = None, None
        for n in range(steps):
            state = self.step(state, context, n)
            value = self.head(state, context)
            stop = torch.zeros_like(active, dtype=torch.bool)
            if n + 1 == steps:
                stop = ~stop
            elif n == 0:
                memory = rule.begin(value, state)
            else:
                memory, stop = rule.update(memory, value, state, n + 1)
            stop = stop & (used[active] == 0)  # where coupled, stopped samples go on
            ends = stop.nonzero()[:, 0]
            if output is None:
                output = pytree.tree_map(lambda t: _room(t, len(first)), value)
            if not len(ends):
                continue
            output = _put(output, active[ends], _take(value, ends))
            used[active[ends]] = n + 1
            if bool((used > 0).all()):
                break
            if not self.samples_coupled:
                rest = (~stop).nonzero()[:, 0]
                active = active[rest]
                memory = _take(memory, rest)
                state, context = self.select(state, context, rest)
        return output, used

    def _count(self, steps: int | None) -> int:
        """The number of iterations to run."""
        if steps is not None:
            return integer("steps", steps, at_least=1)
        if self.steps is None:
            raise ValueError("steps is required for a loop whose number of iterations is unknown")
        return self.steps


def rows_of(state: State) -> Tensor:
    """A tree of tensors with one entry per sample as a matrix with one row per sample."""
    leaves: list[Tensor] = pytree.tree_leaves(state)
    return torch.cat([leaf.flatten(1) if leaf.dim() > 1 else leaf[:, None] for leaf in leaves], 1)


class _CellParts:
    """The functions of a loop that is given by its cell and first state."""

    def __init__(
        self,
        cell: Callable[..., State],
        z0: State | Callable[..., State],
        head: Callable[[State], Output] | None,
        uses_step: bool,
    ) -> None:
        self.cell, self.z0, self.output, self.uses_step = cell, z0, head, uses_step

    @property
    def modules(self) -> tuple[Module, ...]:
        several: dict[int, Module] = {}
        for f in (self.cell, self.output, self.z0 if callable(self.z0) else None):
            while isinstance(f, partial):
                f = f.func
            module = f if isinstance(f, Module) else getattr(f, "__self__", None)
            if isinstance(module, Module):
                several[id(module)] = module
        return tuple(several.values())

    def begin(self, *inputs: Any) -> tuple[State, tuple[Any, int]]:
        state = self.z0(*inputs) if callable(self.z0) else self.z0
        leaves = pytree.tree_leaves(state)
        if not leaves or not all(isinstance(t, Tensor) and t.dim() for t in leaves):
            raise TypeError("z0 must be a tensor or a tree of tensors with one entry per sample")
        return state, (inputs, len(leaves[0]))

    def step(self, state: State, context: tuple[Any, int], n: int) -> State:
        inputs = context[0]
        return self.cell(state, *inputs, n) if self.uses_step else self.cell(state, *inputs)

    def head(self, state: State, context: tuple[Any, int]) -> Output:  # noqa: ARG002
        return state if self.output is None else self.output(state)

    def select(self, context: tuple[Any, int], rows: Tensor) -> tuple[Any, int]:
        inputs, count = context
        taken = pytree.tree_map_only(
            Tensor, lambda t: t[rows] if t.dim() and len(t) == count else t, inputs
        )
        return taken, len(rows)

    def tensors(self, context: tuple[Any, int]) -> list[Tensor]:
        return floating(context[0])

    def with_tensors(self, context: tuple[Any, int], tensors: Sequence[Tensor]) -> tuple[Any, int]:
        return with_floating(context[0], tensors), context[1]


def floating(tree: Any) -> list[Tensor]:
    """The floating-point tensors of a tree."""
    leaves = pytree.tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def with_floating(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """A tree with other floating-point tensors."""
    others = iter(tensors)
    return pytree.tree_map_only(
        Tensor, lambda t: next(others) if t.is_floating_point() else t, tree
    )


def _same(inputs: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Whether inputs are the same objects."""
    return len(inputs) == len(others) and all(map(lambda a, b: a is b, inputs, others))


def _take(tree: Any, rows: Tensor) -> Any:
    """Some samples of a tree of tensors."""
    return pytree.tree_map_only(Tensor, lambda t: t[rows], tree)


def _room(like: Tensor, samples: int) -> Tensor:
    return like.new_empty((samples, *like.shape[1:]))


def _put(tree: Any, rows: Tensor, values: Any) -> Any:
    """A tree of tensors with other values for some samples; gradients go through these."""
    return pytree.tree_map(lambda t, v: t.index_copy(0, rows, v), tree, values)
