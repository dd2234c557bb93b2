"""The residual networks of Du 2018."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

from shoal.activations import Activation
from shoal.activations.names import ActivationLike, as_activation
from shoal.architectures.base import (
    Architecture,
    biases,
    check_depth,
    one_or_several,
    scale,
    set_checked,
    variance,
)
from shoal.architectures.images import ImageArchitecture, odd, padding
from shoal.architectures.layers import Cell, Layers, Weights
from shoal.gaussian.moments import normalization


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
        activation: $\sigma$, in every layer, or a sequence with one per layer, as in centered
            networks.
        depth: The number $H \geq 1$ of layers, the first one included.
        residual_scale: $s \geq 0$. The paper's is $c_\lambda \lambda^{3/2} < 1$, with
            an unspecified constant $c_\lambda < 1$ of the activation and an eigenvalue
            $\lambda \leq 1$ of the *data*, ``kernels.pair_eigenvalue(x)`` (Assumption 4.1).
        bias_variance: Variance of a bias (group ``"bias<h>"``), which is added to the argument of
            each activation; without biases by default.

    Raises:
        TypeError: If an argument has the wrong type.
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
    bias_variance: float = field(default=0.0, kw_only=True, repr=False)

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
        set_checked(self, depth=check_depth, activation=one_or_several)
        set_checked(self, residual_scale=scale, bias_variance=variance)
        if isinstance(self.activation, tuple):
            count = len(self.activation)
            if count != self.depth:
                raise ValueError(
                    f"activation must be one activation or depth = {self.depth} of them, "
                    f"got {count}"
                )
            if len(set(self.activation)) == 1:
                object.__setattr__(self, "activation", self.activation[0])

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activation of each layer."""
        phi = self.activation
        return phi if isinstance(phi, tuple) else (phi,) * self.depth

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        """A chain of cells with skip connections, but the first, before a fixed readout."""
        return _layers(self.activations, self.residual_scale, self.bias_variance)


@final
@dataclass(frozen=True, repr=False)
class ConvResNet(ImageArchitecture):
    r"""A convolutional residual network with a skip connection around every layer but the first.

    $$x^{(1)} = \sqrt{c_\sigma/m} \, \sigma(W^{(1)} \phi(x)), \qquad
    x^{(h)} = x^{(h-1)} + \frac{s}{H\sqrt{m}} \, \sigma(W^{(h)} \phi(x^{(h-1)})), \quad
    2 \leq h \leq H, \qquad f(x) = \langle a, x^{(H)} \rangle \qquad \text{(Du 2018, Section 2.2)}$$

    where $x$ is an array of channels by pixels, $x^{(h)}$ one of $m$ channels by as many pixels,
    and $\phi$ collects for each pixel the patch centered at it (stride 1);
    $c_\sigma = 1/\mathbb E[\sigma(\xi)^2]$. The $W^{(h)}$ (group ``"layer<h>"``) are standard
    Gaussian; $a$ is fixed, with one Rademacher sign per channel, the same for all its pixels. The
    theory is for inputs of norm 1 and an activation that is Lipschitz with a Lipschitz derivative.
    The number of pixels and of their axes depends on the data.

    Args:
        activation: $\sigma$.
        depth: The number $H \geq 1$ of layers, the first one included.
        patch_size: Side of a patch in pixels, an odd number. For pixels in a row, as in the paper,
            it is the paper's $q$; for images $q$ is its square.
        residual_scale: $s \geq 0$, in the paper $c_\lambda \lambda^{3/2} < 1$; see
            ``ResNet``.
        padding: Values beyond the border: ``"zeros"``, as in the paper, or ``"circular"``, the
            pixels of the opposite side.
        bias_variance: Variance of a bias per channel (group ``"bias<h>"``), which is added to the
            argument of each activation; without biases by default.

    Raises:
        TypeError: If an argument has the wrong type.
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
    bias_variance: float = field(default=0.0, kw_only=True, repr=False)

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
        set_checked(self, activation=as_activation, depth=check_depth, patch_size=odd)
        set_checked(self, residual_scale=scale, bias_variance=variance, padding=padding)

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activation of each layer."""
        return (self.activation,) * self.depth

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        """A chain of cells with skip connections, but the first, before a fixed readout."""
        return _layers(self.activations, self.residual_scale, self.bias_variance)

    @property
    def pooling(self) -> Literal["sum"]:
        """The readout has one sign per channel, for all its pixels."""
        return "sum"

    @property
    def averaged(self) -> bool:
        """False: all weights have unit variance."""
        return False


def _layers(activations: Sequence[Activation], scale: float, bias_variance: float) -> Layers:
    """The first cell is normalized, and all others have a skip connection."""
    cells = []
    for number, sigma in enumerate(activations, start=1):
        first = number == 1
        gain = math.sqrt(normalization(sigma)) if first else scale / len(activations)
        bias = biases(f"bias{number}", bias_variance)
        cells.append(Cell(sigma, Weights(f"layer{number}"), gain, float(not first), bias))
    return Layers(tuple(cells), readout=None)
