"""The residual network of Du 2018."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from shoal.activations import Activation
from shoal.activations.names import ActivationLike
from shoal.architectures.base import (
    Architecture,
    check_depth,
    one_or_several,
    residual_layers,
    scale_of_data,
)
from shoal.architectures.layers import Layers
from shoal.core import checks
from shoal.core.fields import later


@final
@dataclass(frozen=True, repr=False)
class ResNet(Architecture):
    r"""A residual network with a skip connection around every layer but the first.

    $$x^{(1)} = \sqrt{c_\sigma/m} \, \sigma(W^{(1)} x), \qquad
    x^{(h)} = x^{(h-1)} + \frac{s}{H\sqrt{m}} \, \sigma(W^{(h)} x^{(h-1)}), \quad
    2 \leq h \leq H, \qquad f(x) = a^\top x^{(H)} \qquad \text{(Du 2018, Eq. (3))}$$

    with $c_\sigma = 1/\mathbb E[\sigma(\xi)^2]$ in the first layer only, a standard Gaussian
    $W^{(h)}$ (group ``"layer<h>"``) and a fixed Rademacher $a$. The theory is for inputs of norm 1
    and an activation that is Lipschitz with a Lipschitz derivative.

    Args:
        activation: $\sigma$, in every layer, or a sequence of as many as there are layers: centered
            networks have one for each.
        depth: The number $H \geq 1$ of layers, the first one included.
        residual_scale: $s \geq 0$. The paper's is $c_\lambda \lambda^{3/2} < 1$, with
            an unspecified constant $c_\lambda < 1$ of the activation and an eigenvalue
            $\lambda \leq 1$ of the *data* (Assumption 4.1); only their product is part of
            the network. See :meth:`du2018`.
        bias_variance: The variance of a bias (group ``"bias<h>"``) that is added to what each
            activation sees; without biases by default.

    Raises:
        TypeError: If an argument is not of its kind.
        ValueError: If ``depth`` is not between 1 and 10⁵, ``activation`` a sequence of another
            length, or ``residual_scale`` negative, infinite or NaN.

    Example:
        >>> from shoal.activations import Softplus
        >>> ResNet(Softplus(), depth=3, residual_scale=0.5).parameter_groups
        ('layer1', 'layer2', 'layer3')
    """

    activation: Activation | tuple[Activation, ...]
    depth: int
    residual_scale: float = field(default=1.0, kw_only=True)
    bias_variance: float = later(0.0, kw_only=True)

    if TYPE_CHECKING:  # names and modules are activations too

        def __init__(
            self,
            activation: ActivationLike | Sequence[ActivationLike],
            depth: int,
            *,
            residual_scale: float = 1.0,
            bias_variance: float = 0.0,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Check the fields, and make a tuple of several activations."""
        object.__setattr__(self, "depth", check_depth(self.depth))
        object.__setattr__(self, "activation", _checked_activations(self.activation, self.depth))
        for name in ("residual_scale", "bias_variance"):
            object.__setattr__(self, name, checks.real(name, getattr(self, name), at_least=0))

    @classmethod
    def du2018(
        cls, activation: Activation, depth: int, *, eigenvalue: float, constant: float
    ) -> "ResNet":
        r"""Return the network of Du 2018, whose residual scale is $c_\lambda \lambda^{3/2}$.

        Args:
            activation: $\sigma$.
            depth: $H$.
            eigenvalue: $\lambda$, from 0 to 1: ``kernels.pair_eigenvalue(x)`` for given data $x$.
            constant: $c_\lambda$, between 0 and 1. The paper says no more of it than that it is
                small enough and depends on $\sigma$ alone.

        Raises:
            TypeError: If an argument is not of its kind.
            ValueError: If an argument is out of its range.

        Example:
            >>> from shoal.activations import Softplus
            >>> ResNet.du2018(Softplus(), 2, eigenvalue=0.25, constant=0.4)
            ResNet(activation=Softplus(), depth=2, residual_scale=0.05)
        """
        return cls(activation, depth, residual_scale=scale_of_data(eigenvalue, constant))

    @property
    def activations(self) -> tuple[Activation, ...]:
        r"""The activation of each layer."""
        phi = self.activation
        return phi if isinstance(phi, tuple) else (phi,) * self.depth

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        """A chain of cells with skip connections, but the first, before a fixed readout."""
        return residual_layers(self.activations, self.residual_scale, self.bias_variance)


def _checked_activations(value: object, depth: int) -> Activation | tuple[Activation, ...]:
    """One activation, also if all are the same, or as many as there are layers."""
    several = one_or_several(value)
    if isinstance(several, Activation):
        return several
    if len(several) != depth:
        raise ValueError(
            f"activation must be one activation or depth = {depth} of them, got {len(several)}"
        )
    return several[0] if all(phi == several[0] for phi in several) else several
