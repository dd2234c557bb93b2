"""Networks that one might take instead of a DEQ, and how finite ones are trained."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import shoal
from shoal import DEQ, Architecture
from shoal.networks import EquilibriumNetwork, Network

TITLES = {
    "deq": "DEQ",
    "ntk-design": "NTK design",
    "ck-design": "CK design",
    "naive": "the same activation, one layer",
}


@lru_cache(maxsize=16)
def designed(architecture: Architecture, which: str, method: str) -> shoal.designs.Design:
    """The design for inputs of norm 1 by ``"moments"`` or on the ``"sphere"``, made once."""
    return shoal.design(architecture, input_norm=1.0, which=which, method=method)


def rival(name: str, deq: DEQ) -> Architecture:
    """A network to be compared with a DEQ, for inputs of norm 1.

    Args:
        name: ``"deq"``: the DEQ itself. ``"ntk-design"``, ``"ck-design"``: one layer that has its
            NTK or CK on the sphere. ``"naive"``: one layer with its activation as it is.
        deq: The DEQ.
    """
    if name == "deq":
        return deq
    if name == "naive":
        return shoal.FullyConnected(deq.activations)
    return designed(deq, name.removesuffix("-design"), "sphere").architecture


def wide_kernels(name: str, deq: DEQ, x: Tensor) -> shoal.kernels.Kernels:
    r"""The kernels of a rival of infinite width, all weights being trained, for ``x`` of norm 1.

    Designs on the sphere have kernels of the DEQ, which are computed much faster. One
    layer with the CK $g(c)$ has the NTK $g + c g'$; for the DEQ,
    $c g' = \sigma_b^2 c \dot E/(1 - \sigma_a^2 \dot E)$ is the share of the input weights. So the
    CK design has the NTK of the DEQ whose recurrent weights are frozen. (The CK returned for the
    NTK design is the DEQ's too, which the design does not have.)
    """
    if name == "ntk-design":
        return shoal.kernel(deq, x)
    if name == "ck-design":
        return shoal.kernel(deq, x, trainable={"readout", "input"})
    return shoal.kernel(rival(name, deq), x)


def make(architecture: Architecture, x: Tensor, **options: Any) -> Network[Any]:
    """Build a network for inputs like ``x``; equilibria that are not found give a warning."""
    if isinstance(architecture, DEQ):
        options["on_failure"] = "warn"
    else:
        options.pop("warm_start", None)
    network: Network[Any] = shoal.build(
        architecture, in_features=x.shape[1], dtype=x.dtype, device=x.device, **options
    )
    return network


def full_batch(
    network: Network[Any], x: Tensor, y: Tensor, *, step_size: float, steps: Sequence[int]
) -> Tensor:
    r"""Outputs after some numbers of steps of gradient descent for $\frac1{2n}\|f - y\|_F^2$.

    All samples are in each step, and the network's initial function is subtracted from it.
    """
    groups = [p for p in network.parameters() if p.requires_grad]
    kept: list[Tensor] = []
    with torch.no_grad():
        initial = network(x)
    for step in range(max(steps) + 1):
        outputs = network(x) - initial
        if step in steps:
            kept.append(outputs.detach())
        if step < max(steps):
            gradients = torch.autograd.grad(outputs, groups, (outputs.detach() - y) / len(x))
            with torch.no_grad():
                for group, gradient in zip(groups, gradients, strict=True):
                    group.sub_(gradient, alpha=step_size)
    return torch.stack(kept)


@torch.no_grad()
def features(network: Network[Any], x: Tensor) -> Tensor:
    """The inputs of the readout of a network, in the scale of the conjugate kernel."""
    if isinstance(network, EquilibriumNetwork):
        return network.solve(x).value
    return network.trace(x).features.detach()


@torch.no_grad()
def ridge_readout(network: Network[Any], x: Tensor, y: Tensor, ridge: float) -> Tensor:
    r"""The readout $W$ with the least $\|ZW - Y\|_F^2 + \lambda\|W\|_F^2$, in float64."""
    z = features(network, x).double()  # whose Gram matrix is nearly singular
    gram = z.T @ z
    gram.diagonal().add_(ridge)
    return torch.cholesky_solve(z.T @ y.double(), torch.linalg.cholesky(gram))
