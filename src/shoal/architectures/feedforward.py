"""Explicit networks without skip connections: a chain of layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

from shoal.activations import Activation
from shoal.activations.names import ActivationLike, as_activation
from shoal.architectures.base import (
    Architecture,
    as_activations,
    biases,
    check_depth,
    set_checked,
    variance,
)
from shoal.architectures.images import ConvolutionalArchitecture, odd, padding, pooling
from shoal.architectures.layers import Cell, Layers, Weights
from shoal.core.checks import flag
from shoal.gaussian.moments import normalization


@final
@dataclass(frozen=True, repr=False)
class FullyConnected(Architecture):
    r"""A fully connected network of any depth, with one activation per layer.

    $$x^{(l)} = m_l^{-1/2} \, \sigma_l(W_l x^{(l-1)}), \quad l = 1, \dots, L, \qquad
    f(x) = a^\top x^{(L)} \qquad \text{(Ling 2024, Definition 3.6)}$$

    with $x^{(0)} = x$ and independent entries of mean zero and unit variance in $W_l$ (group
    ``"layer<l>"``) and $a$ (``"readout"``). There are no variances: a factor on $W_{l+1}$ is
    equivalent to one on $\sigma_l$ (on the inputs for $l = 0$), with the same function and the same
    NTK.

    Args:
        activations: $\sigma_1, \dots, \sigma_L$, from the input to the output; any
            iterable, kept as a tuple.
        normalized: Whether each layer is multiplied by $\sqrt{c_{\sigma_l}}$, where
            $c_\sigma = 1/\mathbb E[\sigma(\xi)^2]$ for a standard Gaussian $\xi$, so that inputs of
            norm 1 keep their norm on average (Du 2018).
        fixed_readout: Whether $a$ has Rademacher entries and is never trained (Du 2018).
        norm_gated: Whether the network receives only the direction of its input, and its output is
            multiplied by the norm: $f(x) = \|x\| \, g(x / \|x\|)$, with $g$ the network above. Both
            kernels are then $\|x\| \|x'\|$ times a function of the angle, for all activations.
        bias_variance: Variance of a bias $b_l$ (group ``"bias<l>"``), which is added to the
            argument of each activation; without biases by default.

    Raises:
        TypeError: If ``activations`` is not a sequence of activations or an option not a bool.
        ValueError: If ``activations`` is empty, or ``bias_variance`` negative, infinite or NaN.

    Example:
        >>> from shoal.activations import ReLU, Tanh
        >>> net = FullyConnected((ReLU(), Tanh()))
        >>> net.depth
        2
        >>> net.parameter_groups
        ('readout', 'layer1', 'layer2')
    """

    activations: tuple[Activation, ...]
    normalized: bool = field(default=False, kw_only=True)
    fixed_readout: bool = field(default=False, kw_only=True)
    norm_gated: bool = field(default=False, kw_only=True)
    bias_variance: float = field(default=0.0, kw_only=True, repr=False)

    if TYPE_CHECKING:  # names and modules are activations too

        def __init__(
            self,
            activations: Sequence[ActivationLike],
            *,
            normalized: bool = False,
            fixed_readout: bool = False,
            norm_gated: bool = False,
            bias_variance: float = 0.0,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Check the fields, and make a tuple of the activations."""
        set_checked(self, activations=as_activations, bias_variance=variance)
        set_checked(self, normalized=flag, fixed_readout=flag, norm_gated=flag)

    @classmethod
    def du2018(cls, activation: Activation, depth: int) -> "FullyConnected":
        r"""Return the fully connected network of Du 2018.

        $$x^{(h)} = \sqrt{c_\sigma/m} \, \sigma(W^{(h)} x^{(h-1)}), \quad h = 1, \dots, H, \qquad
        f(x) = a^\top x^{(H)} \qquad \text{(Du 2018, Eq. (2))}$$

        with a fixed Rademacher $a$. The theory is for inputs of norm 1 and an activation
        that is Lipschitz with a Lipschitz derivative.

        Args:
            activation: $\sigma$, in every layer.
            depth: The number $H \geq 1$ of layers.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If ``depth`` is not between 1 and 10⁵.

        Example:
            >>> from shoal.activations import Softplus
            >>> FullyConnected.du2018(Softplus(), depth=3).parameter_groups
            ('layer1', 'layer2', 'layer3')
        """
        depth = check_depth("depth", depth)
        return cls(
            (as_activation("activation", activation),) * depth, normalized=True, fixed_readout=True
        )

    @property
    def depth(self) -> int:
        """The number of hidden layers."""
        return len(self.activations)

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        """A chain of as many cells as there are activations."""
        cells = _chain(self.activations, self.normalized, self.bias_variance)
        readout = None if self.fixed_readout else Weights("readout")
        return Layers(cells, readout, gated=self.norm_gated)


