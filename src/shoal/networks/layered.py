"""What networks of cells have in common: how their weights are drawn, and how they act."""

import math
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from shoal.architectures import Architecture, Cell, ImageArchitecture, Layers, Weights
from shoal.networks.draw import Source, law_of_entries
from shoal.networks.network import LinearMap, Network, NetworkSpec

A = TypeVar("A", bound=Architecture)


class LayeredNetwork(Network[A], Generic[A]):
    """A chain or a loop of cells, as the architecture's ``layers`` say.

    Attributes:
        layers: The cells.
        scales: By what each group of weights is multiplied where it acts.
    """

    def __init__(
        self, spec: NetworkSpec[A], weights: Mapping[str, Tensor], *solving: Any, **options: Any
    ) -> None:
        super().__init__(spec, weights, *solving, **options)
        self.layers = spec.architecture.layers(spec.width)
        self.scales = _acting_scales(self.layers, spec)

    @staticmethod
    def draw(spec: NetworkSpec[Any], source: Source) -> dict[str, Tensor]:
        """The initial weights; a fixed readout is Rademacher."""
        return draw_layers(spec, source)

    def _with_bias(self, cell: Cell, term: Tensor) -> Tensor:
        """What weights make, and the biases of a cell."""
        if cell.bias is None:
            return term
        added = self._weight(cell.bias.group) * self.scales[cell.bias.group]
        return term + added.view(-1, *[1] * self.spec.pixel_axes)

    def _maps(self, cell: Cell, x: Tensor, made: Tensor) -> dict[str, LinearMap]:
        """Where the weights of a cell, which see features, and its biases act."""
        group, bias = cell.weights.group, cell.bias
        found = {group: LinearMap(self._seen(x), made, self.scales[group])}
        if bias is not None:
            found[bias.group] = LinearMap.of_bias(made, self.scales[bias.group])
        return found

    def _linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """What weights make of inputs or features."""
        return torch.mm(x, weight.t())

    def _seen(self, x: Tensor) -> Tensor:
        """What a unit sees of inputs or features; shape (samples, pixels, size)."""
        return x[:, None]

    def _pooled(self, x: Tensor) -> Tensor:
        """What the readout sees of the last features."""
        return x


def _acting_scales(layers: Layers, spec: NetworkSpec[Any]) -> dict[str, float]:
    r"""By what each group of weights is multiplied where it acts.

    Features of a chain have the factor $m^{-1/2}$ in them; those of a loop are solved for without
    it, so that what acts on them has it. Weights of images may average over patches.
    """
    looped, width = layers.injection is not None, spec.width
    convolving = {cell.weights.group for cell in layers.cells}
    on_features = {"readout", *convolving} if looped else set()
    if layers.injection is not None:
        convolving.add(layers.injection.group)
    patch = _patch(spec)
    scales = {"readout": 1 / math.sqrt(width) if looped else 1.0}  # also where it is fixed
    for weights in layers.weights:
        size = width if weights.group in on_features else 1
        size *= patch if weights.group in convolving else 1
        scales[weights.group] = math.sqrt(weights.share / size)
    return scales


def _patch(spec: NetworkSpec[Any]) -> int:
    """The pixels that weights average over."""
    architecture = spec.architecture
    if not isinstance(architecture, ImageArchitecture) or not architecture.averaged:
        return 1
    return int(architecture.patch_size**spec.pixel_axes)


def draw_layers(
    spec: NetworkSpec[Any], source: Source, patch: tuple[int, ...] = (), pixels: int = 1
) -> dict[str, Tensor]:
    """The initial weights of a chain or a loop, in the scale in which they are trained.

    Args:
        spec: The network.
        source: Where they come from.
        patch: The pixels that a unit of a convolutional network sees, along each axis.
        pixels: How many of each channel its readout sees.
    """
    width, layers = spec.width, spec.architecture.layers(spec.width)
    law = law_of_entries(spec.weights)
    looped, readout = layers.injection is not None, layers.readout
    signs = "rademacher" if readout is None else law
    scale = 1.0 if readout is None else _deviation(readout)
    shape, sizes = (spec.out_features, width * pixels), [width] * len(layers.cells)
    weights = {"readout": source.draw(signs, *shape, scale=scale * spec.readout_scale)}
    if not looped:
        sizes[0] = spec.in_features
    for cell, size in zip(layers.cells, sizes, strict=True):
        scale = _deviation(cell.weights)
        weights[cell.weights.group] = source.draw(spec.weights, width, size, *patch, scale=scale)
    if layers.injection is not None:
        scale, size = _deviation(layers.injection), spec.in_features
        weights[layers.injection.group] = source.draw(law, width, size, *patch, scale=scale)
    for bias in (cell.bias for cell in layers.cells if cell.bias is not None):
        weights[bias.group] = source.draw(law, width, scale=_deviation(bias))
    return weights


def _deviation(weights: Weights) -> float:
    """The standard deviation of weights, which act times the root of their share in the NTK."""
    if weights.tangent is None:
        return 1.0
    if not weights.tangent > 0:
        raise ValueError(
            f"the weights {weights.group!r} must have a positive tangent at every width, "
            f"got {weights.tangent!r}"
        )
    if weights.group == "readout":  # rounded as ever: a seed keeps its weights
        return math.sqrt(weights.variance) / math.sqrt(weights.tangent)
    return math.sqrt(weights.variance / weights.tangent)
