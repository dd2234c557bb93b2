"""The loop inside an unmodified model."""

import copy
from bisect import bisect_left
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Module

from shoal.core.checks import instance
from shoal.core.torch_compat import pytree
from shoal.core.words import counted
from shoal.loops.loop import Loop, Output, State
from shoal.loops.repeats import Repeats, find_repeats
from shoal.loops.segments import Layout, Segments
from shoal.loops.trace import (
    HINT,
    OperationTrace,
    batch_of,
    iterations_of,
    rows_of_inputs,
    trace,
    unrolled,
)
from shoal.networks.modules import evaluating

_ROUNDING = 1e4  # units in the last place by which a replayed output may differ
_LONGEST = 100_000  # largest step index that is tried against step embeddings


def find_loop(model: Module, *inputs: Any) -> Loop:
    """Find the loop inside a model, by tracing one forward pass.

    The loop is the longest run of operations that repeats with the same weights. Its state is
    made of the values that pass from repeat to repeat. The loop is replayed for this batch and for
    two other batch sizes, and must return the model's outputs. The model runs in evaluation mode
    and is not modified. If it has several loops, the longest is returned, and ``note`` names the
    others.

    Args:
        model: The model, called as ``model(*inputs)``.
        inputs: At least two samples, in the first dimension of each tensor.

    Returns:
        The loop, a function of the model's inputs.

    Raises:
        ValueError: If the model has no loop, cannot be traced, or its loop does not return the
            model's outputs.

    Example:
        >>> import torch, shoal
        >>> class Looped(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.cell, self.readout = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
        ...     def forward(self, x):
        ...         z = x
        ...         for _ in range(5):
        ...             z = torch.tanh(self.cell(z) + x)
        ...         return self.readout(z)
        >>> shoal.find_loop(Looped(), torch.randn(8, 4))
        <Loop of 5 steps>
    """
    instance("model", model, Module)
    if batch_of(inputs) < 2:
        raise ValueError(f"inputs must have at least 2 samples, got {batch_of(inputs)}")
    with evaluating(model):
        steps = iterations_of(model, inputs)
        with unrolled(model):
            loop = _traced_loop(model, inputs)
    if steps is not None:
        loop.steps, loop.solves = steps, True
    return loop


def _traced_loop(model: Module, inputs: tuple[Any, ...]) -> Loop:
    """The loop of one trace for all batch sizes, or else of a separate trace for each."""
    try:
        traced = trace(model, inputs, dynamic=True)
    except ValueError:
        pass  # such as a model that turns the batch size into a plain number
    else:
        loop = _TracedLoop(model, inputs, traced)
        if not _differences(loop, model, inputs):
            return loop
    loop = _TracedLoop(model, inputs, trace(model, inputs, dynamic=False))
    differences = _differences(loop, model, inputs)
    batch = batch_of(inputs)
    if batch in differences:
        raise ValueError(
            f"the loop found in {type(model).__name__} does not return its output: replayed with "
            f"{counted(loop.steps or 0, 'step')}, {differences[batch]}; {HINT}"
        )
    if differences:
        loop.dynamic = False
        size, words = next(iter(differences.items()))
        loop.note = f"it holds for {batch} samples only: with {size}, {words}"
    return loop


Context = tuple[list[Any], int, Segments]  # values from before the loop, samples, programs


