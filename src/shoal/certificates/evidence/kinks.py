"""How much weight can lie on units that cross a kink."""

import math

import torch
from torch import Tensor

from shoal.certificates.evidence.rounding import gamma

_FREE = 1e-280  # squared distances below it, where squares lose digits, are taken for zero


class Crossings:
    r"""What crossing units can weigh, as a function of how far preactivations can move.

    If preactivations at distances $d_r$ from the nearest kink move by at most $\beta$ together, the
    units that cross have $\sum_r d_r^2 \le \beta^2$. Of all such sets, the one with the largest
    weight $\sum_r w_r^2$ is a knapsack, which is bounded by its linear relaxation: units in the
    order of $w_r^2/d_r^2$, the last one in part. The bound increases with $\beta$.

    Args:
        distances: $d_r$, float64; a row for each sample.
        weights: $w_r$, of the same shape.
    """

    def __init__(self, distances: Tensor, weights: Tensor) -> None:
        cost, value = distances.square(), weights.square()
        cost = torch.where(cost < _FREE, 0.0, cost)
        ratio = torch.where(cost > 0, value / cost, math.inf)
        order = ratio.argsort(dim=1, descending=True)
        start = torch.zeros(len(cost), 1, dtype=cost.dtype)
        self._costs = torch.cat([start, cost.gather(1, order).cumsum(1)], 1)
        self._values = torch.cat([start, value.gather(1, order).cumsum(1)], 1)
        self._growth = 1 + gamma(4 * cost.shape[1] + 64)

    def weight(self, move: Tensor) -> Tensor:
        r"""What $(\sum_r w_r^2)^{1/2}$ can be at most, for each sample.

        Args:
            move: $\beta$, one for each sample.
        """
        budget = (move.square() * self._growth)[:, None]
        last = self._costs.shape[1] - 1
        taken = torch.searchsorted(self._costs, budget, right=True).sub(1).clamp(0, last)
        following = (taken + 1).clamp(max=last)
        cost, value = self._costs.gather(1, taken), self._values.gather(1, taken)
        step = self._costs.gather(1, following) - cost
        share = torch.where(step > 0, (budget - cost) / step, torch.ones_like(step)).clamp(0, 1)
        total = value + share * (self._values.gather(1, following) - value)
        return (total[:, 0] * self._growth).sqrt() * self._growth
