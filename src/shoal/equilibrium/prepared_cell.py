"""Cells that do once per solve what does not depend on the state."""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

from shoal.equilibrium.solvers.state import State


class PreparedCell(nn.Module, ABC):
    """A cell in two parts: what is computed once per solve, and the step that is made many times.

    An :class:`Equilibrium` calls ``prepare`` once for each solve, forward and backward together,
    and ``step`` for each evaluation. Gradients pass through both. Products with inputs and weights
    that are made of others, normalized ones say, are worth it.

    Example:
        >>> import torch, shoal
        >>> class Cell(shoal.PreparedCell):
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
        """What ``step`` takes besides the state, of the inputs and the parameters."""

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
