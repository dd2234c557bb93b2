"""The convolutional residual network of Du 2018."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

from shoal.activations import Activation
from shoal.activations.names import ActivationLike, as_activation
from shoal.architectures.base import (
    check_depth,
    residual_layers,
    scale_of_data,
)
from shoal.architectures.images import ImageArchitecture, checked_patch_size
from shoal.architectures.layers import Layers
from shoal.core import checks
from shoal.core.fields import later


@final
@dataclass(frozen=True, repr=False)
class ConvResNet(ImageArchitecture):
    r"""A convolutional residual network with a skip connection around every layer but the first.

    $$x^{(1)} = \sqrt{c_\sigma/m} \, \sigma(W^{(1)} \phi(x)), \qquad
    x^{(h)} = x^{(h-1)} + \frac{s}{H\sqrt{m}} \, \sigma(W^{(h)} \phi(x^{(h-1)})), \quad
    2 \leq h \leq H, \qquad f(x) = \langle a, x^{(H)} \rangle \qquad \text{(Du 2018, Section 2.2)}$$

    where $x$ is an array of channels by pixels, $x^{(h)}$ one of $m$ channels by
    as many pixels, and $\phi$ collects for each pixel the patch centered at it (stride 1);
    $c_\sigma = 1/\mathbb E[\sigma(\xi)^2]$. The $W^{(h)}$ (group ``"layer<h>"``) are
    standard Gaussian; $a$ is fixed, with one Rademacher sign per channel, the same for all
    its pixels. The theory is for inputs of norm 1 and an activation that is Lipschitz with a
    Lipschitz derivative. How many pixels, along how many axes, is a matter of the data.

    Args:
        activation: $\sigma$.
        depth: The number $H \geq 1$ of layers, the first one included.
        patch_size: The odd side of a patch in pixels. For pixels in a row, as in the paper, it is
            the paper's $q$; for images $q$ is its square.
        residual_scale: $s \geq 0$, in the paper $c_\lambda \lambda^{3/2} < 1$; see
            ``ResNet``.
        padding: What lies beyond the border: ``"zeros"``, as in the paper, or ``"circular"``, the
            pixels of the opposite side.
        bias_variance: The variance of a bias per channel (group ``"bias<h>"``) that is added to
            what each activation sees; without biases by default.

    Raises:
        TypeError: If an argument is not of its kind.
        ValueError: If ``depth`` is not between 1 and 10⁵, ``patch_size`` not positive and odd,
            ``residual_scale`` negative, infinite or NaN, or ``padding`` unknown.

    Example:
        >>> from shoal.activations import Softplus
        >>> ConvResNet(Softplus(), depth=2).parameter_groups
        ('layer1', 'layer2')
    """

    activation: Activation
    depth: int
    patch_size: int = field(default=3, kw_only=True)
    residual_scale: float = field(default=1.0, kw_only=True)
    padding: Literal["zeros", "circular"] = field(default="zeros", kw_only=True)
    bias_variance: float = later(0.0, kw_only=True)

    if TYPE_CHECKING:  # names and modules are activations too

        def __init__(
            self,
            activation: ActivationLike,
            depth: int,
            *,
            patch_size: int = 3,
            residual_scale: float = 1.0,
            padding: Literal["zeros", "circular"] = "zeros",
            bias_variance: float = 0.0,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Check the fields."""
        object.__setattr__(self, "activation", as_activation("activation", self.activation))
        object.__setattr__(self, "depth", check_depth(self.depth))
        patch_size = checked_patch_size("patch_size", self.patch_size)
        object.__setattr__(self, "patch_size", patch_size)
        for name in ("residual_scale", "bias_variance"):
            object.__setattr__(self, name, checks.real(name, getattr(self, name), at_least=0))
        checks.one_of("padding", self.padding, ("zeros", "circular"))

    @classmethod
    def du2018(
        cls,
        activation: Activation,
        depth: int,
        *,
        eigenvalue: float,
        constant: float,
        patch_size: int = 3,
    ) -> "ConvResNet":
        r"""Return the network of Du 2018, whose residual scale is $c_\lambda \lambda^{3/2}$.

        Args:
            activation: $\sigma$.
            depth: $H$.
            eigenvalue: $\lambda$, from 0 to 1: ``kernels.pair_eigenvalue(x, architecture=...)`` for
                given images, which is zero unless patches have twice as many entries as images
                have pixels.
            constant: $c_\lambda$, between 0 and 1; see ``ResNet.du2018``.
            patch_size: The odd side of a patch in pixels.

        Raises:
            TypeError: If an argument is not of its kind.
            ValueError: If an argument is out of its range.

        Example:
            >>> from shoal.activations import Softplus
            >>> ConvResNet.du2018(Softplus(), 2, eigenvalue=0.25, constant=0.4).residual_scale
            0.05
        """
        scale = scale_of_data(eigenvalue, constant)
        return cls(activation, depth, patch_size=patch_size, residual_scale=scale)

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activation of each layer."""
        return (self.activation,) * self.depth

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        """A chain of cells with skip connections, but the first, before a fixed readout."""
        return residual_layers(self.activations, self.residual_scale, self.bias_variance)

    @property
    def pooling(self) -> Literal["sum"]:
        """The readout has one sign per channel, for all its pixels."""
        return "sum"

    @property
    def averaged(self) -> bool:
        """False: all weights have unit variance."""
        return False
