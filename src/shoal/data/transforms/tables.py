"""Columns of tables on their scales, and inputs of a mean squared norm of one."""

from typing import NamedTuple

import torch
from torch import Tensor

_SMALL = 0.1  # of the largest range: a column that hardly counts
_MANY = 0.25  # of the columns that hardly count: the scales are those of units, not of importance


class Scales(NamedTuple):
    """The ranges of columns.

    Attributes:
        small: How many columns have a range below a tenth of the largest.
        columns: How many columns are not constant.
        constant: How many are.
    """

    small: int
    columns: int
    constant: int

    @property
    def differ(self) -> bool:
        """Whether so many columns hardly count that the scales must be those of units."""
        return self.small >= _MANY * self.columns > 0

    @property
    def words(self) -> str:
        """What is wrong with them."""
        return f"{self.small} of {self.columns} columns have a range below a tenth of the largest"


def scales(x: Tensor) -> Scales:
    """Compare the ranges of the columns of a table.

    Ranges and not standard deviations, since what is rare, such as ink in the corner of a picture,
    is not on another scale.

    Args:
        x: Of shape (n, p).

    Example:
        >>> import torch
        >>> found = scales(torch.tensor([[0.0, 5.0, 2.0], [1.0, 5.0, 90.0]]))
        >>> found.small, found.columns, found.constant
        (1, 2, 1)
    """
    ranges = x.amax(0) / 2 - x.amin(0) / 2  # halves, which do not overflow
    positive = ranges[ranges > 0]
    if not len(positive):
        return Scales(0, 0, len(ranges))
    small = int((positive < _SMALL * positive.max()).sum())
    return Scales(small, len(positive), len(ranges) - len(positive))


def standardized(x: Tensor) -> Tensor:
    """Columns with a mean of zero and a variance of one; constant ones become zero.

    Args:
        x: Of shape (n, p).
    """
    same = x.amin(0) == x.amax(0)  # whose differences from their mean are rounding
    largest = x.abs().amax(0)
    x = x / torch.where(largest > 0, largest, 1)  # so that no square overflows
    x = torch.where(same, 0, x - x.mean(0))
    size = x.square().mean(0).sqrt()
    return x / torch.where(size > 0, size, 1)


def normalized(name: str, x: Tensor) -> Tensor:
    """Inputs with a mean of zero and a mean squared norm of one.

    Args:
        name: What they are called where they cannot have one.
        x: Of shape (n, p).

    Raises:
        ValueError: If all samples are the same.
    """
    largest = x.abs().max() if x.numel() else torch.zeros(())
    x = x / largest if largest > 0 else x  # so that no square overflows
    x = x - x.mean(dim=0)
    size = x.square().sum(dim=1).mean().sqrt()
    if size == 0:
        raise ValueError(f"{name} must have samples that differ")
    return x / size
