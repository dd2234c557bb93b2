"""Networks of images of finite width: chains and loops of convolutions."""

import math
from typing import Any, Generic, TypeVar, final

from torch import Tensor

from shoal.activations import Activation
from shoal.architectures import ConvDEQ, ConvNet, ConvResNet, ImageArchitecture
from shoal.networks.chain import ChainNetwork
from shoal.networks.draw import Source
from shoal.networks.gain import ConvolutionNorm, WeightNorm
from shoal.networks.layered import LayeredNetwork, draw_layers
from shoal.networks.loop import LoopNetwork
from shoal.networks.network import NetworkSpec, makes_networks_of
from shoal.networks.recurrent_layers import ConvolutionLayer, convolve, padded

A = TypeVar("A", bound=ImageArchitecture)


class OfImages(LayeredNetwork[A], Generic[A]):
    r"""What networks of images have in common, with pixels along one, two or three axes.

    Weights convolve with stride one, biases are one per channel, and the readout sees the sum or
    the mean of each channel, or all its pixels, divided by the square root of their number.
    """

    @staticmethod
    def draw(spec: NetworkSpec[Any], source: Source) -> dict[str, Tensor]:
        """The initial weights; a fixed readout is Rademacher."""
        pixels = 1 if spec.architecture.pooling else math.prod(spec.pixels)
        return draw_layers(spec, source, (spec.architecture.patch_size,) * spec.pixel_axes, pixels)

    def check_input(self, x: Tensor, name: str = "x") -> Tensor:
        """Return the inputs if they fit the network, or say why not."""
        x = super().check_input(x, name)
        self.architecture.check_pixels(name, tuple(x.shape))
        if self.spec.pixels and tuple(x.shape[2:]) != self.spec.pixels:
            raise ValueError(
                f"{name} must have the network's pixels, {self.spec.pixels}, got {tuple(x.shape)}"
            )
        return x

    def patches(self, x: Tensor) -> Tensor:
        """What a layer sees at each pixel; shape (samples, pixels, channels * patch)."""
        size, axes = self.architecture.patch_size, self.spec.pixel_axes
        seen = padded(x, size // 2, self.architecture.padding)
        for axis in range(2, 2 + axes):
            seen = seen.unfold(axis, size, 1)
        pixels_last = seen.movedim(1, 1 + axes).flatten(1 + axes)
        return pixels_last.flatten(1, axes)

    def _linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return convolve(x, weight, self.architecture.padding)

    def _seen(self, x: Tensor) -> Tensor:
        return self.patches(x)

    def _pooled(self, x: Tensor) -> Tensor:
        pixels, pooling = x.flatten(2), self.architecture.pooling
        if pooling is None:
            return pixels.flatten(1) / math.sqrt(pixels.shape[2])
        return pixels.sum(2) if pooling == "sum" else pixels.mean(2)


@final
@makes_networks_of(ConvNet, ConvResNet)
class ConvolutionalChain(OfImages[A], ChainNetwork[A], Generic[A]):
    r"""A chain of convolutions, such as a ``ConvNet`` or a ``ConvResNet``.

    $x \mapsto e\,x + k\,m^{-1/2}\,\varphi(\sqrt v\,W * x + b)$ in each cell.
    """


@final
@makes_networks_of(ConvDEQ)
class ConvolutionalLoop(OfImages[Any], LoopNetwork[Any]):
    r"""An equilibrium of convolutions, such as a ``ConvDEQ``.

    $z = m^{-1/2}\varphi(\sigma_a A * z + \sigma_b B * x + b)$, solved for $Z = \sqrt m z$.
    """

    def _recurrent(self, activation: Activation, scale: float) -> ConvolutionLayer:
        return ConvolutionLayer(activation, scale, self.architecture.padding)

    def _norm(self) -> WeightNorm:
        positions = self.architecture.patch_size**self.spec.pixel_axes
        return ConvolutionNorm(self.architecture.padding, positions, self.spec.pixels)
