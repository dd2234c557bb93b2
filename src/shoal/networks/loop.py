"""Deep equilibrium models of finite width."""

import math
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from shoal.activations import Activation, Affine
from shoal.architectures import Cell, ImplicitArchitecture
from shoal.equilibrium.options import SolveOptions
from shoal.equilibrium.recurrent.layer import Layer
from shoal.networks.draw import Source
from shoal.networks.equilibrium import EquilibriumNetwork
from shoal.networks.layered import acting_scales, draw_layers
from shoal.networks.network import LinearMap, NetworkSpec, Trace, bias_map

__all__ = ["LoopNetwork"]

A = TypeVar("A", bound=ImplicitArchitecture)


class LoopNetwork(EquilibriumNetwork[A], Generic[A]):
    r"""A loop of cells, as the architecture's ``layers`` say; for a DEQ mostly of one.

    $z = k\,m^{-1/2}\varphi(\sigma_a A z + \sigma_b B x + b)$ and $f = a^\top z$, solved for
    $Z = \sqrt{m} z$. With more cells, each acts on what the one before it makes. In the standard
    parametrization the weights are $W = \sigma_a A/\sqrt m$, $U = \sigma_b B$ and $a/\sqrt m$, the
    features are $Z$, and the gradients of one cell are those of Ling 2023, Lemma 2.

    Attributes:
        layers: The cells.
        scales: By what each group of weights is multiplied where it acts.
    """

    def __init__(
        self,
        spec: NetworkSpec[A],
        weights: Mapping[str, Tensor],
        options: SolveOptions,
        *,
        warm_start: bool = False,
    ) -> None:
        super().__init__(spec, weights, options, warm_start=warm_start)
        self.layers = spec.architecture.layers(spec.width)
        self.scales = acting_scales(self.layers, spec)

    @staticmethod
    def draw(spec: NetworkSpec[Any], source: Source) -> dict[str, Tensor]:
        """The initial weights; a fixed readout is Rademacher."""
        return draw_layers(spec, source)

    @property
    def turn(self) -> list[tuple[Layer, Tensor]]:
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
        """The same, and the biases of the other layers."""
        first = self.inject(x)
        nothing = first.new_zeros(()).expand_as(first)
        others = (self._with_bias(cell, nothing) for cell in self.layers.cells[1:])
        return first, *others

    def _with_bias(self, cell: Cell, term: Tensor) -> Tensor:
        if cell.bias is None:
            return term
        added = self._weight(cell.bias.group) * self.scales[cell.bias.group]
        return term + added.view(-1, *[1] * self.spec.pixel_axes)

    def _read(self, z: Tensor, injections: tuple[Tensor, ...]) -> Tensor:  # noqa: ARG002
        return torch.mm(self._pooled(z), self.readout.t()).mul(self.feature_scale)

    def _linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """What weights make of inputs."""
        return torch.mm(x, weight.t())

    def _seen(self, x: Tensor) -> Tensor:
        """What a unit sees of inputs or features; shape (samples, pixels, size)."""
        return x[:, None]

    def _pooled(self, z: Tensor) -> Tensor:
        """What the readout sees of the features."""
        return z

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
            group = cell.weights.group
            maps[group] = LinearMap(self._seen(seen), entry, scales[group])
            if cell.bias is not None:
                maps[cell.bias.group] = bias_map(entry, scales[cell.bias.group])
        readout = self.layers.readout
        deviation = 1.0 if readout is None else math.sqrt(readout.variance)
        features = self._pooled(z) * (deviation / math.sqrt(self.spec.width))
        return Trace(output, features, maps)

    def _states(self, z: Tensor, into: tuple[Tensor, ...]) -> list[Tensor]:
        """What the weights of each layer see."""
        states = [z]
        for (layer, weight), entry in zip(self.turn[:-1], into[:-1], strict=True):
            inner = layer.preactivation(states[-1], entry, weight)
            states.append(layer.activation.function(inner))
        return states


def _activation(cell: Cell) -> Activation:
    """The activation of a cell with its gain."""
    return cell.activation if cell.gain == 1 else Affine(cell.activation, cell.gain)
