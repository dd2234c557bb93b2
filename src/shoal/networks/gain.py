"""A certified bound of a recurrent layer's gain, followed through training at little cost."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.core.checks import float_tensor
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
        groups: For each, of how many matrices one below the other its weights are made, each of
            which acts on entries of its own; one by default.
        name: What errors call the weights.
    """

    def __init__(
        self,
        factors: Sequence[float],
        groups: Sequence[int] | None = None,
        *,
        name: str = "recurrent weights",
    ) -> None:
        self.factors, self.name = tuple(factors), name
        self.groups = (1,) * len(self.factors) if groups is None else tuple(groups)
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
        each = [
            (factor, float_tensor(self.name, weight), groups)
            for factor, weight, groups in zip(self.factors, weights, self.groups, strict=True)
        ]
        return [factor * operator_norm_bounds(_matrix(w, n)).upper for factor, w, n in each]

    def learn(self, weights: Sequence[Tensor], bounds: Sequence[float]) -> None:
        """Take over bounds that are known."""
        self.known = [(w.detach().clone(), b) for w, b in zip(weights, bounds, strict=True)]


def _matrix(weight: Tensor, groups: int) -> Tensor:
    """Weights as a matrix, a row for each entry of the first dimension; blocks of it if several."""
    rows = weight.flatten(1)
    return rows if groups == 1 else rows.reshape(groups, len(rows) // groups, -1)


def _after_drift(factor: float, weight: Tensor, known: tuple[Tensor, float]) -> float:
    before, bound = known
    drift = float(torch.linalg.vector_norm((weight - before).double()))
    return bound + factor * drift * (1 + 1e-9 + torch.finfo(weight.dtype).eps)
