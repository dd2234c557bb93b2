"""A certified bound of a recurrent layer's gain, followed through training at little cost."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.equilibrium.layer import Layer
from shoal.networks.norms import operator_norm_bounds

__all__ = ["GainBound", "gain_factor"]


def gain_factor(layer: Layer) -> float:
    r"""$s L$: by what the norm of the weights is multiplied to make the gain."""
    return layer.scale * layer.activation.lipschitz if layer.scale else 0.0


class GainBound:
    r"""Bounds the gain of recurrent layers from above while weights change, rounding included.

    It is $s L \|W\|$, or the product of those of several layers. Since
    $\|W'\| \le \|W\| + \|W' - W\|_F$, the norms themselves are bounded anew only when the
    weights have moved far enough for it to matter.

    Args:
        factors: $s L$ of each layer.
    """

    def __init__(self, factors: Sequence[float]) -> None:
        self.factors = tuple(factors)
        self.known: list[tuple[Tensor, float]] = []  # weights, and bounds of their gains

    @torch.no_grad()
    def upper(self, weights: Sequence[Tensor], limit: float) -> float:
        """A bound; above ``limit`` only if that is within a thousandth of the truth."""
        if self.known:
            drifted = zip(self.factors, weights, self.known, strict=True)
            bound = math.prod(_after_drift(*one) for one in drifted)
            if bound <= limit:
                return bound
        self.learn(weights, self.measure(weights))
        return math.prod(bound for _, bound in self.known)

    def measure(self, weights: Sequence[Tensor]) -> list[float]:
        """Bounds of the gains of all layers, as their weights are."""
        pairs = zip(self.factors, weights, strict=True)
        return [factor * operator_norm_bounds(weight).upper for factor, weight in pairs]

    def learn(self, weights: Sequence[Tensor], bounds: Sequence[float]) -> None:
        """Take over bounds that are known."""
        self.known = [(w.detach().clone(), b) for w, b in zip(weights, bounds, strict=True)]


def _after_drift(factor: float, weight: Tensor, known: tuple[Tensor, float]) -> float:
    before, bound = known
    drift = float(torch.linalg.matrix_norm((weight - before).double()))
    return bound + factor * drift * (1 + 1e-9 + torch.finfo(weight.dtype).eps)
