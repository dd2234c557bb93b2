r"""Explicit networks: bounds of their gradients as the weights move.

All of them are $x^{(h)} = e x^{(h-1)} + k \sigma(W \pi(x^{(h-1)}))$, $f = \langle a, x^{(H)}
\rangle$, where $\pi$ collects patches of pixels (the identity if there are none) and a readout acts
alike at all pixels. Samples and their adjoints $g^{(h)} = \partial f/\partial x^{(h)}$ are computed
in floating point, and the rounding errors of each layer are bounded. The lemmas, which are proved
in the documentation on the page about certificates, bound how far features, adjoints and gradients
are from the *computed* ones, so that rounding errors are a part of how far they may move.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.activations import Activation, Smoothness
from shoal.architectures import ConvResNet, FullyConnected, ResNet
from shoal.certificates.argument import RANK_REMEDY, Geometry, Growth, Radii
from shoal.certificates.enclosures import (
    TINY,
    evaluate,
    exact,
    gamma,
    least_eigenvalue,
    norm_upper,
    row_norms,
    smoothness,
    spectral_norm,
)
from shoal.core.rounding import ROUND_UP, UNIT, down, nearest, up
from shoal.networks.empirical_kernel import contract
from shoal.networks.layered import ChainNetwork

ExplicitNetwork = ChainNetwork[FullyConnected] | ChainNetwork[ResNet] | ChainNetwork[ConvResNet]


class _ExplicitLayer(NamedTuple):
    r"""A layer: its group of weights, and $e$, $k$, $\sigma$ and $\|\pi\|$."""

    name: str
    trained: bool
    weight: Tensor  # (units, inputs of a unit)
    skip: float
    factor: float
    sigma: Activation
    reach: float


class _LayerPass(NamedTuple):
    """A pass through a layer from the computed features below it, pixels before units."""

    patches: Tensor
    slopes: Tensor
    features: Tensor
    inner_error: Tensor
    feature_error: Tensor
    slope_error: float
    proved: bool


@dataclass(frozen=True)
class MeasuredLayer:
    r"""A layer at the start. Tensors have one entry for each sample; all are upper bounds.

    Attributes:
        layer: The layer.
        smooth: The activation's constants.
        norm: $\|W\|_2$.
        inputs: $\|\pi(x)\|$ of the computed features below.
        levers: $\|\sigma'(p) g\|$.
        adjoints: $\|g\|$.
        peaks: The largest entry of $g$, over units and pixels; its norm over outputs.
        inner_error: Error of the preactivations, given the computed features below.
        feature_error: The same for the features, given the preactivations.
        slope_error: The same for $\sigma'$, the largest over all units.
        adjoint_error: The same for the adjoints below, given those above.
        gram: The share of the layer's weights in the NTK, over samples and outputs.
        gram_error: Bound of its error, in the spectral norm.
    """

    layer: _ExplicitLayer
    smooth: Smoothness
    norm: float
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


class ExplicitGeometry(Geometry):
    """The measured network.

    Args:
        net: The network.
        x: Inputs in float64.
        y: Labels, of shape (samples, outputs).
    """

    subject = "gradients"
    remedy = "more width, labels nearer to the initial outputs, less similar inputs"
    rank_remedy = f"{RANK_REMEDY}; a readout that stays fixed must not be zero"

    def __init__(self, net: ExplicitNetwork, x: Tensor, y: Tensor) -> None:
        layers, see = _layers(net), _patch_map(net, x)
        features, passes = x.flatten(2).transpose(1, 2) if x.dim() > 2 else x[:, None], []
        for layer in layers:
            passes.append(_forward(layer, features, see(features)))
            features = passes[-1].features
        readout, self.pixels = net.readout.detach().double().cpu(), features.shape[1]
        adjoints = readout[None, :, None].expand(len(x), -1, self.pixels, -1)
        measured = []
        for layer, forward in zip(reversed(layers), reversed(passes), strict=True):
            one, adjoints = _backward(layer, forward, adjoints, see)
            measured.append(one)
        self.layers, pooled = tuple(reversed(measured)), features.sum(1)
        self.rigorous = all(forward.proved for forward in passes)
        grams = {m.layer.name: (m.gram, m.gram_error) for m in self.layers if m.layer.trained}
        norms = {name: _gram_root(*gram) for name, gram in grams.items()}
        if "readout" in net.groups and net.readout.requires_grad:
            gram, size = pooled @ pooled.T, norm_upper(pooled)
            error = up(gamma(pooled.shape[1] + 4) * size * size)
            norms["readout"] = _gram_root(gram, error)
            grams["readout"] = torch.kron(gram, torch.eye(len(readout)).to(gram)), error
        self.norms, self.groups = norms, tuple(grams)
        if not grams:
            self.rank_remedy = "train some weights: none requires a gradient"
        self.scales = dict.fromkeys(self.groups, Fraction(1))
        kernel = sum((gram for gram, _ in grams.values()), torch.zeros_like(self.layers[0].gram))
        rounding = len(grams) * UNIT * sum(norm_upper(gram) for gram, _ in grams.values())
        error = up((sum(error for _, error in grams.values()) + rounding) * ROUND_UP)
        self.start, self.norm = exact(_least_root(kernel, error)), exact(_gram_root(kernel, error))
        size = math.sqrt(self.pixels) * norm_upper(features) * norm_upper(readout) + norm_upper(y)
        rounding = up(gamma(readout.shape[1] + self.pixels + 8) * size)
        self.features, still = pooled, LayerBounds(self, {}).pooled
        off = up(spectral_norm(readout)) * norm_upper(still)
        self.error = exact(up(up(norm_upper(pooled @ readout.T - y) + rounding) + off))
        self.measurements = {
            "initial error": nearest(self.error),
            "least eigenvalue of the NTK": nearest(self.start**2),
        }

    def within(self, radii: Radii, step: Fraction) -> Growth:  # noqa: ARG002
        """The bounds within these radii."""
        ball = LayerBounds(self, {g: up(r) for g, r in radii.items()})
        drift = exact(ball.drift)
        if drift >= self.start:
            return Growth(None, self.start, drift)
        return Growth(
            gain=None,
            start=self.start,
            drift=drift,
            root=self.start - drift,
            largest=(self.norm + drift) ** 2,
            travel={g: exact(t) for g, t in ball.travel.items()},
            curvature=exact(ball.curvature),
        )


@dataclass(frozen=True)
class LayerBounds:
    """The lemmas' quantities within given radii; tensors have one entry for each sample.

    Attributes:
        network: The measured network.
        radii: How far each group of weights may be from its start.
    """

    network: ExplicitGeometry
    radii: dict[str, float]

    def _norm(self, one: MeasuredLayer) -> float:
        r"""$\|W\|$ times $\|\pi\|$."""
        return (one.norm + self.radii.get(one.layer.name, 0.0)) * one.layer.reach * ROUND_UP

    @cached_property
    def moves(self) -> list[tuple[Tensor, Tensor]]:
        """For each layer how far the features below and the preactivations are from computed ones.

        The features above the last layer come last, with nothing beside them.
        """
        below = torch.zeros_like(self.network.layers[0].inputs)
        moves = []
        for one in self.network.layers:
            radius = self.radii.get(one.layer.name, 0.0)
            inner = self._norm(one) * below + radius * one.inputs + one.inner_error
            moves.append((below, inner * ROUND_UP))
            lift = one.layer.factor * one.smooth.lipschitz * ROUND_UP
            below = one.layer.skip * below + lift * moves[-1][1] + one.feature_error
            below = below * ROUND_UP
        return [*moves, (below, torch.zeros_like(below))]

    @cached_property
    def pooled(self) -> Tensor:
        """How far the features that the readout sees are from computed ones."""
        return self.moves[-1][0] * (math.sqrt(self.network.pixels) * ROUND_UP)

    @cached_property
    def adjoints(self) -> list[tuple[Tensor, Tensor]]:
        r"""For each layer how far $g$ and $k\,\sigma'(p)\,g$ are from computed ones."""
        radius = self.radii.get("readout", 0.0) * math.sqrt(self.network.pixels) * ROUND_UP
        above = torch.full_like(self.network.layers[0].inputs, radius)
        moves = []
        for one, (_, inner) in zip(reversed(self.network.layers), self.moves[-2::-1], strict=True):
            layer, smooth = one.layer, one.smooth
            turned = smooth.curvature * ROUND_UP * one.peaks * inner
            turned = turned + one.slope_error * one.adjoints + smooth.lipschitz * above
            turned = turned * ROUND_UP
            lever = layer.factor * turned + 4 * UNIT * layer.factor * one.levers
            moves.append((above, lever * ROUND_UP))
            through = self._norm(one) * turned
            through = through + self.radii.get(layer.name, 0.0) * layer.reach * one.levers
            above = (layer.skip * above + layer.factor * through + one.adjoint_error) * ROUND_UP
        return moves[::-1]

    @cached_property
    def drifts(self) -> dict[str, float]:
        """How far the gradients of each trained group are from computed ones."""
        drifts = {}
        for one, (below, _), (_, lever) in zip(
            self.network.layers, self.moves[:-1], self.adjoints, strict=True
        ):
            if one.layer.trained:
                moved = one.layer.reach * below
                change = lever * (one.inputs + moved) + one.layer.factor * one.levers * moved
                drifts[one.layer.name] = norm_upper(change * ROUND_UP)
        if "readout" in self.network.norms:
            drifts["readout"] = norm_upper(self.pooled)
        return drifts

    @property
    def drift(self) -> float:
        """How far the gradient of all groups together can have moved."""
        return norm_upper(torch.tensor(list(self.drifts.values()), dtype=torch.float64))

    @property
    def travel(self) -> dict[str, float]:
        """Bounds of the norms of the groups' gradients."""
        return {g: up(self.network.norms[g] + drift) for g, drift in self.drifts.items()}

    @property
    def curvature(self) -> float:
        r"""Half the norm of $f''[v, v]$ for $\|v_g\| \le t_g$."""
        tangent = second = torch.zeros_like(self.network.layers[0].inputs)
        travel = self.travel
        for one, (below, _), (above, lever) in zip(
            self.network.layers, self.moves[:-1], self.adjoints, strict=True
        ):
            layer, smooth, pace = one.layer, one.smooth, travel.get(one.layer.name, 0.0)
            reactions = layer.factor * one.levers + lever
            second = second + 2 * pace * layer.reach * reactions * tangent
            inner = pace * (one.inputs + layer.reach * below) + self._norm(one) * tangent
            bend = layer.factor * smooth.curvature * (one.peaks + above)
            second = (second + bend * inner**2 * ROUND_UP) * ROUND_UP
            lift = layer.factor * smooth.lipschitz
            tangent = (layer.skip * tangent + lift * inner * ROUND_UP) * ROUND_UP
        readout = 2 * travel.get("readout", 0.0) * math.sqrt(self.network.pixels)
        return up(norm_upper((second + readout * tangent) * ROUND_UP) / 2)


