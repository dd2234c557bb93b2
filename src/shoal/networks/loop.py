"""Deep equilibrium models of finite width."""

import math
from typing import Generic, TypeVar

import torch
from torch import Tensor

from shoal.activations import Activation, Affine
from shoal.architectures import DEQ, Cell, ImplicitArchitecture
from shoal.networks.equilibrium import EquilibriumNetwork
from shoal.networks.layered import LayeredNetwork
from shoal.networks.network import LinearMap, Trace, makes_networks_of
from shoal.networks.recurrent_layers import Layer

A = TypeVar("A", bound=ImplicitArchitecture)


@makes_networks_of(DEQ)
class LoopNetwork(LayeredNetwork[A], EquilibriumNetwork[A], Generic[A]):
    r"""A loop of cells, as the architecture's ``layers`` say; for a DEQ mostly of one.

    $z = k\,m^{-1/2}\varphi(\sigma_a A z + \sigma_b B x + b)$ and $f = a^\top z$, solved for
    $Z = \sqrt{m} z$. With more cells, each acts on what the one before it makes. In the standard
    parametrization the weights are $W = \sigma_a A/\sqrt m$, $U = \sigma_b B$ and $a/\sqrt m$, the
    features are $Z$, and the gradients of one cell are those of Ling 2023, Lemma 2.
    """

    @property
    def recurrent_layers(self) -> list[tuple[Layer, Tensor]]:
        """The recurrent layers, one after the other, with their weights."""
        return [
            (
                self._recurrent(_activation(cell), self.scales[cell.weights.group]),
                self._weight(cell.weights.group),
            )
            for cell in self.layers.cells
        ]

    def _recurrent(self, activation: Activation, scale: float) -> Layer:
        """A recurrent layer."""
        return Layer(activation, scale)

    @property
    def feature_scale(self) -> float:
        r"""$z = Z/\sqrt m$ in the NTK parametrization, $Z$ in the standard one."""
        return self.scales["readout"]

    def inject(self, x: Tensor) -> Tensor:
        r"""$U = \sigma_b x B^\top + b$, what the first layer sees besides the features."""
        injection = self.layers.injection
        assert injection is not None
        found = self._linear(x, self._weight(injection.group)).mul(self.scales[injection.group])
        return self._with_bias(self.layers.cells[0], found)

    def injections(self, x: Tensor) -> tuple[Tensor, ...]:
        """What enters each layer from outside: the inputs, and biases."""
        first = self.inject(x)
        nothing = first.new_zeros(()).expand_as(first)
        others = (self._with_bias(cell, nothing) for cell in self.layers.cells[1:])
        return first, *others

    def _read(self, z: Tensor, injections: tuple[Tensor, ...]) -> Tensor:  # noqa: ARG002
        return torch.mm(self._pooled(z), self.readout.t()).mul(self.feature_scale)

    def trace(self, x: Tensor) -> Trace:
        """A pass that keeps the equilibrium and what the input and the layers add to it."""
        x = self.check_input(x).detach().requires_grad_()
        injection = self.layers.injection
        assert injection is not None
        into = tuple(
            u if u.requires_grad else u.detach().requires_grad_() for u in self.injections(x)
        )
        z = self.exact(silent=True).equilibrium(into)
        output, scales = self._read(z, into), self.scales
        maps = {
            "readout": LinearMap(self._pooled(z)[:, None], output, scales["readout"]),
            injection.group: LinearMap(self._seen(x), into[0], scales[injection.group]),
        }
        for cell, seen, entry in zip(self.layers.cells, self._states(z, into), into, strict=True):
            maps |= self._maps(cell, seen, entry)
        readout = self.layers.readout
        deviation = 1.0 if readout is None else math.sqrt(readout.variance)
        features = self._pooled(z) * (deviation / math.sqrt(self.spec.width))
        return Trace(output, features, maps)

    def _states(self, z: Tensor, into: tuple[Tensor, ...]) -> list[Tensor]:
        """What the weights of each layer see."""
        states = [z]
        for (layer, weight), entry in zip(self.recurrent_layers[:-1], into[:-1], strict=True):
            inner = layer.preactivation(states[-1], entry, weight)
            states.append(layer.activation.function(inner))
        return states


def _activation(cell: Cell) -> Activation:
    """The activation of a cell with its gain."""
    return cell.activation if cell.gain == 1 else Affine(cell.activation, cell.gain)
