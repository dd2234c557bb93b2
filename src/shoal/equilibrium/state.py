"""States of any shape, tensors or trees of tensors, as rows of numbers: one row per sample."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.core.checks import known_tensor
from shoal.core.torch_compat import pytree

_LEAF = pytree.tree_structure(0)

State = Any  # a tensor, or a tree of tensors: tuples, lists, dictionaries, as PyTorch knows them


@dataclass(frozen=True, eq=False)
class StateLayout:
    """How the tensors of a state lie in rows.

    Attributes:
        tree: Tree of the tensors in the state.
        shapes: Shapes of the tensors, for one sample.
        batched: Whether the first dimension counts samples; if not, the state is one sample.
        orders: Dimensions of each tensor in their order in memory, by which rows are filled, so
            that states of images with channels last need no copy.
        is_rows: Whether states are rows already, as most are; this shortens calls of small cells.
    """

    tree: pytree.TreeSpec
    shapes: tuple[torch.Size, ...]
    batched: bool
    orders: tuple[tuple[int, ...], ...]
    is_rows: bool = False

    @classmethod
    def from_state(cls, state: State, *, batched: bool = True) -> "StateLayout":
        """The layout of a state to start from, after a check of its tensors."""
        if isinstance(state, Tensor):
            known_tensor("z0", state)
            if batched and state.dim() == 2 and state.is_contiguous():
                return cls(_LEAF, (state.shape[1:],), batched, ((),), is_rows=True)
        leaves, tree = pytree.tree_flatten(state)
        if not leaves:
            raise ValueError(f"z0 must hold at least one tensor, got {state!r}")
        if other := [leaf for leaf in leaves if not isinstance(leaf, Tensor)]:
            raise TypeError(
                "z0 must be a tensor, or a tuple, list or dictionary of tensors, or what else "
                f"torch.utils._pytree knows as a tree, got {type(other[0]).__name__}"
            )
        tensors = [known_tensor("z0", leaf) for leaf in leaves]
        kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
        if len(kinds) > 1:
            raise ValueError(
                "z0 must have tensors of one dtype on one device, got "
                + ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            )
        shapes = tuple(tensor.shape for tensor in tensors)
        orders = tuple(_order(tensor, batched=batched) for tensor in tensors)
        if not batched:
            return cls(tree, shapes, batched, orders)
        if not all(shapes):
            raise ValueError("z0 must have shape (samples, ...), got a scalar")
        if len({shape[0] for shape in shapes}) > 1:
            raise ValueError(
                "z0 must have tensors with one entry per sample, got shapes "
                + ", ".join(str(tuple(shape)) for shape in shapes)
                + "; with batched=False the whole state is one sample"
            )
        return cls(tree, tuple(shape[1:] for shape in shapes), batched, orders)

    def rows(self, state: State) -> Tensor:
        """A state as rows, of shape (samples, size)."""
        if self.is_rows:
            tensor: Tensor = state
            return tensor
        return self._joined(pytree.tree_leaves(state))

    def _joined(self, leaves: list[Tensor]) -> Tensor:
        """The tensors of a state side by side, one row for each sample."""
        count = len(leaves[0]) if self.batched else 1
        flat = [
            (t.permute(order) if order else t).reshape(count, math.prod(shape))
            for t, shape, order in zip(leaves, self.shapes, self.orders, strict=True)
        ]
        return flat[0] if len(flat) == 1 else torch.cat(flat, 1)

    def state(self, rows: Tensor) -> State:
        """The state that lies in rows."""
        if self.is_rows:
            return rows
        if self.tree.is_leaf():
            return self._tensor(rows, self.shapes[0], self.orders[0])
        parts = rows.split([math.prod(shape) for shape in self.shapes], 1)
        leaves = [*map(self._tensor, parts, self.shapes, self.orders)]
        return pytree.tree_unflatten(leaves, self.tree)

    def _tensor(self, rows: Tensor, shape: torch.Size, order: tuple[int, ...]) -> Tensor:
        """One of the tensors, from its rows."""
        whole = (rows.shape[0], *shape) if self.batched else shape
        if not order:
            return rows.reshape(whole)
        back = sorted(range(len(order)), key=order.__getitem__)
        return rows.reshape([whole[dim] for dim in order]).permute(back)

    def checked_rows(self, value: State, rows: Tensor, *, cast: bool = False) -> Tensor:
        """A map's value as rows, or an error if its tensors are not like those of the state.

        Args:
            value: The value.
            rows: The state that the map was given, as rows.
            cast: Whether the value may have another dtype, as under autocast.
        """
        if (
            self.is_rows
            and isinstance(value, Tensor)
            and value.shape == rows.shape
            and value.dtype == rows.dtype
        ):
            return value
        count = (rows.shape[0],) if self.batched else ()
        expected = [(*count, *shape) for shape in self.shapes]
        try:
            leaves = self.tree.flatten_up_to(value)  # of dictionaries in the order of z0
        except ValueError:
            leaves = [value]
        if len(leaves) != len(expected) or not all(isinstance(leaf, Tensor) for leaf in leaves):
            expectation = _described(pytree.tree_unflatten([*map(torch.Size, expected)], self.tree))
            kind = "shape" if self.tree.is_leaf() else "shapes"
            raise ValueError(
                f"the cell must return a state like z0, of {kind} {expectation}, got "
                f"{_described(value)}"
            )
        for leaf, shape in zip(leaves, expected, strict=True):
            if leaf.shape != shape:
                raise ValueError(
                    f"the cell must return a state like z0, of shape {shape}, got "
                    f"{tuple(leaf.shape)}"
                )
            if leaf.dtype != rows.dtype and not (cast and leaf.is_floating_point()):
                raise TypeError(
                    f"the cell must return the dtype of z0, {rows.dtype}, got {leaf.dtype}"
                )
        return self._joined(leaves).to(rows.dtype)


def _order(tensor: Tensor, *, batched: bool) -> tuple[int, ...]:
    """The dimensions by decreasing stride; empty if they are in that order or have gaps."""
    if tensor.is_contiguous():
        return ()
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda dim: -strides[dim]))
    dense = tensor.permute(order).is_contiguous() and (order[0] == 0 or not batched)
    return order if dense else ()


def _described(value: State) -> str:
    """A state as a message shows it: by the shapes of its tensors."""
    if isinstance(value, Tensor | torch.Size):
        return str(tuple(value.shape if isinstance(value, Tensor) else value))
    name = type(value).__name__
    if isinstance(value, dict):
        return f"{name}({', '.join(f'{key}={_described(v)}' for key, v in value.items())})"
    return (
        f"{name}({', '.join(map(_described, value))})" if isinstance(value, list | tuple) else name
    )
