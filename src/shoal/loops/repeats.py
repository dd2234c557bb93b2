"""The longest run of operations that a trace repeats, and the state that they pass on."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

from shoal.loops.trace import OperationTrace, schema_name

_ANY_TENSOR = {  # operations in which a parameter may stand for a state
    *("aten::add", "aten::sub", "aten::mul", "aten::div", "aten::cat", "aten::where"),
    *("aten::lerp", "aten::expand", "aten::unsqueeze", "aten::stack", "aten::sum", "aten::copy"),
}
_FIRST_TENSOR = {"aten::linear", "aten::layer_norm", "aten::rms_norm", "aten::group_norm"}


class Inner(NamedTuple):
    """The value of an operation of the same repeat."""

    place: int  # number of the operation within the repeat


class Previous(NamedTuple):
    """The value of an operation of an earlier repeat: a part of the state."""

    place: int
    first: tuple[Any, ...]  # values before the first repeats; more than one if it is older


class Fixed(NamedTuple):
    """A value that is the same in all repeats."""

    value: Any  # a node from before the loop, or a constant


class Stepped(NamedTuple):
    """A value that differs from repeat to repeat, such as a step index."""

    values: tuple[Any, ...]  # nodes from before the loop, or constants, one for each repeat


Argument = Inner | Previous | Fixed | Stepped


@dataclass(frozen=True, eq=False)
class Repeats:
    """A run of repeats that follow from one another."""

    trace: OperationTrace
    start: int  # number of the first operation
    period: int  # operations in a repeat
    count: int
    arguments: tuple[tuple[Argument, ...], ...]  # arguments of each operation, flattened
    state: tuple[Previous, ...]  # values that pass from repeat to repeat, and to the output

    @property
    def stop(self) -> int:
        """Number of the first operation after the loop."""
        return self.start + self.period * self.count

    @property
    def body(self) -> tuple[fx.Node, ...]:
        """The operations of the first repeat."""
        return self.trace.nodes[self.start : self.start + self.period]

    @property
    def all_arguments(self) -> Iterator[Argument]:
        """The arguments of all operations of a repeat."""
        return (argument for arguments in self.arguments for argument in arguments)

    @property
    def parameters(self) -> set[str]:
        """Names of the parameters and buffers that every repeat uses."""
        fixed = (a.value for a in self.all_arguments if isinstance(a, Fixed))
        names = (self.trace.tensors.get(v.name) for v in fixed if isinstance(v, fx.Node))
        return {name for name in names if name is not None}

    @property
    def uses_outside(self) -> int:
        """How often the operations before and after the loop use all of its parameters."""

        def uses(nodes: Sequence[fx.Node]) -> Counter[str | None]:
            leaves = (leaf for node in nodes for leaf in self.trace.arguments(node)[0])
            return Counter(self.trace.tensors.get(v.name) for v in leaves if isinstance(v, fx.Node))

        nodes = self.trace.nodes
        inside, outside = uses(self.body), uses(nodes[: self.start] + nodes[self.stop :])
        return min((outside[name] // inside[name] for name in self.parameters), default=0)


def find_repeats(trace: OperationTrace) -> list[Repeats]:
    """The runs of repeats in a trace that do not overlap, the longest first."""
    repeats: list[Repeats] = []
    labels = [_labels(trace, exact=True), _labels(trace, exact=False)]
    runs = [(*run, exact) for exact in (True, False) for run in _runs(labels[not exact])]
    # runs of equal operations are preferred to runs whose numbers differ
    runs.sort(key=lambda run: (-run[2] * (1.1 if run[3] else 1.0), run[1]))
    examined = 0
    for first, period, covered, _ in runs:
        start, stop = first, first + covered
        for one in repeats:  # a run shares no operations with those before it
            if start < one.stop and one.start < stop:
                before = one.start - start > stop - one.stop
                start, stop = (start, one.start) if before else (one.stop, stop)
        if stop - start < 2 * period:
            continue
        examined += 1
        best = _best_cut(trace, start, period, stop - start)
        if best is not None:
            repeats.append(best)
        if examined == 8:
            break
    return sorted(repeats, key=lambda one: -one.period * one.count)


def _labels(trace: OperationTrace, *, exact: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A number for each operation, the same for repeats; ``exact``: numbers in arguments count."""
    numbers: dict[Any, int] = {}
    labels = []
    for node in trace.nodes:
        leaves, tree = trace.arguments(node)
        name = schema_name(node)
        parts: list[Any] = [str(node.target), str(tree)]
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, fx.Node):
                any_tensor = name in _ANY_TENSOR or (not place and name in _FIRST_TENSOR)
                parts.append(None if any_tensor else trace.tensors.get(leaf.name))
            elif isinstance(leaf, int | float) and not isinstance(leaf, bool) and not exact:
                parts.append(type(leaf).__name__)
            else:
                parts.append(repr(leaf))
        labels.append(numbers.setdefault(tuple(parts), len(numbers)))
    return np.array(labels, dtype=np.int64)


