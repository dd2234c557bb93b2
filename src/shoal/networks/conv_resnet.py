"""Convolutional residual networks of finite width."""

from typing import Any, final

import torch
from torch import Tensor

from shoal.architectures import ConvResNet
from shoal.networks.chain import ChainNetwork
from shoal.networks.draw import Source
from shoal.networks.layered import draw_layers
from shoal.networks.network import NetworkSpec

__all__ = ["ConvResNetwork"]

_CONVOLUTIONS = {
    1: torch.nn.functional.conv1d,
    2: torch.nn.functional.conv2d,
    3: torch.nn.functional.conv3d,
}


@final
class ConvResNetwork(ChainNetwork[ConvResNet]):
    r"""A convolutional residual network on pixels along one, two or three axes.

    $x^{(1)} = \sqrt{c_\sigma/m}\,\sigma(W^{(1)} * x)$ and
    $x^{(h)} = x^{(h-1)} + s/(H\sqrt m)\,\sigma(W^{(h)} * x^{(h-1)})$, where $*$ convolves with
    stride one; biases are one per channel, and the readout has one sign per channel, for all its
    pixels (Du 2018, Section 2.2).
    """

    @staticmethod
    def draw(spec: NetworkSpec[Any], source: Source) -> dict[str, Tensor]:
        """The initial weights; the readout is Rademacher."""
        return draw_layers(spec, source, (spec.architecture.patch_size,) * spec.pixel_axes)

    def check_input(self, x: Tensor, name: str = "x") -> Tensor:
        """Return the inputs if they fit the network, or say why not."""
        x = super().check_input(x, name)
        self.architecture.check_pixels(name, tuple(x.shape))
        return x

    def patches(self, x: Tensor) -> Tensor:
        """What a layer sees at each pixel; shape (samples, pixels, channels * patch)."""
        padded, axes = self._pad(x), self.spec.pixel_axes
        for axis in range(2, 2 + axes):
            padded = padded.unfold(axis, self.architecture.patch_size, 1)
        pixels_last = padded.movedim(1, 1 + axes).flatten(1 + axes)
        return pixels_last.flatten(1, axes)

    def _linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return _CONVOLUTIONS[self.spec.pixel_axes](self._pad(x), weight)

    def _seen(self, x: Tensor) -> Tensor:
        return self.patches(x)

    def _pooled(self, x: Tensor) -> Tensor:
        return x.flatten(2).sum(2)

    def _pad(self, x: Tensor) -> Tensor:
        reach = self.architecture.patch_size // 2
        mode = "constant" if self.architecture.padding == "zeros" else "circular"
        return torch.nn.functional.pad(x, (reach, reach) * self.spec.pixel_axes, mode=mode)
