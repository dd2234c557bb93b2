"""The residual network of Du 2018."""

from dataclasses import dataclass, field
from typing import final

from shoal import checks
from shoal.activations import Activation
from shoal.architectures.base import Architecture, check_activation, layer_groups

__all__ = ["ResNet"]


@final
@dataclass(frozen=True)
class ResNet(Architecture):
    r"""A residual network with a skip connection around every layer but the first.

    $$x^{(1)} = \sqrt{c_\sigma/m} \, \sigma(W^{(1)} x), \qquad
    x^{(h)} = x^{(h-1)} + \frac{s}{H\sqrt{m}} \, \sigma(W^{(h)} x^{(h-1)}), \quad
    2 \leq h \leq H, \qquad f(x) = a^\top x^{(H)} \qquad \text{(Du 2018, Eq. (3))}$$

    with $c_\sigma = 1/\mathbb E[\sigma(\xi)^2]$, standard Gaussian $W^{(h)}$ (group
    ``"layer<h>"``) and a fixed Rademacher $a$. The theory is for inputs of norm 1 and an
    activation that is Lipschitz with a Lipschitz derivative.

    Args:
        activation: $\sigma$.
        depth: The number $H \geq 1$ of layers, the first one included.
        residual_scale: $s \geq 0$. The paper's is $c_\lambda \lambda^{3/2} < 1$, with
            an unspecified constant $c_\lambda < 1$ of the activation and an eigenvalue
            $\lambda \leq 1$ of the *data* (Assumption 4.1); only their product is part of
            the network.

    Raises:
        TypeError: If an argument is not of its kind.
        ValueError: If ``depth`` is not positive or ``residual_scale`` negative, infinite or NaN.

    Example:
        >>> from shoal.activations import Softplus
        >>> ResNet(Softplus(), depth=3, residual_scale=0.5).parameter_groups
        ('layer1', 'layer2', 'layer3')
    """

    activation: Activation
    depth: int
    residual_scale: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        check_activation("activation", self.activation)
        object.__setattr__(self, "depth", checks.integer("depth", self.depth, at_least=1))
        scale = checks.real("residual_scale", self.residual_scale, at_least=0)
        object.__setattr__(self, "residual_scale", scale)

    @property
    def parameter_groups(self) -> tuple[str, ...]:
        """Each layer's weights; the readout is fixed."""
        return layer_groups(self.depth)
