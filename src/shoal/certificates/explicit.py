r"""Explicit networks, measured: every layer's features and adjoints, with bounds of their errors.

All of them are $x^{(h)} = e x^{(h-1)} + k \sigma(W \pi(x^{(h-1)}))$, $f = \langle a, x^{(H)}
\rangle$, where $\pi$ collects patches of pixels (the identity if there are none) and a readout acts
alike at all pixels. Samples and their adjoints $g^{(h)} = \partial f/\partial x^{(h)}$ are computed
in floating point; what a layer adds to the difference from the true ones is bounded.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.architectures import Architecture, ConvResNet, FullyConnected, ResNet
from shoal.certificates.evidence.activations import Smoothness, evaluate, smoothness
from shoal.certificates.evidence.enclosures import least_eigenvalue, spectral_norm
from shoal.certificates.evidence.rounding import (
    ROUND_UP,
    TINY,
    UNIT,
    down,
    gamma,
    norm_upper,
    row_norms,
    up,
)
from shoal.networks.chain import ChainNetwork
from shoal.networks.convolutional import ConvolutionalChain
from shoal.networks.empirical_kernel import contract

ExplicitNetwork = (
    ChainNetwork[FullyConnected] | ChainNetwork[ResNet] | ConvolutionalChain[ConvResNet]
)


@dataclass(frozen=True)
class MeasuredLayer:
    r"""A layer at the start. Tensors have one entry for each sample; all are upper bounds.

    Attributes:
        name: Its group of weights.
        trained: Whether these are trained.
        skip: $e$.
        factor: $k$.
        smooth: The activation's constants.
        norm: $\|W\|_2$.
        reach: $\|\pi\|$, the root of how many patches a pixel is part of.
        inputs: $\|\pi(x)\|$ of the computed features below.
        levers: $\|\sigma'(p) g\|$.
        adjoints: $\|g\|$.
        peaks: The largest entry of $g$, over units and pixels; its norm over outputs.
        inner_error: How far the preactivations are from those of the computed features below.
        feature_error: The same for the features, given the preactivations.
        slope_error: The same for $\sigma'$, the largest over all units.
        adjoint_error: The same for the adjoints below, given those above.
        gram: The share of the layer's weights in the NTK, over samples and outputs.
        gram_error: How far it may be off, in the spectral norm.
    """

    name: str
    trained: bool
    skip: float
    factor: float
    smooth: Smoothness
    norm: float
    reach: float
    inputs: Tensor
    levers: Tensor
    adjoints: Tensor
    peaks: Tensor
    inner_error: Tensor
    feature_error: Tensor
    slope_error: float
    adjoint_error: Tensor
    gram: Tensor
    gram_error: float

    @property
    def jacobian_norm(self) -> float:
        """A bound of the norm of the outputs' derivative in the weights, as computed."""
        return gram_root(self.gram, self.gram_error)


@dataclass(frozen=True)
class MeasuredExplicit:
    r"""A network and its data.

    Attributes:
        layers: The layers, from the input to the output.
        features: What the readout sees, as computed: one row for each sample.
        feature_norms: $\|x^{(h)}\|$ of the inputs and each layer, at most; shape (H + 1, n).
        pixels: How many pixels there are.
        readout_norm: $\|a\|_2$, at most.
        readout_trained: Whether the readout is trained.
        difference: The outputs minus the labels, as computed.
        output_error: What rounding the last product adds to it.
        proved: Whether the errors of all activations are.
    """

    layers: tuple[MeasuredLayer, ...]
    features: Tensor
    feature_norms: Tensor
    pixels: int
    readout_norm: float
    readout_trained: bool
    difference: Tensor
    output_error: float
    proved: bool

    @property
    def readout_gram(self) -> tuple[Tensor, float]:
        """The readout's share in the NTK of one output, and its error."""
        size = norm_upper(self.features)
        gram = self.features @ self.features.T
        return gram, up(gamma(self.features.shape[1] + 4) * size * size)

    def ntk(self) -> tuple[Tensor, float]:
        """The NTK of all trained groups, over samples and outputs, and its error."""
        grams = [(layer.gram, layer.gram_error) for layer in self.layers if layer.trained]
        if self.readout_trained:
            gram, error = self.readout_gram
            outputs = self.difference.shape[1]
            grams.append((torch.kron(gram, torch.eye(outputs, dtype=gram.dtype)), error))
        empty = torch.zeros_like(self.layers[0].gram)
        total = sum((gram for gram, _ in grams), empty)
        rounding = len(grams) * UNIT * sum(norm_upper(gram) for gram, _ in grams)
        return total, up((sum(error for _, error in grams) + rounding) * ROUND_UP)


