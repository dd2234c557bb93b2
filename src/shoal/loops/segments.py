"""A traced loop as three functions: the operations before it, one repeat, and the output."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import Module

from shoal.core.torch_compat import pytree
from shoal.loops.repeats import Fixed, Inner, Previous, Repeats, Stepped
from shoal.loops.trace import OperationTrace, is_random


class Segments:
    """The three parts of a traced loop, as programs of their operations."""

    def __init__(self, repeats: Repeats) -> None:
        self.repeats, trace = repeats, repeats.trace
        before, after = trace.nodes[: repeats.start], trace.nodes[repeats.stop :]
        loop = trace.nodes[repeats.start : repeats.stop]
        self.random = any(map(is_random, repeats.body))
        self.steps = [a for a in dict.fromkeys(repeats.all_arguments) if isinstance(a, Stepped)]
        fixed = [a.value for a in repeats.all_arguments if isinstance(a, Fixed)]
        fixed += [value for one in self.steps for value in one.values]
        fixed += [leaf for node in after for leaf in trace.arguments(node)[0]]
        fixed += [trace.source(value) for value in trace.outputs]
        inside = {*loop, *after}  # all else is the context
        self.shared = tuple(
            dict.fromkeys(v for v in fixed if isinstance(v, fx.Node) and v not in inside)
        )
        self._tensors = trace.placeholders
        starts = [one.first[0] for one in repeats.state]
        self._begin = _program(
            trace, before, [*trace.inputs, *self._tensors], [*starts, *self.shared],
            lambda node: trace.arguments(node)[0],
        )  # fmt: skip
        body, arguments = repeats.body, dict(zip(repeats.body, repeats.arguments, strict=True))
        self._body = _program(
            trace, body, [*self.shared, *self.steps, *repeats.state],
            [body[one.place] if len(one.first) == 1 else Previous(one.place, one.first[1:])
             for one in repeats.state],
            lambda node: [
                body[a.place] if isinstance(a, Inner) else a.value if isinstance(a, Fixed) else a
                for a in arguments[node]
            ],
        )  # fmt: skip
        final = {one.place: one for one in reversed(repeats.state) if len(one.first) == 1}
        last = {node: final.get(i) for i, node in enumerate(loop[-repeats.period :])}

        def as_state(value: Any) -> Any:
            return last.get(value, value) if isinstance(value, fx.Node) else value

        self._head = _program(
            trace, after, [*self.shared, *repeats.state],
            [as_state(trace.source(value)) for value in trace.outputs],
            lambda node: map(as_state, trace.arguments(node)[0]),
        )  # fmt: skip

    def begin(self, model: Module, inputs: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the first values of the state, and the context."""
        tensors = [self.repeats.trace.tensor(node, model) for node in self._tensors]
        values = self._begin(*inputs, *tensors)
        count = len(self.repeats.state)
        return list(values[:count]), list(values[count:])

    def step(self, state: list[Any], context: list[Any], n: int) -> list[Any]:
        """Return the next values of the state."""
        steps = [self._at_step(one.values, n, context) for one in self.steps]
        return list(self._body(*context, *steps, *state))

    def head(self, state: list[Any], context: list[Any]) -> Any:
        """Return the model's output."""
        structure = self.repeats.trace.structure
        return pytree.tree_unflatten(list(self._head(*context, *state)), structure)

    @property
    def limited(self) -> bool:
        """Whether a value that changes cannot be continued beyond the traced repeats."""
        return not all(_is_progression(one.values) for one in self.steps)

    def _at_step(self, values: tuple[Any, ...], n: int, context: list[Any]) -> Any:
        """A value that changes from repeat to repeat, continued as an arithmetic sequence."""
        if n >= len(values):
            return values[0] + n * (values[1] - values[0])
        value = values[n]
        return context[self.shared.index(value)] if isinstance(value, fx.Node) else value


def _program(
    trace: OperationTrace,
    nodes: Iterable[fx.Node],
    inputs: Iterable[Any],
    outputs: Iterable[Any],
    arguments: Callable[[fx.Node], Iterable[Any]],
) -> Module:
    """A module that computes ``outputs`` from ``inputs`` by some operations.

    Values are named by keys: nodes, and previous and stepped values. ``arguments`` returns the
    keys and constants that an operation is called with.
    """
    graph = fx.Graph()
    values: dict[Any, Any] = {}

    def value(key: Any) -> Any:
        return values[key] if isinstance(key, fx.Node | Previous | Stepped) else key

    for index, key in enumerate(inputs):
        values[key] = graph.placeholder(f"input_{index}")
    for node in nodes:
        _, tree = trace.arguments(node)
        args, kwargs = pytree.tree_unflatten(list(map(value, arguments(node))), tree)
        assert callable(node.target)
        values[node] = graph.call_function(node.target, args, kwargs)
        values[node].meta["random"] = is_random(node)
    graph.output(tuple(value(key) for key in outputs))
    graph.eliminate_dead_code(lambda node: node.op != "call_function" or node.meta["random"])
    return fx.GraphModule(nn.Module(), graph)


def _is_progression(values: tuple[Any, ...]) -> bool:
    """Whether values are an arithmetic sequence of integers, numbers or tensors."""
    if any(isinstance(value, fx.Node) for value in values):
        return False
    numbers = torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in values])
    whole = bool((numbers == numbers.round()).all())
    return whole and not bool(numbers.diff(2, dim=0).any())


@dataclass(frozen=True)
class Layout:
    """The place of the samples in a value, by its sizes for two batches."""

    dim: int | None  # dimension that grows with the batch
    factor: int  # entries of this dimension for each sample; zero for a value without samples
    coupled: bool  # whether several dimensions grow, such as in a matrix of pairs of samples
    shape: tuple[int, ...]  # all sizes, for one sample

    @classmethod
    def from_values(cls, first: Any, second: Any, batches: tuple[int, int]) -> "Layout":
        """The layout of a value, from its instances for two batch sizes."""
        if not isinstance(first, Tensor):
            grows = isinstance(first, int) and first != second
            factor = first // batches[0] if grows else 0
            irregular = isinstance(first, list | tuple) or (grows and factor * batches[1] != second)
            return cls(None, factor, irregular, ())
        dims = [d for d in range(first.dim()) if first.shape[d] != second.shape[d]]
        if not dims:
            return cls(None, 0, False, tuple(first.shape))
        dim, (a, b) = dims[0], batches
        factor = first.shape[dim] // a
        regular = first.shape[dim] == factor * a and second.shape[dim] == factor * b
        shape = tuple(factor if d == dim else n for d, n in enumerate(first.shape))
        return cls(dim, factor, len(dims) > 1 or not regular, shape)

    def rows(self, value: Tensor, batch: int) -> Tensor:
        """The value with samples first."""
        if self.dim is None:
            return value.expand(batch, *value.shape)
        if self.factor != 1:
            value = value.unflatten(self.dim, (batch, self.factor))
        return value.movedim(self.dim, 0) if self.dim else value

    def value(self, rows: Tensor) -> Tensor:
        """The value of rows, one for each sample."""
        if self.dim is None:
            return rows[0]
        value = rows.movedim(0, self.dim) if self.dim else rows
        return value if self.factor == 1 else value.flatten(self.dim, self.dim + 1)

    def select(self, value: Any, rows: Tensor, batch: int) -> Any:
        """The value for some samples."""
        if not isinstance(value, Tensor):
            return self.factor * len(rows) if self.factor else value
        return value if self.dim is None else self.value(self.rows(value, batch)[rows])
