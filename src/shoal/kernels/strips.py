"""Strips of rows in which matrices are computed, within a limit of memory."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

__all__ = ["Strip", "strips"]


class Strip(NamedTuple):
    """A part of a matrix.

    Attributes:
        rows: Its rows.
        columns: Its columns; those of a symmetric matrix begin at the diagonal.
    """

    rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns it has."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    def inputs(self, where: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Rows and columns of the matrix, given those within the strip."""
        return where[0] + self.rows.start, where[1] + self.columns.start


def strips(shape: tuple[int, int], step: int, *, symmetric: bool) -> Iterator[Strip]:
    """Strips of so many rows; of a symmetric matrix what is above the diagonal, and it.

    Example:
        >>> [strip.shape for strip in strips((3, 3), 2, symmetric=True)]
        [(2, 3), (1, 1)]
    """
    rows, columns = shape
    for start in range(0, rows, step):
        yield Strip(
            slice(start, min(start + step, rows)), slice(start if symmetric else 0, columns)
        )