def gram_root(gram: Tensor, error: float) -> float:
    """An upper bound of the root of the norm of a Gram matrix, infinite if that overflowed."""
    if not bool(gram.isfinite().all()):
        return math.inf
    return up(math.sqrt(up(spectral_norm(gram) + error)))


def gram_least(gram: Tensor, error: float) -> float:
    """A lower bound of the least eigenvalue of a Gram matrix; ``-inf`` if that overflowed."""
    return least_eigenvalue(gram, error=error) if bool(gram.isfinite().all()) else -math.inf


def least_root(gram: Tensor, error: float) -> float:
    """A lower bound of the root of the least eigenvalue of a Gram matrix, zero if none."""
    least = gram_least(gram, error)
    return max(0.0, down(math.sqrt(least))) if least > 0 else 0.0


def measure_explicit(net: ExplicitNetwork, x: Tensor, y: Tensor) -> MeasuredExplicit:
    """Measure a network on float64 inputs, and labels of shape (samples, outputs)."""
    layers, see = _layers(net), _see(net, x)
    features = x.flatten(2).transpose(1, 2) if x.dim() > 2 else x[:, None]
    norms, passes = [row_norms(features.flatten(1))], []
    for layer in layers:
        passes.append(_forward(layer, features, see(features)))
        features = passes[-1].features
        norms.append(row_norms(features.flatten(1)))
    readout, pixels = net.readout.detach().double().cpu(), features.shape[1]
    adjoints = readout[None, :, None].expand(len(x), -1, pixels, -1)
    measured = []
    for layer, forward in zip(reversed(layers), reversed(passes), strict=True):
        one, adjoints = _backward(layer, forward, adjoints, see)
        measured.append(one)
    pooled = features.sum(1)
    size = math.sqrt(pixels) * norm_upper(features) * norm_upper(readout) + norm_upper(y)
    return MeasuredExplicit(
        layers=tuple(reversed(measured)),
        features=pooled,
        feature_norms=torch.stack(norms),
        pixels=pixels,
        readout_norm=up(spectral_norm(readout)),
        readout_trained="readout" in net.groups and net.readout.requires_grad,
        difference=pooled @ readout.T - y,
        output_error=up(gamma(readout.shape[1] + pixels + 8) * size),
        proved=all(forward.proved for forward in passes),
    )


class _Layer(NamedTuple):
    name: str
    trained: bool
    weight: Tensor  # (units, what a unit sees)
    skip: float
    factor: float
    sigma: Activation
    reach: float


class _Pass(NamedTuple):
    """What a layer does to the computed features below it, pixels before units."""

    seen: Tensor
    slopes: Tensor
    features: Tensor
    inner_error: Tensor
    feature_error: Tensor
    slope_error: float
    proved: bool


def patch_pixels(architecture: Architecture, axes: int) -> int:
    """How many pixels a unit sees of images with so many axes; one if there are none."""
    return architecture.patch_size**axes if isinstance(architecture, ConvResNet) else 1


def _layers(net: ExplicitNetwork) -> list[_Layer]:
    reach = up(math.sqrt(patch_pixels(net.architecture, net.spec.pixel_axes)))
    layers = []
    for cell in net.layers.cells:
        name, factor = cell.weights.group, cell.gain / math.sqrt(net.spec.width)
        weight = net.get_parameter(name)
        values, trained = weight.detach().double().cpu().flatten(1), weight.requires_grad
        layers.append(_Layer(name, trained, values, cell.skip, factor, cell.activation, reach))
    return layers


