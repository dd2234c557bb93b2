"""The convolutional deep equilibrium model."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

from shoal.activations import Activation
from shoal.activations.names import ActivationLike, as_activation
from shoal.architectures.base import ImplicitArchitecture, biases, set_checked, variance
from shoal.architectures.images import ConvolutionalArchitecture, odd, padding, pooling
from shoal.architectures.layers import Cell, Layers, Weights


@final
@dataclass(frozen=True, repr=False)
class ConvDEQ(ImplicitArchitecture, ConvolutionalArchitecture):
    r"""A deep equilibrium model of images, whose weights are convolutions.

    $$z = m^{-1/2} \phi(\sigma_a A * z + \sigma_b B * x + b)$$

    with $m$ channels of as many pixels as the image $x$ has. $A$ (group ``"recurrent"``) and $B$
    (``"input"``) convolve with stride one; their entries are independent, of mean zero and a
    variance of one divided by the number of pixels of a patch. An image of one color with circular
    padding then corresponds to an input vector of a ``DEQ``. The readout (``"readout"``) has
    entries of variance one divided by the number of pixels, for each channel and pixel, or of
    variance one for the mean of each channel. (Networks have parameters of unit variance, which are
    divided by these roots where they act.) The number of pixels and of their axes depends on the
    data.

    Args:
        activation: $\phi$.
        recurrent_variance: $\sigma_a^2 \geq 0$.
        input_variance: $\sigma_b^2 \geq 0$.
        kernel_size: Side of a patch in pixels, an odd number.
        pooling: ``None`` for a readout of all pixels, ``"average"`` for a readout of each channel's
            mean. Without pooling, kernels need only pairs of equal pixels; with it, all pairs.
        padding: Values beyond the border: ``"zeros"``, or ``"circular"``, the pixels of the
            opposite side.
        bias_variance: The variance of a bias per channel (group ``"bias"``); without biases by
            default.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If a variance is negative, infinite or NaN, ``kernel_size`` not positive and
            odd, or ``pooling`` or ``padding`` unknown.

    Example:
        >>> import torch, shoal
        >>> images = torch.ones(1, 1, 3, 3, dtype=torch.float64)
        >>> net = ConvDEQ(shoal.activations.ReLU(), 0.2, 0.8, padding="circular")
        >>> shoal.kernel(net, images).ck
        tensor([[0.4444]], dtype=torch.float64)
    """

    activation: Activation
    recurrent_variance: float
    input_variance: float
    kernel_size: int = field(default=3, kw_only=True)
    pooling: Literal["average"] | None = field(default=None, kw_only=True)
    padding: Literal["zeros", "circular"] = field(default="zeros", kw_only=True)
    bias_variance: float = field(default=0.0, kw_only=True)

    if TYPE_CHECKING:  # names and modules are activations too

        def __init__(
            self,
            activation: ActivationLike,
            recurrent_variance: float,
            input_variance: float,
            *,
            kernel_size: int = 3,
            pooling: Literal["average"] | None = None,
            padding: Literal["zeros", "circular"] = "zeros",
            bias_variance: float = 0.0,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Check the fields."""
        set_checked(self, activation=as_activation, recurrent_variance=variance)
        set_checked(self, input_variance=variance, bias_variance=variance)
        set_checked(self, kernel_size=odd, pooling=pooling, padding=padding)

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        """A loop of one cell."""
        recurrent = Weights("recurrent", self.recurrent_variance, field="recurrent_variance")
        cell = Cell(self.activation, recurrent, bias=biases("bias", self.bias_variance))
        injection = Weights("input", self.input_variance, field="input_variance")
        return Layers((cell,), injection=injection)
