"""What the theorems of Du 2018 say of random networks."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from shoal.architectures import Architecture, ConvResNet, FullyConnected, ResNet
from shoal.certificates.certificate import Conclusion
from shoal.certificates.evidence.rounding import norm_upper
from shoal.certificates.evidence.smoothness import smoothness
from shoal.certificates.explicit_theorems import separation
from shoal.certificates.papers.du2018 import (
    Du2018Bounds,
    fully_connected_lemmas,
    residual_lemmas,
    theorem,
)
from shoal.certificates.width import Draw, Law, NoLaw, random_networks
from shoal.gaussian.moments import normalization
from shoal.kernels import kernel
from shoal.kernels.calculi.pixels import Images
from shoal.kernels.recursions import network_kernels

__all__ = ["explicit_networks"]

_SLACK = 2.0  # of norms over those of the infinitely wide network: c_{x,0} of Lemma A.1
_NUMBERS = {FullyConnected: "3.1", ResNet: "4.1", ConvResNet: "5.1"}


@random_networks.register(FullyConnected)
@random_networks.register(ResNet)
@random_networks.register(ConvResNet)
def explicit_networks(architecture: Architecture, draw: Draw) -> Law | NoLaw:
    r"""Features are at most twice as large as in the limit, and $G^{(H)}(0)$ is $\frac34\lambda_0$.

    Lemmas 1 and 2 of Appendices A, B and C say so with high probability, from widths on that have
    no explicit constants. Norms of weights and initial outputs have them.
    """
    assert isinstance(architecture, FullyConnected | ResNet | ConvResNet)
    if (reason := _why_not(architecture, draw)) is not None:
        return reason
    x, y, failure = draw.x, draw.y, draw.failure / 2
    known = _known(architecture, x, norm_upper(y), failure)
    t = math.sqrt(2 * math.log(known.depth / failure))

    def law(width: int) -> tuple[Conclusion, ...]:
        seen = known.patch * max(width, x.shape[1])  # what a unit sees
        weight = 1 + (math.sqrt(seen) + t) / math.sqrt(width)
        bounds = replace(known, width=width, weight=weight)
        lemmas = fully_connected_lemmas if known.exponential else residual_lemmas
        return theorem(bounds, lemmas(bounds))

    return law


def _known(
    architecture: FullyConnected | ResNet | ConvResNet, x: Tensor, labels: float, failure: float
) -> Du2018Bounds:
    """All that does not depend on the width, which is set to one."""
    phi, full = architecture.activations[0], isinstance(architecture, FullyConnected)
    smooth = smoothness(phi)
    gram = kernel(architecture, x, trainable={f"layer{architecture.depth}"}).ntk
    limit = float(torch.linalg.eigvalsh(gram)[0])
    squares = kernel(architecture, x, diag=True).ck  # of outputs, on average over readouts
    features, pixels, patch = squares, 1, 1
    if isinstance(architecture, ConvResNet):
        found = network_kernels(architecture.layers(), Images.of(architecture, x), frozenset())
        features = found.ck.flatten(1).sum(1)
        pixels, patch = x[0, 0].numel(), architecture.patch_size ** (x.dim() - 2)
    return Du2018Bounds(
        theorem=f"Du 2018, Theorem {_NUMBERS[type(architecture)]}",
        samples=len(x),
        depth=architecture.depth,
        width=1,
        limit=limit,
        gram=0.75 * limit,
        separation=separation(architecture, x),
        norm_error=float((torch.linalg.vector_norm(x.flatten(1), dim=1) - 1).abs().max()),
        weight=1.0,
        feature=_SLACK * math.sqrt(max(1.0, float(features.max()))),
        normalization=normalization(phi),
        lipschitz=smooth.lipschitz,
        smoothness=smooth.curvature,
        error=labels + _SLACK * math.sqrt(float(squares.sum()) / failure),  # Markov's inequality
        scale=0.0 if isinstance(architecture, FullyConnected) else architecture.residual_scale,
        pixels=pixels,
        patch=patch,
        exponential=full,
    )


def _why_not(architecture: FullyConnected | ResNet | ConvResNet, draw: Draw) -> NoLaw | None:
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
