"""What is known about the training of explicit networks."""

import math
from contextlib import suppress

import torch
from torch import Tensor

from shoal.architectures import Architecture, ConvResNet, FullyConnected, ResNet
from shoal.certificates.argument import sharper_conclusions
from shoal.certificates.certificate import Certificate, Conclusion
from shoal.certificates.certify import Question, certify_architecture
from shoal.certificates.evidence.rounding import nearest
from shoal.certificates.evidence.smoothness import smoothness
from shoal.certificates.explicit import (
    ExplicitNetwork,
    MeasuredExplicit,
    activations,
    gram_least,
    measure_explicit,
    patch_pixels,
    residual_scale,
)
from shoal.certificates.layers import ExplicitGeometry
from shoal.certificates.papers.du2018 import (
    Du2018Bounds,
    fully_connected_lemmas,
    residual_lemmas,
    theorem,
)
from shoal.certificates.refusals import not_smooth
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.gaussian import dual
from shoal.gaussian.moments import normalization
from shoal.kernels import kernel, pair_eigenvalue
from shoal.networks.chain import ChainNetwork

__all__ = ["certify_explicit", "du2018_bounds", "separation"]

SHARPER = "shoal's theorem for explicit networks"


@certify_architecture.register(FullyConnected)
@certify_architecture.register(ResNet)
@certify_architecture.register(ConvResNet)
def certify_explicit(architecture: Architecture, question: Question) -> Certificate:
    """The theorem of Du 2018 for the architecture, where it applies, and the sharper one."""
    net, x, y, step_size = question
    assert isinstance(net, ChainNetwork)
    for phi in activations(net):
        if smoothness(phi).jump or math.isinf(smoothness(phi).curvature):
            return not_smooth(smoothness(phi), SHARPER)
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
            full = isinstance(architecture, FullyConnected)
            lemmas = fully_connected_lemmas(bounds) if full else residual_lemmas(bounds)
            conclusions += theorem(bounds, lemmas, step_size=step_size)
            numbers |= _numbers(bounds)
    return Certificate(conclusions, numbers)


def _covered(net: ExplicitNetwork, measured: MeasuredExplicit) -> bool:
    """Whether a network is one of Du 2018."""
    architecture = net.architecture
    normalized = not isinstance(architecture, FullyConnected) or architecture.normalized
    signs = len(net.readout) == 1 and bool((net.readout.abs() == 1).all())
    trained = all(layer.trained for layer in measured.layers) and not measured.readout_trained
    alive = all(layer.norm * layer.smooth.lipschitz > 0 for layer in measured.layers)
    return normalized and signs and trained and alive and len(set(activations(net))) == 1


def du2018_bounds(
    net: ExplicitNetwork, x: Tensor, measured: MeasuredExplicit, error: float
) -> Du2018Bounds:
    """What the theorems ask of a network and its data."""
    architecture, last = net.architecture, measured.layers[-1]
    limit = kernel(architecture, x, trainable={last.name}).ntk
    scale = residual_scale(net)
    number = {FullyConnected: "3.1", ResNet: "4.1", ConvResNet: "5.1"}[type(architecture)]
    return Du2018Bounds(
        theorem=f"Du 2018, Theorem {number}",
        samples=len(x),
        depth=architecture.depth,
        width=net.spec.width,
        limit=float(torch.linalg.eigvalsh(limit)[0]),
        gram=gram_least(last.gram, last.gram_error),
        separation=separation(architecture, x),
        norm_error=float((torch.linalg.vector_norm(x.flatten(1), dim=1) - 1).abs().max()),
        weight=max(layer.norm for layer in measured.layers) / math.sqrt(net.spec.width),
        feature=float(measured.feature_norms.max()),
        normalization=normalization(activations(net)[0]),
        lipschitz=last.smooth.lipschitz,
        smoothness=last.smooth.curvature,
        error=error,
        scale=scale or 0.0,
        pixels=measured.pixels,
        patch=patch_pixels(net),
        exponential=scale is None,
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


def _numbers(bounds: Du2018Bounds) -> dict[str, float]:
    return {
        "lambda_0": bounds.limit,
        "least eigenvalue of G^(H)": bounds.gram,
        "lambda": bounds.separation,
        "c_sigma": bounds.normalization,
        "Lipschitz constant": bounds.lipschitz,
        "smoothness constant": bounds.smoothness,
        "c_w0": bounds.weight,
        "c_x0": bounds.feature,
    }
