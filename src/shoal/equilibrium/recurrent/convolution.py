r"""The recurrent layer of images, $Z \mapsto \varphi(s\,W * Z + U)$."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from shoal.equilibrium.recurrent.layer import Layer

Padding = Literal["zeros", "circular"]

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


@dataclass(frozen=True)
class ConvolutionLayer(Layer):
    r"""What of such a layer is not a tensor: $\varphi$, $s$, and what lies beyond the border."""

    padding: Padding

    def preactivation(self, z: Tensor, injection: Tensor, weight: Tensor) -> Tensor:
        r"""$s\,W * Z + U$, of shape (samples, channels, pixels...)."""
        return torch.add(injection, convolve(z, weight, self.padding), alpha=self.scale)


def convolve(x: Tensor, weight: Tensor, padding: Padding) -> Tensor:
    """A convolution with stride one that keeps the number of pixels, odd along each axis.

    Args:
        x: Images. shape: (samples, channels, pixels...)
        weight: Shape: (channels made, channels, patch...).
        padding: What lies beyond the border.
    """
    reach = weight.shape[2] // 2
    convolution = _CONVOLUTIONS[weight.dim() - 2]
    if padding == "zeros":
        return convolution(x, weight, padding=reach)
    return convolution(padded(x, reach, padding), weight)


def padded(x: Tensor, reach: int, padding: Padding) -> Tensor:
    """Images with so many pixels more on every side."""
    mode = "constant" if padding == "zeros" else "circular"
    return functional.pad(x, (reach, reach) * (x.dim() - 2), mode=mode)
