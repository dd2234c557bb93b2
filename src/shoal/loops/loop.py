"""A loop as a function of a model's inputs: its first state, its step, and its output."""

from collections.abc import Callable, Iterator
from functools import partial
from operator import is_
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Module, ModuleList

from shoal.core.checks import flag, function, integer
from shoal.core.torch_compat import pytree

State = Any  # a tensor, or a tree of tensors, whose first dimension counts samples
Output = Any  # a tensor, or a tree of tensors, with one entry per sample
Memory = Any  # values that a stop rule keeps, with one entry per sample


class StopRule(Protocol):
    """A rule that stops samples one by one; trees of tensors with one entry per sample."""

    def begin(self, output: Output, state: State) -> Memory:
        """Return the rule's memory after the first iteration."""

    def update(self, memory: Memory, output: Output, state: State, n: int) -> tuple[Memory, Tensor]:
        """Return the memory after iteration ``n`` (2, 3, ...), and a mask of stopping samples."""


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

    max_steps: int | None = None
    fixed_batch = False  # whether `select` must keep the number of samples
    solves = False
    note = ""

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
        self._cell, self._z0, self._head = cell, z0, head
        self.inputs = inputs
        self.steps = None if steps is None else integer("steps", steps, at_least=1)
        self.uses_step = flag("uses_step", uses_step)
        self.dynamic = callable(z0)
        self.samples_coupled = flag("samples_coupled", samples_coupled)

    def __repr__(self) -> str:
        steps = "an unknown number of" if self.steps is None else self.steps
        note = f" ({self.note})" if self.note else ""
        return f"<Loop of {steps} steps{note}>"

    @property
    def modules(self) -> tuple[Module, ...]:
        """The modules whose parameters the loop depends on."""
        modules: dict[int, Module] = {}
        for f in (self._cell, self._head, self._z0 if callable(self._z0) else None):
            while isinstance(f, partial):
                f = f.func
            module = f if isinstance(f, Module) else getattr(f, "__self__", None)
            if isinstance(module, Module):
                modules[id(module)] = module
        return tuple(modules.values())

    def begin(self, *inputs: Any) -> tuple[State, Any]:
        """Return the first state, and the context of all iterations.

        Args:
            inputs: The model's inputs; by default the loop's own batch.
        """
        same = len(inputs) == len(self.inputs) and all(map(is_, inputs, self.inputs))
        if inputs and not self.dynamic and not same:
            hint = "; for other batches, pass z0 as a function of the inputs"
            hint = f": {self.note}" if self.note else hint
            raise ValueError(f"inputs must be the batch for which the loop was made{hint}")
        return self._begin(*(inputs or self.inputs))

    def step(self, state: State, context: Any, n: int) -> State:
        """Return the state after iteration ``n``, counted from 0."""
        if self.max_steps is not None and n >= self.max_steps:
            raise ValueError(
                f"steps must be at most {self.max_steps}, the number of the model's step "
                f"embeddings, got {n + 1}"
            )
        return self._step(state, context, n)

    def head(self, state: State, context: Any) -> Output:  # noqa: ARG002
        """Return the model's output for a state."""
        return state if self._head is None else self._head(state)

    def select(self, state: State, context: Any, rows: Tensor) -> tuple[State, Any]:
        """Return the state and the context of some samples."""
        return _take(state, rows), self._select(context, rows)

    def _begin(self, *inputs: Any) -> tuple[State, Any]:
        state = self._z0(*inputs) if callable(self._z0) else self._z0
        leaves = pytree.tree_leaves(state)
        if not leaves or not all(isinstance(t, Tensor) and t.dim() for t in leaves):
            raise TypeError("z0 must be a tensor or a tree of tensors with one entry per sample")
        return state, (inputs, len(leaves[0]))

    def _step(self, state: State, context: Any, n: int) -> State:
        return self._cell(state, *context[0], *([n] if self.uses_step else []))

    def _select(self, context: Any, rows: Tensor) -> Any:
        inputs, count = context
        selection = pytree.tree_map_only(
            Tensor, lambda t: t[rows] if t.dim() and len(t) == count else t, inputs
        )
        return selection, len(rows)

    def as_cell(self, context: Any) -> tuple[Callable[..., State], list[Tensor]]:
        """Return a step as a function of the state and tensors, and the tensors of a context."""

        def cell(state: State, *tensors: Tensor) -> State:
            replacements = iter(tensors)
            replaced = pytree.tree_map_only(
                Tensor, lambda t: next(replacements) if t.is_floating_point() else t, context
            )
            return self._step(state, replaced, 0)

        leaves = pytree.tree_leaves(context)
        return cell, [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]

    def states(self, *inputs: Any, steps: int | None = None) -> Iterator[State]:
        """Iterate over the states after 1, 2, ... iterations."""
        return (state for state, _ in self._states(inputs, self._count(steps)))

    def outputs(self, *inputs: Any, steps: int | None = None) -> Iterator[Output]:
        """Iterate over the outputs after 1, 2, ... iterations."""
        return (output for _, output in self.trajectory(*inputs, steps=steps))

    def trajectory(self, *inputs: Any, steps: int | None = None) -> Iterator[tuple[State, Output]]:
        """Iterate over the states and the outputs after 1, 2, ... iterations."""
        states = self._states(inputs, self._count(steps))
        return ((state, self.head(state, context)) for state, context in states)

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
            inputs: The model's inputs; by default the loop's own batch.
            steps: Number of iterations; if ``None``, the full count of the rule, or as many as
                the model runs.
            until: A rule that stops samples earlier. Each sample's output is from its own last
                iteration. Stopped samples are left out of the computation, unless samples are
                coupled.
            counts: Whether to return the output and the iterations of each sample.
        """
        steps = self._count(getattr(until, "steps", None) if steps is None else steps)
        if until is not None and not self.dynamic and self.note:
            raise ValueError(f"until needs a loop that runs on other batches: {self.note}")
        state, context = self.begin(*inputs)
        if until is None:
            for n in range(steps):
                state = self.step(state, context, n)
            output = self.head(state, context)
            if not counts:
                return output  # with a symbolic number of samples, while a program is exported
            first = pytree.tree_leaves(state)[0]
            return output, torch.full((len(first),), steps, device=first.device)
        stopping = Stopping(until, steps)
        while True:
            state = self.step(state, context, stopping.n)
            if stopping(self.head(state, context), state):
                break
            if not self.samples_coupled and not self.fixed_batch:
                state, context = self.select(state, context, stopping.leave_out())
        return (stopping.output, stopping.iterations) if counts else stopping.output

    def _count(self, steps: int | None) -> int:
        if steps is not None:
            return integer("steps", steps, at_least=1)
        if self.steps is None:
            raise ValueError("steps is required for a loop whose number of iterations is unknown")
        return self.steps


def rows_of(state: State) -> Tensor:
    """A tree of tensors with one entry per sample as a matrix with one row per sample."""
    leaves: list[Tensor] = pytree.tree_leaves(state)
    return torch.cat([leaf.flatten(1) if leaf.dim() > 1 else leaf[:, None] for leaf in leaves], 1)


class Stopping:
    """A stop rule applied to one batch; call it after each iteration.

    Attributes:
        iterations: Number of iterations of each sample.
    """

    def __init__(self, rule: StopRule, steps: int | None = None) -> None:
        self.rule, self.steps, self.n = rule, steps, 0

    def __call__(self, output: Output, state: State) -> bool:
        """Apply the rule to the next iteration of all samples; return whether all have stopped."""
        self.n += 1
        self._last = output
        if self.n == 1:
            self._memory = self.rule.begin(output, state)
            self._output = output
            first = pytree.tree_leaves(state)[0]
            self._rows = torch.arange(len(first), device=first.device)
            self._running = torch.ones_like(self._rows, dtype=torch.bool)
            self.iterations = torch.zeros_like(self._rows)
        stop = torch.full_like(self._running, self.n == self.steps)
        if 1 < self.n != self.steps:
            self._memory, stop = self.rule.update(self._memory, output, state, self.n)
        self.iterations[self._rows[self._running]] = self.n
        ends = (stop & self._running).nonzero()[:, 0]
        if len(ends):
            self._output = self._updated_output(ends)
        self._running = self._running & ~stop
        return not bool(self._running.any())

    @property
    def output(self) -> Output:
        """The output of each sample where it stopped, or the last one."""
        return self._updated_output(self._running.nonzero()[:, 0])

    def leave_out(self) -> Tensor:
        """Drop the samples that have stopped; return the places of the running ones."""
        rows = self._running.nonzero()[:, 0]
        self._rows, self._running = self._rows[rows], self._running[rows]
        self._memory, self._last = _take(self._memory, rows), None
        return rows

    def _updated_output(self, rows: Tensor) -> Output:
        """The output, with rows of the last iteration replaced."""
        if not len(rows):
            return self._output
        places = self._rows[rows]
        return pytree.tree_map(
            lambda t, last: t.index_copy(0, places, last[rows]), self._output, self._last
        )


class LoopModule(Module):
    """A loop as a module, for a number of iterations or until a stop rule.

    Args:
        loop: The loop; its modules become parts of this one.
        steps: Number of iterations.
        rule: A rule that stops samples earlier.
    """

    def __init__(self, loop: Loop, steps: int, rule: Any = None) -> None:
        super().__init__()
        self.loop, self.steps, self.rule = loop, steps, rule
        self.parts = ModuleList(loop.modules)

    def forward(self, *inputs: Any) -> Any:
        """Return the model's output."""
        return self.loop.run(*inputs, steps=self.steps, until=self.rule)


def _take(tree: Any, rows: Tensor) -> Any:
    """Some samples of a tree of tensors."""
    return pytree.tree_map_only(Tensor, lambda t: t[rows], tree)
