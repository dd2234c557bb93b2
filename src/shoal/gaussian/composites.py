"""Activations made of another one, for integrating its derivatives and squares."""

from dataclasses import dataclass

from torch import Tensor

from shoal.activations import Activation

__all__ = ["Derivative", "Square"]


@dataclass(frozen=True)
class Square(Activation):
    """The square of an activation."""

    root: Activation

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the square."""
        return self.root.derivative(x, 0) ** 2

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative of the square."""
        return 2 * self.root.derivative(x, 0) * self.root.derivative(x, 1)

    @property
    def kink_locations(self) -> tuple[float, ...] | None:
        """Those of the root."""
        return self.root.kink_locations

    @property
    def panel_edges(self) -> tuple[float, ...] | None:
        """Those of the root."""
        return self.root.panel_edges


@dataclass(frozen=True)
class Derivative(Activation):
    """The pointwise derivative of an activation, of some order."""

    primitive: Activation
    order: int

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the derivative."""
        return self.primitive.derivative(x, self.order)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the next derivative."""
        return self.primitive.derivative(x, self.order + 1)

    @property
    def kink_locations(self) -> tuple[float, ...] | None:
        """Those of the primitive."""
        return self.primitive.kink_locations

    @property
    def panel_edges(self) -> tuple[float, ...] | None:
        """Those of the primitive."""
        return self.primitive.panel_edges