def _gram_root(gram: Tensor, error: float) -> float:
    """An upper bound of the root of the norm of a Gram matrix, infinite if that overflowed."""
    if not bool(gram.isfinite().all()):
        return math.inf
    return up(math.sqrt(up(spectral_norm(gram) + error)))


def _least_root(gram: Tensor, error: float) -> float:
    """A lower bound of the root of the least eigenvalue of a Gram matrix, zero if none."""
    finite = bool(gram.isfinite().all())
    least = least_eigenvalue(gram, error=error) if finite else -math.inf
    return max(0.0, down(math.sqrt(least))) if least > 0 else 0.0


def _layers(net: ExplicitNetwork) -> list[_ExplicitLayer]:
    patch = getattr(net.architecture, "patch_size", 1) ** net.spec.pixel_axes
    reach = up(math.sqrt(patch))
    layers = []
    for cell in net.layers.cells:
        name, factor = cell.weights.group, cell.gain / math.sqrt(net.spec.width)
        weight = net.get_parameter(name)
        values, trained = weight.detach().double().cpu().flatten(1), weight.requires_grad
        layers.append(
            _ExplicitLayer(name, trained, values, cell.skip, factor, cell.activation, reach)
        )
    return layers


def _patch_map(net: ExplicitNetwork, x: Tensor) -> Callable[[Tensor], Tensor]:
    """A map from features to the inputs of units; both of shape (samples, pixels, ...)."""
    if not net.spec.pixel_axes:
        return lambda features: features
    return lambda features: net.patches(
        features.transpose(1, 2).reshape(len(features), -1, *x.shape[2:])
    )


