"""Explicit networks of finite width."""

import math
from typing import Generic, TypeVar

import torch
from torch import Tensor

from shoal.architectures import Architecture, Cell, FullyConnected, ResNet
from shoal.networks.layered import LayeredNetwork
from shoal.networks.network import LinearMap, Trace, makes_networks_of

A = TypeVar("A", bound=Architecture)


@makes_networks_of(FullyConnected, ResNet)
class ChainNetwork(LayeredNetwork[A], Generic[A]):
    r"""A chain of cells, as the architecture's ``layers`` say.

    $x \mapsto e\,x + k\,m^{-1/2}\,\varphi(\sqrt v\,Wx + \sqrt\beta\,b)$ in each cell, and
    $f = a^\top x$ at the end. If the network is gated by the norm, the first cell sees the
    direction of the input and the last features are multiplied by the norm.
    """

    def _forward(self, x: Tensor) -> Tensor:
        return self._pass(x, None).output

    def trace(self, x: Tensor) -> Trace:
        """A pass that keeps each cell's input and what it becomes."""
        return self._pass(self.check_input(x).detach().requires_grad_(), {})

    def _pass(self, x: Tensor, maps: dict[str, LinearMap] | None) -> Trace:
        """All cells and the readout; ``maps`` are filled if there are any."""
        root = math.sqrt(self.spec.width)
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True) if self.layers.gated else None
        if norm is not None:
            x = x / norm.clamp(min=torch.finfo(x.dtype).tiny)
        for cell in self.layers.cells:
            inner = self._inner(cell, x, maps)
            new = cell.activation.function(inner) * (cell.gain / root)
            x = x * cell.skip + new if cell.skip else new
        seen = self._pooled(x if norm is None else x * norm)
        output = _scaled(torch.mm(seen, self.readout.t()), self.scales["readout"])
        found = {} if maps is None else maps
        found["readout"] = LinearMap(seen[:, None], output, self.scales["readout"])
        return Trace(output, self._features(seen), found)

    def _inner(self, cell: Cell, x: Tensor, maps: dict[str, LinearMap] | None) -> Tensor:
        """What the activation of a cell sees."""
        name = cell.weights.group
        made = _scaled(self._linear(x, self._weight(name)), self.scales[name])
        inner = self._with_bias(cell, made)
        if maps is not None:
            maps |= self._maps(cell, x, inner)
        return inner

    def _features(self, seen: Tensor) -> Tensor:
        """What the readout sees, in the scale of the conjugate kernel."""
        readout = self.layers.readout
        return seen if readout is None else _scaled(seen, math.sqrt(readout.variance))


def _scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1 else x * scale
