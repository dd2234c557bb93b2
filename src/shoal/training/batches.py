"""Mini-batches in a random order that can be taken up again."""

from collections.abc import Mapping

import torch
from torch import Tensor

from shoal.core.checks import integer, seeded


class Batches:
    """All samples in a new order each time, in parts; the last part of an order may be smaller.

    Args:
        samples: How many samples there are.
        size: How many make a batch.
        seed: Of the orders.
    """

    def __init__(self, samples: int, size: object, seed: object) -> None:
        self.size = integer("batch_size", size, at_least=1)
        if self.size > samples:
            raise ValueError(f"batch_size must be <= {samples}, the samples, got {self.size}")
        self._generator = seeded("seed", seed)
        self._order = torch.randperm(samples, generator=self._generator)
        self._next = 0

    def take(self, device: torch.device) -> Tensor:
        """The samples of the next batch."""
        if self._next >= len(self._order):
            self._order = torch.randperm(len(self._order), generator=self._generator)
            self._next = 0
        rows = self._order[self._next : self._next + self.size]
        self._next += self.size
        return rows.to(device)

    def state(self) -> dict[str, Tensor]:
        """All that later batches depend on."""
        generator = self._generator.get_state()
        return {"generator": generator, "order": self._order, "next": torch.tensor(self._next)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state."""
        self._generator.set_state(state["generator"].cpu())
        self._order, self._next = state["order"].cpu(), int(state["next"])