def _forward(layer: _ExplicitLayer, below: Tensor, patches: Tensor) -> _LayerPass:
    inner = patches @ layer.weight.T
    at = evaluate(layer.sigma, inner)
    features = layer.factor * at.values
    size = layer.factor * _norms(at.values)
    if layer.skip:
        features, size = below + features, _norms(below) + size
    rounding = gamma(patches.shape[2] + 2) * norm_upper(layer.weight)
    return _LayerPass(
        patches=patches,
        slopes=at.slopes,
        features=features,
        inner_error=rounding * _norms(patches) * ROUND_UP,
        feature_error=(layer.factor * _norms(at.error) + 4 * UNIT * size) * ROUND_UP,
        slope_error=up(float(at.slope_error.max())),
        proved=at.proved,
    )


def _backward(
    layer: _ExplicitLayer, forward: _LayerPass, above: Tensor, see: Callable[[Tensor], Tensor]
) -> tuple[MeasuredLayer, Tensor]:
    """The layer, and the adjoints below it, of shape (samples, outputs, pixels, units)."""
    samples, outputs, pixels, units = above.shape
    turned = forward.slopes[:, None] * above
    inputs, levers, adjoints = _norms(forward.patches), _norms(turned), _norms(above)
    reactions = (layer.factor * turned).reshape(samples * outputs, pixels, units)
    patches = forward.patches.repeat_interleave(outputs, 0)
    terms = units + patches.shape[2] + pixels**2 + 8
    square = float((layer.factor * levers * inputs).square().sum())
    patch = round(layer.reach**2)
    through = gamma(units + patch + 8) * layer.factor * layer.reach * norm_upper(layer.weight)
    measured = MeasuredLayer(
        layer=layer,
        smooth=smoothness(layer.sigma),
        norm=up(spectral_norm(layer.weight)),
        inputs=inputs,
        levers=levers,
        adjoints=adjoints,
        peaks=torch.linalg.vector_norm(above, dim=1).flatten(1).amax(1) * (1 + gamma(outputs + 8)),
        inner_error=forward.inner_error,
        feature_error=forward.feature_error,
        slope_error=forward.slope_error,
        adjoint_error=(through * levers + 4 * UNIT * layer.skip * adjoints) * ROUND_UP,
        gram=contract(patches, reactions, patches, reactions),
        gram_error=up(gamma(terms) * square * ROUND_UP) + TINY,
    )
    passed = (turned @ layer.weight).reshape(samples * outputs, pixels, -1)
    with torch.enable_grad():
        start = passed.new_zeros(len(passed), pixels, passed.shape[2] // patch, requires_grad=True)
        (gathered,) = torch.autograd.grad(see(start), start, passed)
    below = layer.factor * gathered.reshape(samples, outputs, pixels, -1)
    return measured, below + above if layer.skip else below


def _norms(tensor: Tensor) -> Tensor:
    """Upper bounds of the norm of each sample."""
    return row_norms(tensor.flatten(1))
