"""How much weight can lie on units that cross a kink."""

import math

import torch
from torch import Tensor

from shoal.certificates.rounding import gamma, up

__all__ = ["Crossings"]


class Crossings:
    r"""What crossing units can weigh, for one sample, as a function of how far inputs can move.

    If preactivations at distances $d_r$ from the nearest kink move by at most $\beta$ together, those
    that cross have $\sum_r d_r^2 \le \beta^2$. Of all such sets, the one with the largest weight
    $\sum_r w_r^2$ is a knapsack, which is bounded by its linear relaxation: units in the order of
    $w_r^2/d_r^2$, the last one in part. The bound increases with $\beta$.

    Args:
        distances: $d_r$, float64.
        weights: $w_r$, float64.
    """

    def __init__(self, distances: Tensor, weights: Tensor) -> None:
        cost, value = distances.square(), weights.square()
        order = (value / cost.clamp(min=torch.finfo(cost.dtype).tiny)).argsort(descending=True)
        self._costs = cost[order].cumsum(0)
        self._values = value[order].cumsum(0)
        self._growth = 1 + gamma(4 * len(cost) + 64)

    def weight(self, budget: float) -> float:
        r"""What $(\sum_r w_r^2)^{1/2}$ can be at most if $\sum_r d_r^2 \le$ ``budget``."""
        budget *= self._growth
        taken = int(torch.searchsorted(self._costs, budget, right=True))
        value = float(self._values[taken - 1]) if taken else 0.0
        if taken < len(self._costs):
            before = float(self._costs[taken - 1]) if taken else 0.0
            step = float(self._costs[taken]) - before
            share = min(1.0, max(0.0, budget - before) / step) if step > 0 else 1.0
            value += share * (float(self._values[taken]) - value)
        return up(math.sqrt(up(value * self._growth)))
