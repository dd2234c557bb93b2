"""Cells that compute terms independent of the state once per solve."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from shoal.core.torch_compat import is_called_otherwise, pytree, version
from shoal.equilibrium.state import State


class PreparedCell(nn.Module, ABC):
    """A cell in two parts: a preparation, computed once per solve, and a step, made many times.

    An :class:`Equilibrium` calls ``prepare`` once for each solve, forward and backward together,
    and ``step`` for each evaluation. Gradients pass through both. Products with inputs and weights
    that are made of others, normalized ones say, are worth it. What ``step`` needs is returned by
    ``prepare``, not kept in ``self``, since the equilibrium may be differentiated later.

    Example:
        >>> import torch, shoal
        >>> class Cell(shoal.equilibrium.PreparedCell):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.factor = torch.nn.Parameter(torch.randn(8, 8) / 8)
        ...         self.input = torch.nn.Linear(100, 8)
        ...
        ...     def prepare(self, x):
        ...         return self.input(x), self.factor @ self.factor.t()
        ...
        ...     def step(self, z, injection, weight):
        ...         return torch.tanh(z @ weight + injection)
        >>> layer = shoal.Equilibrium(Cell())
        >>> layer(torch.zeros(5, 8), torch.randn(5, 100)).shape
        torch.Size([5, 8])
    """

    @abstractmethod
    def prepare(self, *inputs: Any, **named: Any) -> tuple[Any, ...]:
        """The arguments of ``step`` besides the state, from the inputs and the parameters."""

    @abstractmethod
    def step(self, z: State, *prepared: Any) -> State:
        """The map, a state like ``z``."""

    def forward(self, z: State, *inputs: Any, **named: Any) -> State:
        """Once through.

        Args:
            z: The state.
            inputs: What ``prepare`` takes.
            named: The same by name.
        """
        return self.step(z, *self.prepare(*inputs, **named))


def prepared_inputs(
    cell: PreparedCell, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    """What the step of a cell takes besides the state, or say why it is not how it is called.

    Args:
        cell: The cell.
        inputs: What its ``prepare`` takes.
        named: The same by name.
    """
    _check(cell)
    leaves = pytree.tree_leaves((inputs, named))
    watched = [t for t in leaves if isinstance(t, Tensor) and not t.is_inference()]
    versions = [version(t) for t in watched]
    prepared = cell.prepare(*inputs, **named)
    if versions != [version(t) for t in watched]:
        raise ValueError(
            "prepare must not change its inputs in place, got a PreparedCell that does; use clone()"
        )
    if not isinstance(prepared, tuple):
        raise TypeError(
            "prepare of a PreparedCell must return a tuple, what step takes besides the state, got "
            f"{type(prepared).__name__}"
        )
    return prepared


def _check(cell: PreparedCell) -> None:
    """See that nothing is left out where its two parts are called instead of the cell."""
    name = type(cell).__name__
    if type(cell).forward is not PreparedCell.forward:
        raise TypeError(
            f"a PreparedCell must be called by prepare and step alone, got {name} with a forward "
            "of its own; derive it from nn.Module, or leave that out"
        )
    if is_called_otherwise(cell):
        raise TypeError(
            f"a PreparedCell must have no hooks and no compile() of its own, got {name} with some, "
            "which would not be called; parametrize its weights "
            "(torch.nn.utils.parametrizations), compile its two methods, or its layers"
        )
