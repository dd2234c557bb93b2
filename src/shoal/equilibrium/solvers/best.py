"""The iterate of least residual of each sample: what is returned of a search that fails."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


class BestIterate:
    """The best of the iterates that were looked at, one per row of the batch.

    A residual that is hardly lower does not count: an iterate may run far for it.

    Mostly all residuals fall, and nothing is copied.

    Args:
        z: The start, which is the best until a better one comes, whatever its residual.
        kept: What the problem wanted to keep there.
        residual: Its residuals; infinite if they are not numbers.

    Attributes:
        step: In which step each of them was found.
    """

    def __init__(self, z: Tensor, kept: Tensor | None, residual: Array) -> None:
        self.z, self.kept = z, kept
        self.residual: Array = np.where(np.isnan(residual), np.inf, residual)
        self.step: Array = np.zeros(len(residual), dtype=np.int32)

    def improve(
        self, better: Array, z: Tensor, kept: Tensor | None, residual: Array, step: int
    ) -> None:
        """Take over the rows of an iterate that are better, after so many steps."""
        if better.all():
            self.z, self.kept = z, kept
        elif better.any():
            self.z, self.kept = self._mixed(~better, z, kept)
        self.residual = np.where(better, residual, self.residual)
        self.step = np.where(better, np.int32(step), self.step)

    def instead(
        self, failed: Array, z: Tensor, kept: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """An iterate, with the best one in the rows that failed."""
        return self._mixed(failed, z, kept) if failed.any() else (z, kept)

    def _mixed(self, own: Array, z: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The best iterate in some rows, another one in the rest."""
        chosen = torch.from_numpy(own)[:, None].to(z.device)
        mixed = torch.where(chosen, self.z, z)
        if kept is None or self.kept is None:
            return mixed, None
        return mixed, torch.where(chosen, self.kept, kept)

    def select(self, index: Array) -> None:
        """Keep some rows only."""
        rows = torch.from_numpy(index).to(self.z.device)
        self.z = self.z.index_select(0, rows)
        self.kept = None if self.kept is None else self.kept.index_select(0, rows)
        self.residual, self.step = self.residual[index], self.step[index]
