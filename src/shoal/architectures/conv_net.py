"""Explicit convolutional networks without skip connections."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

from shoal.activations import Activation
from shoal.activations.names import ActivationLike
from shoal.architectures.fully_connected import FullyConnected
from shoal.architectures.images import ConvolutionalArchitecture
from shoal.architectures.layers import Layers
from shoal.core.checks import flag


@final
@dataclass(frozen=True, repr=False)
class ConvNet(ConvolutionalArchitecture):
    r"""A convolutional network of any depth, with one activation per layer.

    $$x^{(l)} = m^{-1/2} \sigma_l(W_l * x^{(l-1)} + b_l), \quad l = 1, \dots, L$$

    It is to a ``FullyConnected`` network what a ``ConvDEQ`` is to a ``DEQ``: the weights $W_l$
    (group ``"layer<l>"``) convolve with stride one and are divided by the root of the number of
    pixels of a patch, and the readout (``"readout"``) sees all pixels, or the mean of each channel.
    Images of one pixel are vectors, if patches have one pixel or padding is circular.

    Args:
        activations: $\sigma_1, \dots, \sigma_L$, from the input to the output; any iterable, kept
            as a tuple.
        kernel_size: The odd side of a patch in pixels.
        pooling: ``None`` for a readout of all pixels, ``"average"`` for one of each channel's mean.
        padding: What lies beyond the border: ``"zeros"``, or ``"circular"``, the pixels of the
            opposite side.
        normalized: Whether each layer is multiplied by $\sqrt{c_{\sigma_l}}$, as in
            ``FullyConnected``.
        bias_variance: The variance of a bias per channel (group ``"bias<l>"``); without biases by
            default.

    Raises:
        TypeError: If an argument is not of its kind.
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
        flag("normalized", self.normalized)
        at_each_pixel = self._at_each_pixel()
        object.__setattr__(self, "activations", at_each_pixel.activations)
        object.__setattr__(self, "bias_variance", at_each_pixel.bias_variance)
        self._check_image_fields()

    @property
    def depth(self) -> int:
        """The number of hidden layers."""
        return len(self.activations)

    def layers(self, width: int | None = None) -> Layers:
        """A chain of as many cells as there are activations."""
        return self._at_each_pixel().layers(width)

    def _at_each_pixel(self) -> FullyConnected:
        return FullyConnected(
            self.activations, normalized=self.normalized, bias_variance=self.bias_variance
        )
