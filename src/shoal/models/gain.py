"""A certified bound of a recurrent layer's gain, followed through training at little cost."""

import torch
from torch import Tensor

from shoal.gradients.layer import Layer
from shoal.models.norms import operator_norm_bounds

__all__ = ["GainBound", "gain_factor"]


def gain_factor(layer: Layer) -> float:
    r"""$s L$: by what the norm of the weights is multiplied to make the gain."""
    return layer.scale * layer.activation.lipschitz if layer.scale else 0.0


class GainBound:
    r"""Bounds the gain $s L \|W\|$ of changing weights from above, rounding included.

    Since $\|W'\| \le \|W\| + \|W' - W\|_F$, the norm itself is bounded anew only when the weights
    have moved far enough for it to matter.

    Args:
        factor: $s L$.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.known: tuple[Tensor, float] | None = None  # weights, and a bound of their gain

    @torch.no_grad()
    def upper(self, weight: Tensor, limit: float) -> float:
        """A bound; above ``limit`` only if that is within a thousandth of the truth."""
        if self.known is not None:
            before, bound = self.known
            drift = float(torch.linalg.matrix_norm((weight - before).double()))
            bound += self.factor * drift * (1 + 1e-9 + torch.finfo(weight.dtype).eps)
            if bound <= limit:
                return bound
        bound = self.factor * operator_norm_bounds(weight).upper
        self.learn(weight, bound)
        return bound

    def learn(self, weight: Tensor, bound: float) -> None:
        """Take over a bound that was found elsewhere."""
        self.known = (weight.detach().clone(), bound)
