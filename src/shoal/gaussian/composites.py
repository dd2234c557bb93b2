"""Activations made of another one, for integrating its derivatives and squares."""

from dataclasses import dataclass

from torch import Tensor

from shoal.activations import Activation


@dataclass(frozen=True)
class _Composite(Activation):
    """Made of another activation, and smooth where that is."""

    inner: Activation

    @property
    def panels_of(self) -> Activation:
        """The composed activation, whose panels resolve it."""
        return self.inner.panels_of


@dataclass(frozen=True)
class Square(_Composite):
    """The square of an activation."""

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the square."""
        return self.inner.derivative(x, 0) ** 2

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative of the square."""
        return 2 * self.inner.derivative(x, 0) * self.inner.derivative(x, 1)


@dataclass(frozen=True)
class Derivative(_Composite):
    """The pointwise derivative of an activation, of some order."""

    order: int

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the derivative."""
        return self.inner.derivative(x, self.order)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the next derivative."""
        return self.inner.derivative(x, self.order + 1)