def _runs(labels: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[tuple[int, int, int]]:
    """Runs of at least two repeats: the first operation, the period, and operations covered."""
    for period in range(1, len(labels) // 2 + 1):
        same = np.concatenate([[False], labels[period:] == labels[:-period], [False]])
        edges = np.flatnonzero(same[1:] != same[:-1])
        for first, last in edges.reshape(-1, 2).tolist():
            if last - first >= period:
                yield first, period, last - first + period


def _best_cut(trace: OperationTrace, start: int, period: int, covered: int) -> Repeats | None:
    """The largest number of repeats in a run, with the smallest state."""
    cuts: list[tuple[int, int, int, Repeats]] = []
    for shift in range(min(period, covered - 2 * period + 1)):
        count = (covered - shift) // period
        if cuts and count < -cuts[0][0]:
            break
        repeats = _align(trace, start + shift, period, count)
        if repeats is not None:
            cuts.append((-count, _state_size(repeats), -shift, repeats))
    return min(cuts, key=lambda cut: cut[:3])[3] if cuts else None


def _align(trace: OperationTrace, start: int, period: int, count: int) -> Repeats | None:
    """Repeats that begin at an operation, if each follows from the one before it."""
    nodes = trace.nodes[start : start + period * count]
    place = {node: divmod(index, period) for index, node in enumerate(nodes)}
    arguments: list[tuple[Argument, ...]] = []
    for index in range(period):
        leaves = [trace.arguments(node)[0] for node in nodes[index::period]]
        kinds = [_argument(values, place, trace) for values in zip(*leaves, strict=True)]
        if None in kinds:
            return None
        arguments.append(tuple(kind for kind in kinds if kind is not None))
    state = {a: None for kinds in arguments for a in kinds if isinstance(a, Previous)}
    for one in list(state):  # older values pass through younger ones
        while len(one.first) > 1:
            one = Previous(one.place, one.first[1:])
            state.setdefault(one)
    if not any(isinstance(one.first[0], fx.Node) for one in state):
        return None
    last = _used_after(trace, start + period * count, place)
    if any(repeat != count - 1 for repeat, _ in last):
        return None  # the output is made of several repeats
    for _, index in sorted(last):
        if not any(one.place == index and len(one.first) == 1 for one in state):
            state[Previous(index, (None,))] = None
    repeats = Repeats(trace, start, period, count, tuple(arguments), tuple(state))
    return repeats if last and _is_loop(repeats) else None


def _argument(
    values: Sequence[Any], place: dict[fx.Node, tuple[int, int]], trace: OperationTrace
) -> Argument | None:
    """One argument of an operation over all repeats; ``None`` if it follows no rule."""
    inside = [place.get(value) if isinstance(value, fx.Node) else None for value in values]
    if all(at is not None for at in inside):
        same = {(at[0] - repeat, at[1]) for repeat, at in enumerate(inside) if at is not None}
        return Inner(inside[0][1]) if len(same) == 1 and inside[0][0] == 0 else None  # type: ignore[index]
    before = next((i for i, at in enumerate(inside) if at is not None), len(values))
    first = tuple(values[:before])
    if before < len(values):
        ages = {(repeat - at[0], at[1]) for repeat, at in enumerate(inside) if at is not None}
        regular = len(ages) == 1 and None not in inside[before:]
        ((age, index),) = ages if regular else {(0, 0)}
        nodes = all(isinstance(value, fx.Node) for value in first)
        return Previous(index, first) if regular and age == before and nodes else None
    if all(type(value) is type(values[0]) and value == values[0] for value in values):
        return Fixed(values[0])
    constants = [
        trace.constants.get(value.name) if isinstance(value, fx.Node) else value for value in values
    ]
    if all(isinstance(value, int | float) for value in constants):
        return Stepped(tuple(constants))
    tensors = [value for value in constants if isinstance(value, Tensor)]
    if len(tensors) == len(values):
        same_value = all(torch.equal(value, tensors[0]) for value in tensors)
        return Fixed(values[0]) if same_value else Stepped(tuple(tensors))
    return Stepped(first) if all(isinstance(value, fx.Node) for value in first) else None


def _used_after(
    trace: OperationTrace, stop: int, place: dict[fx.Node, tuple[int, int]]
) -> set[tuple[int, int]]:
    """Places of values that are used after the loop: repeat and operation."""
    used = [leaf for node in trace.nodes[stop:] for leaf in trace.arguments(node)[0]]
    used += [trace.source(value) for value in trace.outputs]
    return {place[leaf] for leaf in used if isinstance(leaf, fx.Node) and leaf in place}


def _is_loop(repeats: Repeats) -> bool:
    """Whether repeats share weights or inputs, and lead from the first state to the last."""
    shared = any(
        isinstance(a, Fixed) and isinstance(a.value, fx.Node) and "val" in a.value.meta
        and isinstance(a.value.meta["val"], Tensor)
        for a in repeats.all_arguments
    )  # fmt: skip
    reached: set[int] = set()
    for index, arguments in enumerate(repeats.arguments):
        if any(isinstance(a, Previous) or (isinstance(a, Inner) and a.place in reached)
               for a in arguments):  # fmt: skip
            reached.add(index)
    return shared and any(one.place in reached and one.first[0] is not None
                          for one in repeats.state)  # fmt: skip


def _state_size(repeats: Repeats) -> int:
    """The number of entries of the state, for the traced batch."""
    values = [repeats.body[one.place].meta.get("val") for one in repeats.state]
    return sum(int(value.numel()) if isinstance(value, Tensor) else 1 for value in values)
