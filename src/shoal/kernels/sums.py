"""Gradients of a kernel matrix, while they are summed up."""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.kernels.inputs import Inputs

__all__ = ["Side", "Sums"]


@dataclass(frozen=True, eq=False)
class Side:
    """Gradients of the inputs of the rows, or of the columns.

    Attributes:
        units: In the directions, not yet projected. shape: (n, p)
        logs: In the logarithms of the norms. shape: (n,)
        direct: In the inputs. shape: (n, p)
    """

    units: Tensor
    logs: Tensor
    direct: Tensor

    @classmethod
    def of(cls, inputs: Inputs) -> "Side":
        """Begin at zero."""
        direct = torch.zeros_like(inputs.points, dtype=torch.float64)
        return cls(torch.zeros_like(inputs.points), torch.zeros_like(inputs.norm), direct)

    def total(self, inputs: Inputs) -> Tensor:
        """The gradient of the inputs, in their dtype."""
        unit, norm = inputs.unit.double(), inputs.norm[:, None]
        units = self.units.double()
        along = self.logs[:, None] - (units * unit).sum(-1, keepdim=True)
        total = (units + along * unit) / torch.where(norm > 0, norm, 1.0)
        return (torch.where(norm > 0, total, 0.0) + self.direct).to(inputs.points.dtype)


@dataclass(frozen=True, eq=False)
class Sums:
    """All gradients of one matrix.

    Attributes:
        names: Of the variances.
        left: Those of the inputs of the rows.
        right: Those of the inputs of the columns; the same object if the matrix is symmetric.
        variances: Those of the variances. shape: (len(names),)
    """

    names: tuple[str, ...]
    left: Side
    right: Side
    variances: Tensor

    @classmethod
    def of(cls, names: tuple[str, ...], left: Inputs, right: Inputs) -> "Sums":
        """Begin at zero."""
        first = Side.of(left)
        second = first if left is right else Side.of(right)
        return cls(names, first, second, left.norm.new_zeros(len(names)))
