"""What is known about the training of explicit networks: those there are, and random ones."""

import math
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from shoal.architectures import Architecture, ConvResNet, FullyConnected, ResNet
from shoal.certificates.argument import sharper_conclusions
from shoal.certificates.certificate import Certificate, Conclusion
from shoal.certificates.certify import Question, certify_architecture
from shoal.certificates.evidence.activations import smoothness
from shoal.certificates.evidence.rounding import nearest, norm_upper
from shoal.certificates.explicit import (
    ExplicitNetwork,
    MeasuredExplicit,
    gram_least,
    measure_explicit,
    patch_pixels,
)
from shoal.certificates.layers import ExplicitGeometry
from shoal.certificates.papers.du2018 import Du2018Bounds, theorem
from shoal.certificates.refusals import not_smooth
from shoal.certificates.width import Draw, Law, NoLaw, random_networks
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.gaussian import dual
from shoal.gaussian.moments import normalization
from shoal.kernels import kernel, pair_eigenvalue
from shoal.kernels.calculi.pixels import Images
from shoal.kernels.recursions import network_kernels
from shoal.networks.chain import ChainNetwork

SHARPER = "shoal's theorem for explicit networks"
_SLACK = 2.0  # of norms over those of the infinitely wide network: c_{x,0} of Lemma A.1
_NUMBERS = {FullyConnected: "3.1", ResNet: "4.1", ConvResNet: "5.1"}

Explicit = FullyConnected | ResNet | ConvResNet


@certify_architecture.register(FullyConnected)
@certify_architecture.register(ResNet)
@certify_architecture.register(ConvResNet)
def certify_explicit(architecture: Explicit, question: Question) -> Certificate:
    """The theorem of Du 2018 for the architecture, where it applies, and the sharper one."""
    net, x, y, step_size = question
    assert isinstance(net, ChainNetwork)
    for smooth in map(smoothness, architecture.activations):
        if smooth.jump or math.isinf(smooth.curvature):
            return not_smooth(smooth, SHARPER)
    measured = measure_explicit(net, x, y)
    geometry = ExplicitGeometry(measured)
    conclusions: tuple[Conclusion, ...] = sharper_conclusions(
        geometry, SHARPER, step_size=step_size
    )
    error = nearest(geometry.error)
    numbers = {
        "initial error": error,
        "least eigenvalue of the NTK": nearest(geometry.start**2),
    }
    if _covered(net, measured):
        # inputs may be too large for the limit to be computed; the theorem is for those of norm one
        with suppress(AccuracyError, ConvergenceError):
            bounds = du2018_bounds(net, x, measured, error)
            conclusions += theorem(bounds, step_size=step_size)
            numbers |= {
                "lambda_0": bounds.limit,
                "least eigenvalue of G^(H)": bounds.gram,
                "lambda": bounds.separation,
                "c_sigma": bounds.normalization,
                "Lipschitz constant": bounds.lipschitz,
                "smoothness constant": bounds.smoothness,
                "c_w0": bounds.weight,
                "c_x0": bounds.feature,
            }
    return Certificate(conclusions, numbers)


def _covered(net: ExplicitNetwork, measured: MeasuredExplicit) -> bool:
    """Whether a network is one of Du 2018."""
    architecture = net.architecture
    normalized = not isinstance(architecture, FullyConnected) or architecture.normalized
    signs = len(net.readout) == 1 and bool((net.readout.abs() == 1).all())
    trained = all(layer.trained for layer in measured.layers) and not measured.readout_trained
    alive = all(layer.norm * layer.smooth.lipschitz > 0 for layer in measured.layers)
    return normalized and signs and trained and alive and len(set(architecture.activations)) == 1


def _bounds(architecture: Explicit, x: Tensor) -> Du2018Bounds:
    """What the theorems ask of an architecture and its inputs, of width one and without errors."""
    phi, full = architecture.activations[0], isinstance(architecture, FullyConnected)
    smooth = smoothness(phi)
    limit = kernel(architecture, x, trainable={f"layer{architecture.depth}"}).ntk
    least = float(torch.linalg.eigvalsh(limit)[0])
    return Du2018Bounds(
        theorem=f"Du 2018, Theorem {_NUMBERS[type(architecture)]}",
        samples=len(x),
        depth=architecture.depth,
        width=1,
        limit=least,
        gram=least,
        separation=separation(architecture, x),
        norm_error=float((torch.linalg.vector_norm(x.flatten(1), dim=1) - 1).abs().max()),
        weight=1.0,
        feature=1.0,
        normalization=normalization(phi),
        lipschitz=smooth.lipschitz,
        smoothness=smooth.curvature,
        error=0.0,
        scale=0.0 if isinstance(architecture, FullyConnected) else architecture.residual_scale,
        pixels=x[0, 0].numel(),
        patch=patch_pixels(architecture, x.dim() - 2),
        exponential=full,
    )


