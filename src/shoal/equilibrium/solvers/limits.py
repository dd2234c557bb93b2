"""How far off a sample may be that counts as solved, on the host or on a device."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from shoal.equilibrium.solvers.base import Solver

Pair = tuple[Tensor, Tensor]  # the map's value at an iterate, and that
WORSE = 1e5  # growth of the residual, or of the iterate, that is divergence


@dataclass(frozen=True)
class Limits:
    """The tolerances of a solve, and the norms that can be trusted.

    Attributes:
        rtol: The relative tolerance.
        atol: The absolute tolerance, for states of the order of one.
        explicit: Whether the user has given that.
        finest: The least absolute tolerance.
        rounding: The relative error of a rounded number, the machine epsilon of the dtype.
        least: The least norm of which no square is so small that its rounding counts.
        most: The largest norm of which no square overflows.
    """

    rtol: float
    atol: float
    explicit: bool
    finest: float
    rounding: float
    least: float
    most: float

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, solver: Solver, width: int, dtype: torch.dtype) -> "Limits":
        """The limits of a method, for states of so many numbers."""
        info = torch.finfo(dtype)
        computed = torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype)
        return cls(
            *solver.tolerances(dtype),
            explicit=solver.atol is not None,
            finest=info.tiny * info.eps,
            rounding=info.eps,
            least=math.sqrt(width * computed.tiny / computed.eps),
            most=math.sqrt(computed.max),
        )

    def verdict(self, begun: Pair, ended: Pair) -> tuple[Tensor, Tensor]:
        """How far off the worst sample was before some steps and is after them; residuals.

        The second factor is infinite where more must be known to judge a sample: an iterate that
        has grown without bound, norms that are out of range, or a start below the tolerance. In
        few operations, as each of them takes longer than its arithmetic.

        Args:
            begun: The map's value and the iterate before them.
            ended: The same after them.
        """
        off = torch.stack([begun[0] - begun[1], begun[1], ended[0] - ended[1], ended[1]])
        # in float64, where squares of a smaller dtype are in range
        norms = torch.linalg.vector_norm(off, dim=2, dtype=torch.float64)
        first = norms[:2].amax(0)
        least = max(self.atol, self.finest)
        tolerance = (first * self.atol).clamp(least if self.explicit else self.finest, least)
        excess = norms[0::2] / torch.add(tolerance, norms[1::2], alpha=self.rtol)
        unjudged = norms[3] > WORSE * first
        if self.explicit and self.atol:
            unjudged |= (first <= self.atol) & (norms[0] > self.rtol * norms[1])
        if off.dtype == torch.float64:
            known = ~off.any(2) | ((norms >= self.least) & (norms <= self.most))
            unjudged |= ~known.all(0)
        excess[1].masked_fill_(unjudged, torch.inf)
        return excess.amax(1), norms[2].to(off.dtype)


def residual_norms(value: Tensor, z: Tensor) -> Tensor:
    """The norms of the residual and of the iterate for each sample; shape (2, samples)."""
    norm = torch.linalg.vector_norm
    dtype = torch.float32 if z.dtype.itemsize < 4 else None
    return torch.stack([norm(value - z, dim=1, dtype=dtype), norm(z, dim=1, dtype=dtype)])
