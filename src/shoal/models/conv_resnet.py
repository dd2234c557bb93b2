"""Convolutional residual networks of finite width."""

import math
from typing import final

import torch
from torch import Tensor

from shoal.architectures import ConvResNet
from shoal.gaussian.moments import normalization
from shoal.models.draw import Source
from shoal.models.network import LinearMap, Network, NetworkSpec, Trace

__all__ = ["ConvResNetwork", "draw_conv_resnet"]

_CONVOLUTIONS = {
    1: torch.nn.functional.conv1d,
    2: torch.nn.functional.conv2d,
    3: torch.nn.functional.conv3d,
}


@final
class ConvResNetwork(Network[ConvResNet]):
    r"""A convolutional residual network on pixels along one, two or three axes.

    $x^{(1)} = \sqrt{c_\sigma/m}\,\sigma(W^{(1)} * x)$ and
    $x^{(h)} = x^{(h-1)} + s/(H\sqrt m)\,\sigma(W^{(h)} * x^{(h-1)})$, where $*$ convolves with
    stride one; the readout has one sign per channel, for all its pixels (Du 2018, Section 2.2).
    """

    readout: Tensor

    def _forward(self, x: Tensor) -> Tensor:
        return self._trace(x, patches=False).output

    def check_input(self, x: Tensor, name: str = "x") -> Tensor:
        """Return the inputs if they fit the network, or say why not."""
        x = super().check_input(x, name)
        self.architecture.check_pixels(name, tuple(x.shape))
        return x

    def trace(self, x: Tensor) -> Trace:
        """A pass that keeps each layer's patches and what they become."""
        return self._trace(self.check_input(x).detach().requires_grad_(), patches=True)

    def _trace(self, x: Tensor, *, patches: bool) -> Trace:
        architecture, width = self.architecture, self.spec.width
        sigma = architecture.activation
        first = math.sqrt(normalization(sigma) / width)
        residual = architecture.residual_scale / (architecture.depth * math.sqrt(width))
        maps = {}
        for layer in range(1, architecture.depth + 1):
            name = f"layer{layer}"
            padded = self._pad(x)
            inner = _CONVOLUTIONS[self.spec.pixel_axes](padded, self.get_parameter(name))
            if patches:
                maps[name] = LinearMap(self._patches(padded), inner, 1.0)
            x = (
                sigma.function(inner) * first
                if layer == 1
                else x + sigma.function(inner) * residual
            )
        pooled = x.flatten(2).sum(2)
        output = torch.mm(pooled, self.readout.t())
        maps["readout"] = LinearMap(pooled[:, None], output, 1.0)
        return Trace(output, pooled, maps)

    def patches(self, x: Tensor) -> Tensor:
        """What a layer sees at each pixel; shape (samples, pixels, channels * patch)."""
        return self._patches(self._pad(x))

    def _pad(self, x: Tensor) -> Tensor:
        reach = self.architecture.patch_size // 2
        mode = "constant" if self.architecture.padding == "zeros" else "circular"
        return torch.nn.functional.pad(x, (reach, reach) * self.spec.pixel_axes, mode=mode)

    def _patches(self, padded: Tensor) -> Tensor:
        """What the convolution sees at each pixel; shape (samples, pixels, channels * patch)."""
        axes = self.spec.pixel_axes
        for axis in range(2, 2 + axes):
            padded = padded.unfold(axis, self.architecture.patch_size, 1)
        pixels_last = padded.movedim(1, 1 + axes).flatten(1 + axes)
        return pixels_last.flatten(1, axes)


def draw_conv_resnet(spec: NetworkSpec[ConvResNet], source: Source) -> dict[str, Tensor]:
    """The initial weights; the readout is Rademacher."""
    width, patch = spec.width, (spec.architecture.patch_size,) * spec.pixel_axes
    channels = [spec.in_features] + [width] * (spec.architecture.depth - 1)
    readout = source.draw("rademacher", spec.out_features, width, scale=spec.readout_scale)
    weights = {"readout": readout}
    for layer, size in enumerate(channels, start=1):
        weights[f"layer{layer}"] = source.draw(spec.weights, width, size, *patch)
    return weights
