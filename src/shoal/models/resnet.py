"""Residual networks of finite width."""

import math
from typing import final

import torch
from torch import Tensor

from shoal.architectures import ResNet
from shoal.gaussian.moments import normalization
from shoal.models.draw import Source
from shoal.models.network import LinearMap, Network, NetworkSpec, Trace

__all__ = ["ResNetwork", "draw_resnet"]


@final
class ResNetwork(Network[ResNet]):
    r"""A residual network.

    $x^{(h)} = x^{(h-1)} + s/(H\sqrt m)\,\sigma(W^{(h)}x^{(h-1)})$ from $h = 2$ on; the first layer
    is $\sqrt{c_\sigma/m}\,\sigma(W^{(1)}x)$, without a skip (Du 2018, Eq. (3)).
    """

    readout: Tensor

    def _forward(self, x: Tensor) -> Tensor:
        return self.trace_from(x).output

    def trace(self, x: Tensor) -> Trace:
        """A pass that keeps each layer's input and what it becomes."""
        return self.trace_from(self.check_input(x).detach().requires_grad_())

    def trace_from(self, x: Tensor) -> Trace:
        """The same without cutting the inputs' graph."""
        architecture, width = self.architecture, self.spec.width
        first = math.sqrt(normalization(architecture.activations[0]) / width)
        residual = architecture.residual_scale / (architecture.depth * math.sqrt(width))
        maps = {}
        for layer, sigma in enumerate(architecture.activations, start=1):
            name = f"layer{layer}"
            inner = torch.mm(x, self.get_parameter(name).t())
            maps[name] = LinearMap(x[:, None], inner, 1.0)
            x = (
                sigma.function(inner) * first
                if layer == 1
                else x + sigma.function(inner) * residual
            )
        output = torch.mm(x, self.readout.t())
        maps["readout"] = LinearMap(x[:, None], output, 1.0)
        return Trace(output, x, maps)


def draw_resnet(spec: NetworkSpec[ResNet], source: Source) -> dict[str, Tensor]:
    """The initial weights; the readout is Rademacher."""
    width = spec.width
    sizes = [spec.in_features] + [width] * (spec.architecture.depth - 1)
    readout = source.draw("rademacher", spec.out_features, width, scale=spec.readout_scale)
    weights = {"readout": readout}
    for layer, size in enumerate(sizes, start=1):
        weights[f"layer{layer}"] = source.draw(spec.weights, width, size)
    return weights
