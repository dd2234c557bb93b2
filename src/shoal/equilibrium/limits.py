"""How far off a sample may be that counts as solved, on the host or on a device."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.equilibrium.base import Solver

__all__ = ["WORSE", "Limits", "residual_norms"]

WORSE = 1e5  # growth of the residual, or of the iterate, that is divergence


@dataclass(frozen=True)
class Limits:
    """The tolerances of a solve, and the norms that can be trusted.

    Attributes:
        rtol: The relative tolerance.
        atol: The absolute tolerance, for states of the order of one.
        explicit: Whether the user has given that.
        finest: The least absolute tolerance.
        least: The least norm of which no square is so small that its rounding counts.
        most: The largest norm of which no square overflows.
    """

    rtol: float
    atol: float
    explicit: bool
    finest: float
    least: float
    most: float

    @classmethod
    def of(cls, solver: Solver, width: int, dtype: torch.dtype) -> "Limits":
        """Those of a method, for states of so many numbers."""
        info = torch.finfo(dtype)
        computed = torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype)
        return cls(
            *solver.tolerances(dtype),
            explicit=solver.atol is not None,
            finest=info.tiny * info.eps,
            least=math.sqrt(width * computed.tiny / computed.eps),
            most=math.sqrt(computed.max),
        )

    def verdict(
        self, begun: tuple[Tensor, Tensor], ended: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """By what factor the worst sample was off before some steps and is after them; residuals.

        The second factor is infinite where more must be known to judge a sample: an iterate that
        has grown without bound, norms that are out of range, or a start below the tolerance.

        Args:
            begun: The map's value and the iterate before them.
            ended: The same after them.
        """
        (before, sized), (after, fine) = map(self._norms, (begun, ended))
        first = before.amax(0)
        tolerance = self.atol * (torch.ones_like(first) if self.explicit else first.clamp(max=1.0))
        tolerance = tolerance.clamp_min(self.finest)
        old, new = (norms[0] / (norms[1] * self.rtol + tolerance) for norms in (before, after))
        judged = sized & fine & (after[1] <= WORSE * first)
        if self.explicit:
            judged = judged & ((first > self.atol) | (before[0] <= self.rtol * before[1]))
        worst = torch.stack([old.max(), new.masked_fill(~judged, torch.inf).max()])
        return worst, after[0].to(ended[0].dtype)

    def _norms(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Those of the residual and of the iterate, in float64, and of which samples they are."""
        value, z = pair
        norms = residual_norms(value, z).double()
        zero = ~torch.stack([(value != z).any(1), z.any(1)])
        known = zero | ((norms >= self.least) & (norms <= self.most))
        return norms, known.all(0)


def residual_norms(value: Tensor, z: Tensor) -> Tensor:
    """The norms of the residual and of the iterate for each sample; shape (2, samples)."""
    norm = torch.linalg.vector_norm
    dtype = torch.float32 if z.dtype.itemsize < 4 else None
    return torch.stack([norm(value - z, dim=1, dtype=dtype), norm(z, dim=1, dtype=dtype)])