def du2018_bounds(
    net: ExplicitNetwork, x: Tensor, measured: MeasuredExplicit, error: float
) -> Du2018Bounds:
    """What the theorems ask of a network and its data."""
    last = measured.layers[-1]
    return replace(
        _bounds(net.architecture, x),
        width=net.spec.width,
        gram=gram_least(last.gram, last.gram_error),
        weight=max(layer.norm for layer in measured.layers) / math.sqrt(net.spec.width),
        feature=float(measured.feature_norms.max()),
        error=error,
    )


def limit_bounds(architecture: Explicit, x: Tensor, labels: float, failure: float) -> Du2018Bounds:
    """What they ask of random networks, but for the width, which is one, and the weights."""
    squares = kernel(architecture, x, diag=True).ck  # of outputs, on average over readouts
    features = squares
    if isinstance(architecture, ConvResNet):
        found = network_kernels(architecture.layers(), Images.of(architecture, x), frozenset())
        features = found.ck.flatten(1).sum(1)
    bounds = _bounds(architecture, x)
    return replace(
        bounds,
        gram=0.75 * bounds.limit,
        feature=_SLACK * math.sqrt(max(1.0, float(features.max()))),
        error=labels + _SLACK * math.sqrt(float(squares.sum()) / failure),  # Markov's inequality
    )


def separation(architecture: Architecture, x: Tensor) -> float:
    r"""$\lambda$: how far pairs of inputs, and of features of layers below, are from parallel."""
    if len(x) < 2:
        return math.inf
    least = pair_eigenvalue(x.flatten(1))
    if isinstance(architecture, FullyConnected):
        gram = x @ x.T
        for phi in architecture.activations[:-1]:
            squares = gram.diagonal().contiguous()
            gram = normalization(phi) * dual(phi, squares[:, None], squares, gram)
            least = min(least, _least_pair(gram))
    return least


def _least_pair(gram: Tensor) -> float:
    """The least eigenvalue of all pairs of different samples."""
    squares = gram.diagonal()
    halves = (squares[:, None] - squares) / 2
    pairs = (squares[:, None] + squares) / 2 - torch.hypot(halves, gram)
    pairs.diagonal().fill_(math.inf)
    return max(0.0, float(pairs.min()))


@random_networks.register(FullyConnected)
@random_networks.register(ResNet)
@random_networks.register(ConvResNet)
def explicit_law(architecture: Explicit, draw: Draw) -> Law | NoLaw:
    r"""Features are at most twice as large as in the limit, and $G^{(H)}(0)$ is $\frac34\lambda_0$.

    Lemmas 1 and 2 of Appendices A, B and C say so with high probability, from widths on that have
    no explicit constants. Norms of weights and initial outputs have them.
    """
    if (reason := _why_not(architecture, draw)) is not None:
        return reason
    x, y, failure = draw.x, draw.y, draw.failure / 2
    known = limit_bounds(architecture, x, norm_upper(y), failure)
    t = math.sqrt(2 * math.log(known.depth / failure))

    def law(width: int) -> tuple[Conclusion, ...]:
        seen = known.patch * max(width, x.shape[1])  # what a unit sees
        weight = 1 + (math.sqrt(seen) + t) / math.sqrt(width)
        return theorem(replace(known, width=width, weight=weight))

    return law


def _why_not(architecture: Explicit, draw: Draw) -> NoLaw | None:
    """Why networks are not those of Du 2018, if so."""
    sigmas = architecture.activations
    smooth = smoothness(sigmas[0])
    if smooth.jump or math.isinf(smooth.curvature) or len(set(sigmas)) > 1:
        return "the theorems of Du 2018 are for networks with one activation, which is smooth"
    if isinstance(architecture, FullyConnected) and architecture != FullyConnected.du2018(
        sigmas[0], architecture.depth
    ):
        return "Theorem 3.1 of Du 2018 is for the networks of FullyConnected.du2018"
    if draw.y.shape[1] > 1 or abs(draw.readout_scale) != 1:
        return "the theorems of Du 2018 are for one output and readout_scale = 1"
    return None
