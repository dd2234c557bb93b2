"""What the theorems of Du 2018 say of random networks."""

import math
from dataclasses import replace

import torch

from shoal.architectures import Architecture, FullyConnected, ResNet
from shoal.certificates.du2018 import (
    Du2018Bounds,
    fully_connected_lemmas,
    residual_lemmas,
    theorem,
)
from shoal.certificates.explicit_theorems import separation
from shoal.certificates.rounding import norm_upper
from shoal.certificates.smoothness import smoothness
from shoal.certificates.values import Conclusion
from shoal.certificates.width_laws import Draw, Law, random_networks
from shoal.gaussian.moments import normalization
from shoal.kernels import kernel

__all__ = ["explicit_networks"]

_FEATURES = 2.0  # c_{x,0} of Lemma A.1


@random_networks.register(FullyConnected)
@random_networks.register(ResNet)
def explicit_networks(architecture: Architecture, draw: Draw) -> Law:
    r"""Features have norms of 2 at most, and $G^{(H)}(0)$ is $\frac34\lambda_0$ or more.

    Lemmas A.1, A.2, B.1 and B.2 say so with high probability, from widths on that have no explicit
    constants. Norms of weights and initial outputs have them.
    """
    assert isinstance(architecture, FullyConnected | ResNet)
    _check(architecture, draw)
    x, y, failure = draw.x, draw.y, draw.failure / 2
    full, depth = isinstance(architecture, FullyConnected), architecture.depth
    phi = architecture.activations[0]
    smooth = smoothness(phi)
    gram = kernel(architecture, x, trainable={f"layer{depth}"}).ntk
    limit = float(torch.linalg.eigvalsh(gram)[0])
    norms = torch.linalg.vector_norm(x, dim=1)
    t = math.sqrt(2 * math.log(depth / failure))
    known = Du2018Bounds(
        theorem="Du 2018, Theorem 3.1" if full else "Du 2018, Theorem 4.1",
        samples=len(x),
        depth=depth,
        width=1,
        limit=limit,
        gram=0.75 * limit,
        separation=separation(architecture, x),
        norm_error=float((norms - 1).abs().max()),
        weight=1.0,
        feature=_FEATURES,
        normalization=normalization(phi),
        lipschitz=smooth.lipschitz,
        smoothness=smooth.curvature,
        # an output has the variance of the features' squared norm; Markov's inequality
        error=norm_upper(y) + _FEATURES * math.sqrt(len(x) / failure),
        scale=0.0 if isinstance(architecture, FullyConnected) else architecture.residual_scale,
        exponential=full,
    )

    def law(width: int) -> tuple[Conclusion, ...]:
        size = math.sqrt(max(width, x.shape[1]))
        weight = 1 + (size + t) / math.sqrt(width)
        bounds = replace(known, width=width, weight=weight)
        lemmas = fully_connected_lemmas(bounds) if full else residual_lemmas(bounds)
        return theorem(bounds, lemmas)

    return law


def _check(architecture: FullyConnected | ResNet, draw: Draw) -> None:
    """Say why networks are not those of Du 2018, if so."""
    phi = architecture.activations[0]
    smooth = smoothness(phi)
    if smooth.jump or math.isinf(smooth.curvature) or len(set(architecture.activations)) > 1:
        raise TypeError(f"architecture must have one smooth activation, got {architecture}")
    usual = isinstance(architecture, ResNet)
    if not usual and architecture != FullyConnected.du2018(phi, architecture.depth):
        raise TypeError(f"architecture must be a network as in Du 2018, got {architecture}")
    if draw.y.shape[1] > 1 or abs(draw.readout_scale) != 1:
        raise ValueError("the theorems of Du 2018 are for one output and readout_scale = 1")
