"""Inputs of a kernel: norms, directions and the angles between them."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

CLOSE = 1e-4  # 1 - |cos θ| below which a product of directions has lost the angle
_PAIRS = 4096  # pairs whose differences are formed together


@dataclass(frozen=True, eq=False)
class Inputs:
    """Points as norms and directions; the direction of zero is zero.

    Attributes:
        points: The points. shape: (n, p)
    """

    points: Tensor

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def norm(self) -> Tensor:
        """Norms in float64. shape: (n,)."""
        norm: Tensor = torch.linalg.vector_norm(self.points, dim=-1, dtype=torch.float64)
        return norm

    @cached_property
    def unit(self) -> Tensor:
        """Directions in the dtype of the points. shape: (n, p)."""
        norm = self.norm.to(self.points.dtype)
        return self.points / torch.where(norm > 0, norm, 1.0)[:, None]


def pair_angles(left: Inputs, right: Inputs, i: Tensor, j: Tensor, cosine: Tensor) -> Tensor:
    """Angles of single pairs in float64, near 0 and π from the distance of the directions."""
    angle = cosine.double().clamp(-1.0, 1.0).acos()
    close = (cosine.abs() > 1 - CLOSE).nonzero()[:, 0]
    for some in close.split(_PAIRS):
        first, second = (
            s.points[k[some]].double() / s.norm[k[some], None].clamp(min=1e-300)
            for s, k in ((left, i), (right, j))
        )
        sign = torch.sign(cosine[some]).double()
        gap = torch.linalg.vector_norm(first - sign[:, None] * second, dim=-1)
        small = 2 * torch.asin((gap / 2).clamp(max=1.0))
        angle[some] = torch.where(sign > 0, small, math.pi - small)
    return angle