class _TracedLoop(Loop):
    """A loop that was found in a dynamic trace, or in one trace for each batch size."""

    def __init__(self, model: Module, inputs: tuple[Any, ...], traced: OperationTrace) -> None:
        self.model, self.inputs, self.fixed_batch = model, inputs, not traced.dynamic
        batch = batch_of(inputs)
        self.repeats, *further = _repeats(model, traced)
        segments = Segments(self.repeats)
        self._segments = {0 if traced.dynamic else batch: segments}
        if segments.random:
            raise ValueError(
                f"the loop of {type(model).__name__} draws random numbers in each step, such as "
                f"dropout in evaluation mode or noise: two runs differ; {HINT}"
            )
        larger = resized(inputs, batch, batch + 1)
        with torch.no_grad():
            first, second = self._step_once(inputs, batch), self._step_once(larger, batch + 1)
        self._state, self._shared = (
            [Layout.from_values(a, b, (batch, batch + 1)) for a, b in zip(*pair, strict=True)]
            for pair in zip(first, second, strict=True)
        )
        self._dtypes = [value.dtype for value in first[0]]
        if not any(layout.factor for layout in self._state):
            raise ValueError(_no_loop(model))
        steps, more = self.repeats.count, self.repeats.uses_outside
        self.steps, self.uses_step, self.dynamic = steps, bool(segments.steps), True
        if more:
            self.note = (
                f"the model applies the weights of the loop {counted(more, 'more time')} before or "
                f"after it: {steps} iterations here may be {steps + more} of its own"
            )
        for repeats in further:
            names = ", ".join(sorted(repeats.parameters)[:2]) or "no weights"
            self.note = f"the model has another loop, of {repeats.count} steps with {names}, ..."
        coupled = any(layout.coupled for layout in (*self._shared, *self._state))
        with torch.no_grad():
            if segments.limited:
                self.max_steps = steps
            elif segments.steps:
                self.max_steps = self._last_step(inputs, steps)
            self.samples_coupled = coupled or couples_samples(self, inputs)

    @property
    def modules(self) -> tuple[Module, ...]:
        return (self.model,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model, memo)
        return other

    def _begin(self, *inputs: Any) -> tuple[State, Context]:
        batch = batch_of(inputs)
        _check_like(inputs, self.inputs)
        segments = self._segments_for(inputs, batch)
        values, shared = segments.begin(self.model, pytree.tree_leaves(inputs))
        device = next(v.device for v in (*values, *shared) if isinstance(v, Tensor))
        for index, (value, layout) in enumerate(zip(values, self._state, strict=True)):
            shape = tuple(n * batch if d == layout.dim else n for d, n in enumerate(layout.shape))
            if value is None:  # only the output uses it
                values[index] = torch.zeros(shape, dtype=self._dtypes[index], device=device)
            elif tuple(value.shape) != shape:
                values[index] = value.expand(shape)
        return self._rows(values, batch), (shared, batch, segments)

    def _step(self, state: State, context: Context, n: int) -> State:
        shared, batch, segments = context
        return self._rows(segments.step(self._values(state), shared, n), batch)

    def head(self, state: State, context: Context) -> Output:
        shared, _, segments = context
        return segments.head(self._values(state), shared)

    def _select(self, context: Context, rows: Tensor) -> Context:
        shared, batch, segments = context
        pairs = zip(shared, self._shared, strict=True)
        return [layout.select(v, rows, batch) for v, layout in pairs], len(rows), segments

    def _rows(self, values: list[Tensor], batch: int) -> State:
        """Values of a batch as a state: a tensor or a tuple of tensors with samples first."""
        rows = tuple(y.rows(v, batch) for v, y in zip(values, self._state, strict=True))
        return rows[0] if len(rows) == 1 else rows

    def _values(self, state: State) -> list[Tensor]:
        """A state as values of a batch."""
        rows = [state] if isinstance(state, Tensor) else state
        return [layout.value(t) for t, layout in zip(rows, self._state, strict=True)]

    def _segments_for(self, inputs: tuple[Any, ...], batch: int) -> Segments:
        if not self.fixed_batch:
            return self._segments[0]
        if batch not in self._segments:
            with evaluating(self.model), unrolled(self.model):
                repeats = _repeats(self.model, trace(self.model, inputs, dynamic=False))[0]
            if (repeats.period, repeats.count) != (self.repeats.period, self.repeats.count):
                raise ValueError(
                    f"the loop changes with the batch size: for {batch} samples it has "
                    f"{repeats.count} steps"
                )
            self._segments[batch] = Segments(repeats)
        return self._segments[batch]

    def _step_once(self, inputs: tuple[Any, ...], batch: int) -> tuple[list[Any], list[Any]]:
        """The values of the state after one iteration, and the context."""
        segments = self._segments_for(inputs, batch)
        values, shared = segments.begin(self.model, pytree.tree_leaves(inputs))
        return segments.step(values, shared, 0), shared

    def _last_step(self, inputs: tuple[Any, ...], steps: int) -> int | None:
        """The number of iterations that step embeddings allow; ``None`` without a limit."""
        state, context = self.begin(*inputs)

        def fails(n: int) -> bool:
            try:
                self.step(state, context, n)
            except (IndexError, RuntimeError):
                return True
            return False

        end = bisect_left(range(_LONGEST), True, lo=steps, key=fails)
        return None if end == _LONGEST else end


