"""Networks of cells, of vectors or images: their weights and their action; chains of cells."""

import math
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from shoal.architectures import Architecture, Cell, ImageArchitecture, Layers, Weights
from shoal.networks.network import LinearMap, Network, NetworkSpec, NetworkTrace, Source
from shoal.networks.recurrent_layers import convolve, padded

A = TypeVar("A", bound=Architecture)


class LayeredNetwork(Network[A], Generic[A]):
    """A chain or a loop of cells, as the architecture's ``layers`` say.

    Weights of images, with pixels along one, two or three axes, convolve with stride one, and
    biases are one per channel. The readout sees the sum or the mean of each channel, or all its
    pixels, divided by the square root of their number.

    Attributes:
        layers: The cells.
        scales: The factor of each group of weights where it acts.
    """

    def __init__(self, spec: NetworkSpec[A], weights: Mapping[str, Tensor], **solving: Any) -> None:
        self.layers = spec.architecture.layers(spec.width)
        self.scales = _acting_scales(self.layers, spec)
        super().__init__(spec, weights, **solving)

    @staticmethod
    def draw(spec: NetworkSpec[Any], source: Source) -> dict[str, Tensor]:
        """The initial weights, in the scale in which they are trained.

        A readout that the architecture keeps fixed is Rademacher.
        """
        width, layers = spec.width, spec.architecture.layers(spec.width)
        law = spec.weights
        patch: tuple[int, ...] = ()
        pixels = 1
        if spec.pixel_axes:
            patch = (spec.architecture.patch_size,) * spec.pixel_axes
            pixels = 1 if spec.architecture.pooling else math.prod(spec.pixels)
        looped, readout = layers.injection is not None, layers.readout
        signs = "rademacher" if readout is None else law
        scale = 1.0 if readout is None else _deviation(readout)
        shape, sizes = (spec.out_features, width * pixels), [width] * len(layers.cells)
        weights = {"readout": source.draw(signs, *shape, scale=scale * spec.readout_scale)}
        if not looped:
            sizes[0] = spec.in_features
        for cell, size in zip(layers.cells, sizes, strict=True):
            scale = _deviation(cell.weights)
            drawn = source.draw(law, width, size, *patch, scale=scale, square=looped)
            weights[cell.weights.group] = drawn
        if layers.injection is not None:
            scale, size = _deviation(layers.injection), spec.in_features
            weights[layers.injection.group] = source.draw(law, width, size, *patch, scale=scale)
        for bias in (cell.bias for cell in layers.cells if cell.bias is not None):
            weights[bias.group] = source.draw(law, width, scale=_deviation(bias))
        return weights

    def check_input(self, x: Tensor, name: str = "x") -> Tensor:
        """Return inputs that fit the network, or raise."""
        x = super().check_input(x, name)
        if isinstance(self.architecture, ImageArchitecture):
            self.architecture.check_pixels(name, tuple(x.shape))
            if self.spec.pixels and tuple(x.shape[2:]) != self.spec.pixels:
                raise ValueError(
                    f"{name} must have the network's pixels, {self.spec.pixels}, "
                    f"got {tuple(x.shape)}"
                )
        return x

    def patches(self, x: Tensor) -> Tensor:
        """The inputs of a unit at each pixel; shape (samples, pixels, channels * patch)."""
        axes = self.spec.pixel_axes
        if not axes:
            return x[:, None]
        images: Any = self.architecture
        size = images.patch_size
        patches = padded(x, size // 2, images.padding)
        for axis in range(2, 2 + axes):
            patches = patches.unfold(axis, size, 1)
        pixels_last = patches.movedim(1, 1 + axes).flatten(1 + axes)
        return pixels_last.flatten(1, axes)

    def _linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product of weights with inputs or features."""
        if weight.dim() == 2:
            return torch.mm(x, weight.t())
        images: Any = self.architecture
        return convolve(x, weight, images.padding)

    def _with_bias(self, cell: Cell, term: Tensor) -> Tensor:
        """A term with the biases of a cell."""
        if cell.bias is None:
            return term
        added = self._weight(cell.bias.group) * self.scales[cell.bias.group]
        return term + added.view(-1, *[1] * self.spec.pixel_axes)

    def _maps(self, cell: Cell, x: Tensor, output: Tensor) -> dict[str, LinearMap]:
        """The actions of the weights and the biases of a cell."""
        group, bias = cell.weights.group, cell.bias
        maps = {group: LinearMap(self.patches(x), output, self.scales[group])}
        if bias is not None:
            maps[bias.group] = LinearMap.from_bias(output, self.scales[bias.group])
        return maps

    def pooled(self, x: Tensor) -> Tensor:
        """The input of the readout, of the last features."""
        if not self.spec.pixel_axes:
            return x
        images: Any = self.architecture
        pixels, pooling = x.flatten(2), images.pooling
        if pooling is None:
            return pixels.flatten(1) / math.sqrt(pixels.shape[2])
        return pixels.sum(2) if pooling == "sum" else pixels.mean(2)


class ChainNetwork(LayeredNetwork[A], Generic[A]):
    r"""A chain of cells, as the architecture's ``layers`` say.

    $x \mapsto e\,x + k\,m^{-1/2}\,\varphi(\sqrt v\,Wx + \sqrt\beta\,b)$ in each cell, and
    $f = a^\top x$ at the end. If the network is gated by the norm, the first cell sees the
    direction of the input and the last features are multiplied by the norm.
    """

    def _forward(self, x: Tensor) -> Tensor:
        return self._pass(x, None).output

    def trace(self, x: Tensor) -> NetworkTrace:
        """A pass that keeps the input of each cell and its preactivation."""
        return self._pass(self.check_input(x).detach().requires_grad_(), {})

    def _pass(self, x: Tensor, maps: dict[str, LinearMap] | None) -> NetworkTrace:
        """All cells and the readout; ``maps`` are filled if there are any."""
        root = math.sqrt(self.spec.width)
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True) if self.layers.gated else None
        if norm is not None:
            x = x / norm.clamp(min=torch.finfo(x.dtype).tiny)
        for cell in self.layers.cells:
            name = cell.weights.group
            product = _scaled(self._linear(x, self._weight(name)), self.scales[name])
            inner = self._with_bias(cell, product)
            if maps is not None:
                maps |= self._maps(cell, x, inner)
            new = cell.activation.function(inner) * (cell.gain / root)
            x = x * cell.skip + new if cell.skip else new
        pooled = self.pooled(x if norm is None else x * norm)
        scale, readout = self.scales["readout"], self.layers.readout
        output = _scaled(torch.mm(pooled, self.readout.t()), scale)
        maps = {} if maps is None else maps
        maps["readout"] = LinearMap(pooled[:, None], output, scale)
        features = pooled if readout is None else _scaled(pooled, math.sqrt(readout.variance))
        return NetworkTrace(output, features, maps)


def _scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1 else x * scale


def _acting_scales(layers: Layers, spec: NetworkSpec[Any]) -> dict[str, float]:
    r"""The factor of each group of weights where it acts.

    Features of a chain have the factor $m^{-1/2}$ in them; those of a loop are solved for without
    it, so that weights which act on them have it. Weights of images may average over patches.
    """
    looped, width, architecture = layers.injection is not None, spec.width, spec.architecture
    convolving = {cell.weights.group for cell in layers.cells}
    on_features = {"readout", *convolving} if looped else set()
    if layers.injection is not None:
        convolving.add(layers.injection.group)
    averaged = isinstance(architecture, ImageArchitecture) and architecture.averaged
    patch = architecture.patch_size**spec.pixel_axes if averaged else 1
    scales = {"readout": 1 / math.sqrt(width) if looped else 1.0}  # also where it is fixed
    for weights in layers.weights:
        size = width if weights.group in on_features else 1
        size *= patch if weights.group in convolving else 1
        scales[weights.group] = math.sqrt(weights.share / size)
    return scales


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
