"""What is known about the training of explicit networks."""

import math

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.architectures import Architecture, ConvResNet, FullyConnected, ResNet
from shoal.certificates.argument import sharper_conclusions
from shoal.certificates.du2018 import (
    Du2018Bounds,
    fully_connected_lemmas,
    residual_lemmas,
    theorem,
)
from shoal.certificates.enclosures import least_eigenvalue
from shoal.certificates.explicit import ExplicitNetwork, MeasuredExplicit, measure_explicit
from shoal.certificates.layers import ExplicitGeometry
from shoal.certificates.refusals import not_smooth
from shoal.certificates.smoothness import smoothness
from shoal.certificates.values import Certificate, Conclusion
from shoal.certificates.verb import Question, certify_architecture
from shoal.kernels import kernel, pair_eigenvalue
from shoal.models.fully_connected import normalization

__all__ = ["certify_explicit", "du2018_bounds"]

SHARPER = "shoal's theorem for explicit networks"


@certify_architecture.register(FullyConnected)
@certify_architecture.register(ResNet)
@certify_architecture.register(ConvResNet)
def certify_explicit(architecture: Architecture, question: Question) -> Certificate:
    """The theorem of Du 2018 for the architecture, where it applies, and the sharper one."""
    net, x, y, step_size = question
    assert isinstance(net, ExplicitNetwork)
    assert isinstance(architecture, FullyConnected | ResNet | ConvResNet)
    if isinstance(architecture, FullyConnected) and architecture.norm_gated:
        raise TypeError("no theorem is known for networks that are gated by the norm, like net")
    for phi in _activations(architecture):
        if smoothness(phi).jump or math.isinf(smoothness(phi).curvature):
            return not_smooth(smoothness(phi), SHARPER)
    measured = measure_explicit(net, x, y)
    geometry = ExplicitGeometry(measured)
    conclusions: tuple[Conclusion, ...] = sharper_conclusions(
        geometry, SHARPER, step_size=step_size
    )
    numbers = {
        "initial error": float(geometry.error),
        "least eigenvalue of the NTK": float(geometry.start) ** 2,
    }
    if _covered(net, measured):
        bounds = du2018_bounds(net, x, measured, float(geometry.error))
        full = isinstance(architecture, FullyConnected)
        lemmas = fully_connected_lemmas(bounds) if full else residual_lemmas(bounds)
        conclusions += theorem(bounds, lemmas, step_size=step_size)
        numbers |= _numbers(bounds)
    return Certificate(conclusions, numbers)


def _activations(architecture: FullyConnected | ResNet | ConvResNet) -> tuple[Activation, ...]:
    if isinstance(architecture, ConvResNet):
        return (architecture.activation,) * architecture.depth
    return architecture.activations


def _covered(net: ExplicitNetwork, measured: MeasuredExplicit) -> bool:
    """Whether a network is one of Du 2018."""
    architecture = net.architecture
    normalized = not isinstance(architecture, FullyConnected) or architecture.normalized
    signs = len(net.readout) == 1 and bool((net.readout.abs() == 1).all())
    trained = all(layer.trained for layer in measured.layers) and not measured.readout_trained
    return normalized and signs and trained and len(set(_activations(architecture))) == 1


def du2018_bounds(
    net: ExplicitNetwork, x: Tensor, measured: MeasuredExplicit, error: float
) -> Du2018Bounds:
    """What the theorems ask of a network and its data."""
    architecture, last = net.architecture, measured.layers[-1]
    limit = kernel(architecture, x, trainable={last.name}).ntk
    residual = not isinstance(architecture, FullyConnected)
    convolutional = isinstance(architecture, ConvResNet)
    number = {FullyConnected: "3.1", ResNet: "4.1", ConvResNet: "5.1"}[type(architecture)]
    return Du2018Bounds(
        theorem=f"Du 2018, Theorem {number}",
        samples=len(x),
        depth=architecture.depth,
        width=net.spec.width,
        limit=float(torch.linalg.eigvalsh(limit)[0]),
        gram=least_eigenvalue(last.gram, error=last.gram_error),
        separation=_separation(architecture, x),
        norm_error=float((torch.linalg.vector_norm(x.flatten(1), dim=1) - 1).abs().max()),
        weight=max(layer.norm for layer in measured.layers) / math.sqrt(net.spec.width),
        feature=float(measured.feature_norms.max()),
        normalization=normalization(_activations(architecture)[0]),
        lipschitz=last.smooth.lipschitz,
        smoothness=last.smooth.curvature,
        error=error,
        scale=architecture.residual_scale if residual else 0.0,
        pixels=measured.pixels,
        patch=architecture.patch_size**net.spec.pixel_axes if convolutional else 1,
        exponential=not residual,
    )


def _separation(architecture: Architecture, x: Tensor) -> float:
    r"""$\lambda$: how far pairs of inputs, and of features of layers below, are from parallel."""
    if len(x) < 2:
        return math.inf
    least = pair_eigenvalue(x.flatten(1))
    if isinstance(architecture, FullyConnected):
        for depth in range(1, architecture.depth):
            below = FullyConnected(architecture.activations[:depth], normalized=True)
            gram = kernel(below, x).ck
            squares = gram.diagonal()
            halves = (squares[:, None] - squares) / 2
            pairs = (squares[:, None] + squares) / 2 - torch.hypot(halves, gram)
            pairs.diagonal().fill_(math.inf)
            least = min(least, max(0.0, float(pairs.min())))
    return least


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
