"""What an activation needs to become a part of an exported program."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from shoal.activations.base import Activation
    from shoal.activations.piecewise_polynomial import PiecewisePolynomial

__all__ = ["Program"]


class Program(Protocol):
    """A Python module in the making, which imports ``math``, ``torch`` and ``nn`` of torch."""

    def expression(self, phi: "Activation") -> str:
        """The source of another activation, an expression in ``x``."""

    def need(self, helper: str) -> None:
        """Have the source of a function or class in the module, once."""

    def table(self, phi: "PiecewisePolynomial") -> str:
        """The same as ``expression``, by a table that is stored with the weights."""
