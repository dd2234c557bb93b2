"""Fully connected networks of finite width."""

import math
from typing import final

import torch
from torch import Tensor

from shoal.architectures import FullyConnected
from shoal.gaussian.moments import normalization
from shoal.models.draw import Law, Source
from shoal.models.network import LinearMap, Network, NetworkSpec, Trace

__all__ = ["FullyConnectedNetwork", "draw_fully_connected"]


@final
class FullyConnectedNetwork(Network[FullyConnected]):
    r"""A fully connected network.

    $x^{(l)} = m^{-1/2}\sigma_l(W_l x^{(l-1)})$ and $f = a^\top x^{(L)}$, with a factor
    $\sqrt{c_\sigma}$ in each layer if the architecture is normalized. If it is gated by the norm,
    $x^{(0)}$ is the direction of the input and $x^{(L)}$ is multiplied by the norm.
    """

    readout: Tensor

    def _forward(self, x: Tensor) -> Tensor:
        return self.trace_from(x).output

    def trace(self, x: Tensor) -> Trace:
        """A pass that keeps each layer's input and what it becomes."""
        return self.trace_from(self.check_input(x).detach().requires_grad_())

    def trace_from(self, x: Tensor) -> Trace:
        """The same without cutting the inputs' graph."""
        maps = {}
        gated = self.architecture.norm_gated
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True) if gated else None
        if norm is not None:
            x = x / norm.clamp(min=torch.finfo(x.dtype).tiny)
        for layer, sigma in enumerate(self.architecture.activations, start=1):
            name = f"layer{layer}"
            inner = torch.mm(x, self.get_parameter(name).t())
            maps[name] = LinearMap(x[:, None], inner, 1.0)
            constant = normalization(sigma) if self.architecture.normalized else 1.0
            x = sigma.function(inner) * math.sqrt(constant / self.spec.width)
        x = x if norm is None else x * norm
        output = torch.mm(x, self.readout.t())
        maps["readout"] = LinearMap(x[:, None], output, 1.0)
        return Trace(output, x, maps)


def draw_fully_connected(spec: NetworkSpec[FullyConnected], source: Source) -> dict[str, Tensor]:
    """The initial weights; a fixed readout is Rademacher."""
    width, architecture = spec.width, spec.architecture
    law: Law = "rademacher" if architecture.fixed_readout else spec.weights
    sizes = [spec.in_features] + [width] * (architecture.depth - 1)
    weights = {"readout": source.draw(law, spec.out_features, width, scale=spec.readout_scale)}
    for layer, size in enumerate(sizes, start=1):
        weights[f"layer{layer}"] = source.draw(spec.weights, width, size)
    return weights