def _see(net: ExplicitNetwork, x: Tensor) -> Callable[[Tensor], Tensor]:
    """How features become what units see; both of shape (samples, pixels, ...)."""
    if not isinstance(net, ConvolutionalChain):
        return lambda features: features
    return lambda features: net.patches(
        features.transpose(1, 2).reshape(len(features), -1, *x.shape[2:])
    )


def _forward(layer: _Layer, below: Tensor, seen: Tensor) -> _Pass:
    inner = seen @ layer.weight.T
    found = evaluate(layer.sigma, inner)
    features = layer.factor * found.values
    size = layer.factor * _norms(found.values)
    if layer.skip:
        features, size = below + features, _norms(below) + size
    rounding = gamma(seen.shape[2] + 2) * norm_upper(layer.weight)
    return _Pass(
        seen=seen,
        slopes=found.slopes,
        features=features,
        inner_error=rounding * _norms(seen) * ROUND_UP,
        feature_error=(layer.factor * _norms(found.error) + 4 * UNIT * size) * ROUND_UP,
        slope_error=up(float(found.slope_error.max())),
        proved=found.proved,
    )


def _backward(
    layer: _Layer, forward: _Pass, above: Tensor, see: Callable[[Tensor], Tensor]
) -> tuple[MeasuredLayer, Tensor]:
    """The layer, and the adjoints below it, of shape (samples, outputs, pixels, units)."""
    samples, outputs, pixels, units = above.shape
    turned = forward.slopes[:, None] * above
    inputs, levers, adjoints = _norms(forward.seen), _norms(turned), _norms(above)
    reactions = (layer.factor * turned).reshape(samples * outputs, pixels, units)
    seen = forward.seen.repeat_interleave(outputs, 0)
    terms = units + seen.shape[2] + pixels**2 + 8
    square = float((layer.factor * levers * inputs).square().sum())
    measured = MeasuredLayer(
        name=layer.name,
        trained=layer.trained,
        skip=layer.skip,
        factor=layer.factor,
        smooth=smoothness(layer.sigma),
        norm=up(spectral_norm(layer.weight)),
        reach=layer.reach,
        inputs=inputs,
        levers=levers,
        adjoints=adjoints,
        peaks=torch.linalg.vector_norm(above, dim=1).flatten(1).amax(1) * (1 + gamma(outputs + 8)),
        inner_error=forward.inner_error,
        feature_error=forward.feature_error,
        slope_error=forward.slope_error,
        adjoint_error=_adjoint_error(layer, levers, adjoints),
        gram=contract(seen, reactions, seen, reactions),
        gram_error=up(gamma(terms) * square * ROUND_UP) + TINY,
    )
    return measured, _below(layer, turned, above, see)


def _below(layer: _Layer, turned: Tensor, above: Tensor, see: Callable[[Tensor], Tensor]) -> Tensor:
    """The adjoints of what a layer sees: what comes through it, and what skips it."""
    samples, outputs, pixels, _ = above.shape
    passed = (turned @ layer.weight).reshape(samples * outputs, pixels, -1)
    patch = round(layer.reach**2)
    with torch.enable_grad():
        start = passed.new_zeros(len(passed), pixels, passed.shape[2] // patch, requires_grad=True)
        (gathered,) = torch.autograd.grad(see(start), start, passed)
    below = layer.factor * gathered.reshape(samples, outputs, pixels, -1)
    result: Tensor = below + above if layer.skip else below
    return result


def _adjoint_error(layer: _Layer, levers: Tensor, adjoints: Tensor) -> Tensor:
    """What rounding adds to the adjoints below."""
    terms = len(layer.weight) + round(layer.reach**2) + 8
    through = gamma(terms) * layer.factor * layer.reach * norm_upper(layer.weight) * levers
    return (through + 4 * UNIT * layer.skip * adjoints) * ROUND_UP


def _norms(tensor: Tensor) -> Tensor:
    """Upper bounds of the norm of each sample."""
    return row_norms(tensor.flatten(1))