@final
@dataclass(frozen=True, repr=False)
class ConvNet(ConvolutionalArchitecture):
    r"""A convolutional network of any depth, with one activation per layer.

    $$x^{(l)} = m^{-1/2} \sigma_l(W_l * x^{(l-1)} + b_l), \quad l = 1, \dots, L$$

    The convolutional counterpart of ``FullyConnected``. The weights $W_l$ (group ``"layer<l>"``)
    convolve with stride one and are divided by the root of the number of pixels of a patch. The
    readout (``"readout"``) acts on all pixels, or on the mean of each channel. With circular
    padding or patches of one pixel, an image of one pixel is a vector.

    Args:
        activations: $\sigma_1, \dots, \sigma_L$, from the input to the output; any iterable, kept
            as a tuple.
        kernel_size: Side of a patch in pixels, an odd number.
        pooling: ``None`` for a readout of all pixels, ``"average"`` for a readout of each channel's
            mean.
        padding: Values beyond the border: ``"zeros"``, or ``"circular"``, the pixels of the
            opposite side.
        normalized: Whether each layer is multiplied by $\sqrt{c_{\sigma_l}}$, as in
            ``FullyConnected``.
        bias_variance: The variance of a bias per channel (group ``"bias<l>"``); without biases by
            default.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If there is no activation, ``kernel_size`` is not positive and odd, ``pooling``
            or ``padding`` unknown, or ``bias_variance`` negative, infinite or NaN.

    Example:
        >>> import torch, shoal
        >>> net = ConvNet([shoal.activations.ReLU()] * 3, normalized=True, padding="circular")
        >>> images = torch.ones(1, 1, 4, 4, dtype=torch.float64)
        >>> round(float(shoal.kernel(net, images).ntk), 9)
        4.0
    """

    activations: tuple[Activation, ...]
    kernel_size: int = field(default=3, kw_only=True)
    pooling: Literal["average"] | None = field(default=None, kw_only=True)
    padding: Literal["zeros", "circular"] = field(default="zeros", kw_only=True)
    normalized: bool = field(default=False, kw_only=True)
    bias_variance: float = field(default=0.0, kw_only=True)

    if TYPE_CHECKING:  # names and modules are activations too

        def __init__(
            self,
            activations: Sequence[ActivationLike],
            *,
            kernel_size: int = 3,
            pooling: Literal["average"] | None = None,
            padding: Literal["zeros", "circular"] = "zeros",
            normalized: bool = False,
            bias_variance: float = 0.0,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Check the fields, and make a tuple of the activations."""
        set_checked(self, activations=as_activations, normalized=flag, bias_variance=variance)
        set_checked(self, kernel_size=odd, pooling=pooling, padding=padding)

    @property
    def depth(self) -> int:
        """The number of hidden layers."""
        return len(self.activations)

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        """A chain of as many cells as there are activations."""
        return Layers(_chain(self.activations, self.normalized, self.bias_variance))


def _chain(
    activations: Sequence[Activation], normalized: bool, bias_variance: float
) -> tuple[Cell, ...]:
    cells = []
    for number, sigma in enumerate(activations, start=1):
        gain = math.sqrt(normalization(sigma)) if normalized else 1.0
        bias = biases(f"bias{number}", bias_variance)
        cells.append(Cell(sigma, Weights(f"layer{number}"), gain, bias=bias))
    return tuple(cells)
