"""DEQs of several activations and one pair of variances, which most experiments have in common."""

from collections.abc import Sequence
from dataclasses import dataclass

import shoal
from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.lab.experiment import Experiment, Point


def by_name(activations: Sequence[Activation]) -> dict[str, Activation]:
    """Activations by the lower-case names of their classes."""
    return {type(activation).__name__.lower(): activation for activation in activations}


def title_of(activation: Activation) -> str:
    """The name of an activation in figures."""
    slope = getattr(activation, "slope", None)
    return type(activation).__name__ + (f" ({slope:g})" if slope is not None else "")


@dataclass(frozen=True)
class DEQs(Experiment):
    r"""An experiment whose points have an ``activation``, the name of that of a DEQ.

    Args:
        activations: Of the DEQs.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
    """

    activations: tuple[Activation, ...] = (shoal.ReLU(), shoal.Tanh())
    recurrent_variance: float = 0.2
    input_variance: float = 0.8

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the activations."""
        return tuple(by_name(self.activations))

    def activation(self, point: Point) -> Activation:
        """The activation of a point."""
        return by_name(self.activations)[str(point["activation"])]

    def title_at(self, point: Point) -> str:
        """The name of a point's activation in figures."""
        return title_of(self.activation(point))

    def deq(self, point: Point) -> DEQ:
        """The DEQ of a point, not centered."""
        return DEQ(self.activation(point), self.recurrent_variance, self.input_variance)
