"""A traced loop as three functions: what comes before it, one repeat, and what comes after."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import Module

from shoal.core.torch_compat import pytree
from shoal.loops.repeats import Argument, Fixed, Inner, Previous, Repeats, Stepped
from shoal.loops.trace import Trace, is_random


class Segments:
    """The three parts of a traced loop, as programs of their operations."""

    def __init__(self, repeats: Repeats) -> None:
        self.repeats, trace = repeats, repeats.trace
        before, after = trace.nodes[: repeats.start], trace.nodes[repeats.stop :]
        loop = trace.nodes[repeats.start : repeats.stop]
        self.random = any(map(is_random, repeats.body))  # whether a repeat draws random numbers
        # values that change from repeat to repeat
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
            trace, before, [*trace.inputs, *self._tensors], [*starts, *self.shared], {}
        )
        kinds = dict(zip(repeats.body, repeats.arguments, strict=True))
        self._body = _program(
            trace, repeats.body, [*self.shared, *self.steps, *repeats.state],
            [_after(repeats, one) for one in repeats.state],
            lambda node, _: [_key(argument, repeats) for argument in kinds[node]],
        )  # fmt: skip
        final = {one.place: one for one in reversed(repeats.state) if len(one.first) == 1}
        last = {node: final.get(i) for i, node in enumerate(loop[-repeats.period :])}
        self._head = _program(
            trace, after, [*self.shared, *repeats.state], map(trace.source, trace.outputs), last
        )

    def begin(self, model: Module, inputs: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the first values of the state, and the context."""
        tensors = [self.repeats.trace.tensor(node, model) for node in self._tensors]
        found = self._begin(*inputs, *tensors)
        count = len(self.repeats.state)
        return list(found[:count]), list(found[count:])

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
        """Whether a value that changes is known for the repeats of the trace alone."""
        return not all(_is_progression(one.values) for one in self.steps)

    def _at_step(self, values: tuple[Any, ...], n: int, context: list[Any]) -> Any:
        """A value that changes from repeat to repeat, continued as an arithmetic sequence."""
        if n >= len(values):
            return values[0] + n * (values[1] - values[0])
        value = values[n]
        return context[self.shared.index(value)] if isinstance(value, fx.Node) else value


def _key(argument: Argument, repeats: Repeats) -> Any:
    """The key of an argument within a repeat."""
    if isinstance(argument, Inner):
        return repeats.body[argument.place]
    return argument.value if isinstance(argument, Fixed) else argument


def _after(repeats: Repeats, one: Previous) -> Any:
    """Where a part of the next state comes from."""
    return repeats.body[one.place] if len(one.first) == 1 else Previous(one.place, one.first[1:])


def _program(
    trace: Trace,
    nodes: Iterable[fx.Node],
    inputs: Iterable[Any],
    outputs: Iterable[Any],
    keys: Callable[[fx.Node, list[Any]], list[Any]] | Mapping[fx.Node, Any],
) -> Module:
    """Some operations as a function of values with the keys ``inputs``, for those of ``outputs``.

    ``keys`` returns the keys of an operation's arguments, or has keys that stand for other nodes.
    """
    graph = fx.Graph()
    made: dict[Any, Any] = {}

    def value(key: Any) -> Any:
        if isinstance(keys, Mapping) and isinstance(key, fx.Node):
            key = keys.get(key, key)
        return made[key] if isinstance(key, fx.Node | Previous | Stepped) else key

    for index, key in enumerate(inputs):
        made[key] = graph.placeholder(f"input_{index}")
    for node in nodes:
        leaves, tree = trace.arguments(node)
        found = leaves if isinstance(keys, Mapping) else keys(node, leaves)
        args, kwargs = pytree.tree_unflatten([value(key) for key in found], tree)
        assert callable(node.target)
        made[node] = graph.call_function(node.target, args, kwargs)
        made[node].meta["random"] = is_random(node)
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
    """Where the samples are in a value, by its sizes for two batches."""

    dim: int | None  # dimension that grows with the batch
    factor: int  # entries of this dimension for each sample; zero for a value without samples
    coupled: bool  # whether several dimensions grow, as of a matrix of pairs of samples
    shape: tuple[int, ...]  # all sizes, for one sample

    @classmethod
    def of(cls, first: Any, second: Any, batches: tuple[int, int]) -> "Layout":
        """The layout of a value that is known for two batch sizes."""
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

    def sized(self, batch: int) -> tuple[int, ...]:
        """The sizes of the value for a batch."""
        return tuple(n * batch if d == self.dim else n for d, n in enumerate(self.shape))

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
        found = rows.movedim(0, self.dim) if self.dim else rows
        return found if self.factor == 1 else found.flatten(self.dim, self.dim + 1)

    def taken(self, value: Any, rows: Tensor, batch: int) -> Any:
        """The value for some samples."""
        if not isinstance(value, Tensor):
            return self.factor * len(rows) if self.factor else value
        return value if self.dim is None else self.value(self.rows(value, batch)[rows])
