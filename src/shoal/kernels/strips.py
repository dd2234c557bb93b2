"""Strips of rows in which matrices are computed, within a limit of memory."""

from collections.abc import Iterable, Iterator
from math import ceil
from typing import NamedTuple

from torch import Tensor

_ROUNDS = 8  # in which strips of a symmetric matrix, which get smaller, are assigned, at least


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


def rows_per_process(rows: int, num_processes: int, *, symmetric: bool) -> int:
    """Most rows of a strip with which all of so many processes get about as many entries."""
    parts = num_processes * (_ROUNDS if symmetric else 1)
    return rows if num_processes == 1 else max(1, ceil(rows / parts))


def assign_strips(parts: Iterable[Strip], num_processes: int) -> list[int]:
    """The process of each strip, so that all have about as many entries.

    Each strip goes to the one that has least: of a symmetric matrix the small ones come last.

    Example:
        >>> assign_strips(strips((5, 5), 1, symmetric=True), 2)
        [0, 1, 1, 0, 0]
    """
    loads, owners = [0] * num_processes, []
    for strip in parts:
        owner = loads.index(min(loads))
        loads[owner] += strip.shape[0] * strip.shape[1]
        owners.append(owner)
    return owners