def resized(inputs: tuple[Any, ...], batch: int, size: int) -> tuple[Any, ...]:
    """A batch cut or repeated to another number of samples."""
    return rows_of_inputs(inputs, torch.arange(size) % batch)


def _repeats(model: Module, traced: OperationTrace) -> list[Repeats]:
    repeats = find_repeats(traced)
    if not repeats:
        raise ValueError(_no_loop(model))
    return repeats


def _no_loop(model: Module) -> str:
    return (
        f"{type(model).__name__} has no loop: its forward pass repeats no operations with the same "
        f"weights, each on the result of the one before, or its output takes something of every "
        f"iteration. If it has one, {HINT}"
    )


def _check_like(inputs: tuple[Any, ...], traced: tuple[Any, ...]) -> None:
    """Refuse inputs that differ from the traced ones in more than the number of samples."""
    leaves, like = pytree.tree_leaves(inputs), pytree.tree_leaves(traced)
    fits = len(leaves) == len(like)
    for one, other in zip(leaves, like, strict=False):
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            fits &= one.shape[1:] == other.shape[1:] and one.dtype == other.dtype
        else:
            fits &= type(one) is type(other)
    if not fits:
        shown = [(*t.shape, t.dtype) if isinstance(t, Tensor) else t for t in like]
        raise ValueError(
            "inputs must match those the loop was found with, except for the number of samples, "
            f"{shown}"
        )


def _differences(loop: Loop, model: Module, inputs: tuple[Any, ...]) -> dict[int, str]:
    """Differences between a replayed loop and the model, in words by batch size."""
    batch = batch_of(inputs)
    differences: dict[int, str] = {}
    with torch.no_grad():
        for size in (batch, batch + 1, batch - 1):
            samples = resized(inputs, batch, size)
            try:
                with torch.random.fork_rng():
                    torch.manual_seed(0)
                    expected = pytree.tree_leaves(model(*samples))
                    torch.manual_seed(0)
                    got = pytree.tree_leaves(loop.run(*samples))
            except Exception as error:  # a program for one batch can fail in any way for another
                differences[size] = f"it raises {type(error).__name__}"
                continue
            pairs = zip(got, expected, strict=True)
            off = max((_distance(a, b) for a, b in pairs if isinstance(b, Tensor)), default=0.0)
            if off > 1:
                differences[size] = "the output differs from the model's"
    return differences


def couples_samples(loop: Loop, inputs: tuple[Any, ...]) -> bool:
    """Whether some samples of a batch have other states in a smaller batch."""
    state, context = loop.begin(*inputs)
    batch = len(pytree.tree_leaves(state)[0])
    rows = torch.randperm(batch, generator=torch.Generator().manual_seed(0))[: batch // 2 + 1]
    rows = rows[: max(1, batch - 1)].to(pytree.tree_leaves(state)[0].device)
    again = torch.arange(batch if loop.fixed_batch else len(rows), device=rows.device) % len(rows)
    part, part_context = loop.select(state, context, rows[again])
    for n in range(min(3, loop.steps or 3)):  # a few iterations show a dependence
        state, part = loop.step(state, context, n), loop.step(part, part_context, n)
    pairs = [(state, part), (loop.head(state, context), loop.head(part, part_context))]
    return any(
        _distance(a[rows], b[: len(rows)]) > 1
        for whole, part in pairs
        for a, b in zip(pytree.tree_leaves(whole), pytree.tree_leaves(part), strict=True)
        if isinstance(a, Tensor) and a.dim() and len(a) == batch
    )


def _distance(one: Tensor, other: Tensor) -> float:
    """The largest difference, in units of rounding; NaN equals NaN."""
    if one.shape != other.shape:
        return torch.inf
    if not one.is_floating_point():
        return 0.0 if bool((one == other).all()) else torch.inf
    same = (one == other) | (one.isnan() & other.isnan())
    off = torch.where(same, 0.0, (one - other).abs()).nan_to_num(torch.inf)
    size = other[other.isfinite()].abs().max() if bool(other.isfinite().any()) else 1.0
    rounding = _ROUNDING * torch.finfo(one.dtype).eps
    return float(off.max() / (rounding * size + 1e-30)) if off.numel() else 0.0
