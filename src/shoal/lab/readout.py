"""Readouts of fixed random features."""

from typing import Any

import torch
from torch import Tensor

from shoal.networks import EquilibriumNetwork, Network

__all__ = ["accuracy", "features", "ridge_readout"]

_ROWS = 8192  # at a time: bounds the memory


@torch.no_grad()
def features(network: Network[Any], x: Tensor) -> Tensor:
    """What the readout of a network sees, in the scale of the conjugate kernel."""
    if isinstance(network, EquilibriumNetwork):
        return network.solve(x).value
    return network.trace(x).features.detach()


@torch.no_grad()
def ridge_readout(network: Network[Any], x: Tensor, y: Tensor, ridge: float) -> Tensor:
    r"""The readout $W$ with the least $\|ZW - Y\|_F^2 + \lambda\|W\|_F^2$, in float64.

    Sums over samples are float64 too: the features' Gram matrix is nearly singular.
    """
    width = network.spec.width
    gram = torch.zeros(width, width, dtype=torch.float64, device=x.device)
    moments = torch.zeros(width, y.shape[1], dtype=torch.float64, device=x.device)
    for rows, targets in zip(x.split(_ROWS), y.split(_ROWS), strict=True):
        z = features(network, rows).double()
        gram.addmm_(z.t(), z)
        moments.addmm_(z.t(), targets.double())
    gram.diagonal().add_(ridge)
    return torch.cholesky_solve(moments, torch.linalg.cholesky(gram))


@torch.no_grad()
def accuracy(network: Network[Any], x: Tensor, labels: Tensor, readout: Tensor | None) -> float:
    """The share of images whose largest output is that of their class.

    Args:
        network: The network.
        x: The images.
        labels: Their classes.
        readout: In place of the network's own.
    """
    right = torch.zeros((), dtype=torch.long, device=x.device)
    for rows, classes in zip(x.split(_ROWS), labels.split(_ROWS), strict=True):
        outputs = network(rows) if readout is None else features(network, rows).double() @ readout
        right += (outputs.argmax(1) == classes).sum()
    return right.item() / len(x)
