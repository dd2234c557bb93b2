"""Scaled and shifted activations."""

import math
from dataclasses import dataclass

from torch import Tensor

from shoal.activations.base import Activation
from shoal.activations.bounds import Evaluated, Smoothness
from shoal.activations.closed_forms import AffineForm, ClosedForm
from shoal.core.checks import real


@dataclass(frozen=True)
class Affine(Activation):
    r"""$x \mapsto s\,\varphi(x) + t$; centring an activation is the case $s = 1$.

    Args:
        activation: The activation $\varphi$ that is composed.
        scale: $s$.
        shift: $t$.

    Example:
        >>> import torch
        >>> from shoal.activations import Affine, Tanh
        >>> Affine(Tanh(), scale=2.0, shift=1.0)(torch.zeros(2))
        tensor([1., 1.])
    """

    activation: Activation
    scale: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.activation, Activation):
            raise TypeError(f"activation must be an Activation, got {self.activation!r}")
        object.__setattr__(self, "scale", real("scale", self.scale))
        object.__setattr__(self, "shift", real("shift", self.shift))

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the function."""
        return self.scale * self.activation.function(x) + self.shift

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative away from the kinks."""
        return self.scale * self.activation.derivative(x)

    @property
    def kink_locations(self) -> tuple[float, ...] | None:
        """The kinks of the composed activation."""
        return self.activation.kink_locations

    @property
    def positively_homogeneous(self) -> bool:
        """Only if the composed activation is and nothing is added to it."""
        return self.shift == 0 and self.activation.positively_homogeneous

    @property
    def panels_of(self) -> Activation:
        """The composed activation, however large the scale and the shift."""
        return self.activation.panels_of

    @property
    def panel_edges(self) -> tuple[float, ...] | None:
        """The edges of the composed activation's panels."""
        return self.activation.panel_edges

    @property
    def lipschitz(self) -> float:
        """The composed activation's Lipschitz constant times the absolute scale."""
        inner = self.activation.lipschitz
        return 0.0 if self.scale == 0 else math.fabs(self.scale) * inner

    def closed_form(self) -> ClosedForm | None:
        """The closed form of the composed activation, scaled and shifted."""
        inner = self.activation.closed_form()
        return None if inner is None else AffineForm(inner, self.scale, self.shift)

    def smoothness(self) -> Smoothness:
        """The smoothness of the composed activation, scaled."""
        return self.activation.smoothness().scaled(self.scale)

    def evaluated(self, x: Tensor) -> Evaluated:
        """The composed activation, scaled and shifted."""
        return self.activation.evaluated(x).affine(self.scale, self.shift)
