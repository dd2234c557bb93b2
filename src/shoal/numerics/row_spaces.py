"""Krylov spaces of many problems at once, one for each row of a matrix."""

import torch
from torch import Tensor


class RowSpaces:
    """An orthonormal basis for each row, which grows by one vector at a time (Arnoldi's method).

    Args:
        start: The first vectors, of any length, one in each row.

    Attributes:
        basis: The vectors, in rows; zeros where there was nothing new.
    """

    def __init__(self, start: Tensor) -> None:
        self.basis = [_unit(start)[0]]
        self._columns: list[Tensor] = []

    def add(self, rows: Tensor) -> Tensor:
        """Add the new part of further vectors, and return its length."""
        space = torch.stack(self.basis, 1)  # shape: (n, count, size)
        known = torch.zeros_like(space[:, :, 0])
        for _ in range(2):  # once leaves what rounding left
            part = torch.einsum("nkd,nd->nk", space, rows)
            rows = rows - torch.einsum("nkd,nk->nd", space, part)
            known = known + part
        new, lengths = _unit(rows)
        self._columns.append(torch.cat([known, lengths[:, None]], 1))
        self.basis.append(new)
        return lengths

    @property
    def coordinates(self) -> Tensor:
        """Coordinates of all that was added, in columns. shape: (n, count + 1, count)."""
        height = len(self.basis)
        pad = torch.nn.functional.pad
        return torch.stack([pad(c, (0, height - c.shape[1])) for c in self._columns], 2)


def _unit(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of length one, zeros where there is none, and the lengths."""
    lengths = torch.linalg.vector_norm(rows, dim=1)
    return rows / torch.where(lengths > 0, lengths, 1.0)[:, None], lengths
