r"""The recurrent layers $Z \mapsto \varphi(s Z W^\top + U)$ of vectors and images."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from shoal.activations import Activation

Padding = Literal["zeros", "circular"]

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


@dataclass(frozen=True)
class Layer:
    r"""A recurrent layer without its weights: $\varphi$, $s$, and the padding of images."""

    activation: Activation
    scale: float
    padding: Padding = "zeros"

    def preactivation(self, z: Tensor, injection: Tensor, weight: Tensor) -> Tensor:
        r"""$s Z W^\top + U$; for images $s\,W * Z + U$."""
        if weight.dim() == 2:
            return torch.addmm(injection, z, weight.t(), alpha=self.scale)
        return torch.add(injection, convolve(z, weight, self.padding), alpha=self.scale)


@dataclass(frozen=True)
class RecurrentCell:
    """One iteration of a loop of layers, as a function of the state, injections and weights."""

    layers: tuple[Layer, ...]

    def __call__(
        self, z: Tensor, injections: tuple[Tensor, ...], weights: tuple[Tensor, ...]
    ) -> Tensor:
        """The state after all layers.

        Args:
            z: The state.
            injections: The inputs of each layer, of shape (samples, width, ...).
            weights: The weights of each layer.
        """
        return self.states(z, injections, weights)[-1]

    def states(
        self, z: Tensor, injections: tuple[Tensor, ...], weights: tuple[Tensor, ...]
    ) -> list[Tensor]:
        """The state before each layer, and after the last one."""
        states = [z]
        for layer, into, weight in zip(self.layers, injections, weights, strict=True):
            inner = layer.preactivation(states[-1], into, weight)
            states.append(layer.activation.function(inner))
        return states

    def from_zero(self, injections: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> Tensor:
        """The state after all layers from a state of zeros, without a product in the first."""
        z = self.layers[0].activation.function(injections[0])
        return RecurrentCell(self.layers[1:])(z, injections[1:], weights[1:])


def convolve(x: Tensor, weight: Tensor, padding: Padding) -> Tensor:
    """A convolution with stride one that keeps the number of pixels, odd along each axis.

    Args:
        x: Images. shape: (samples, channels, pixels...)
        weight: Shape: (output channels, channels, patch...).
        padding: Values of the pixels beyond the border.
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
