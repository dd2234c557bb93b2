r"""How far floating-point numbers may be from what they stand for.

The model is the usual one: each operation errs by a factor of at most $1 + u$, in whatever order a
sum is added up, fused or not. Sums of $n$ products then err by at most
$\gamma_n = nu/(1 - nu)$ times the sum of their sizes. Scalars are compared as rational numbers,
which are exact.
"""

import math
from fractions import Fraction

import torch
from torch import Tensor

from shoal.core.rounding import ROUND_UP, UNIT, down, nearest, up

__all__ = [
    "ROUND_UP",
    "TINY",
    "UNIT",
    "down",
    "exact",
    "gamma",
    "nearest",
    "norm_upper",
    "product_error",
    "row_norms",
    "up",
]

TINY = 2.0**-1000  # more than all underflows together


def gamma(terms: int) -> float:
    r"""$\gamma_n$, rounded up."""
    share = terms * UNIT
    if share >= 0.01:
        raise ValueError(f"{terms} terms are too many for the bounds of rounding errors")
    return share / (1 - share) * (1 + 8 * UNIT)


def exact(number: float) -> Fraction:
    """The number as a fraction, which it is; an infinite bound becomes one that nothing reaches."""
    return Fraction(number) if math.isfinite(number) else Fraction(2**20000)


def norm_upper(tensor: Tensor) -> float:
    """A number that the Euclidean norm of all entries, those of a float64 tensor, cannot exceed.

    Entries are scaled to size one first, so that no square overflows or vanishes unnoticed.
    """
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if largest == 0:
        return 0.0
    norm = float(torch.linalg.vector_norm(tensor.flatten() / largest)) * largest
    return norm * (1 + gamma(tensor.numel() + 8)) + TINY


def product_error(left: Tensor, right: Tensor) -> float:
    r"""How far the computed $AB^\top$ may be from the true one, in the Frobenius norm.

    Entries of the factors may be off by a rounding or two themselves.
    """
    return up(gamma(left.shape[1] + 4) * norm_upper(left) * norm_upper(right))


def row_norms(matrix: Tensor) -> Tensor:
    """Numbers that the norms of the rows of a float64 matrix cannot exceed."""
    scale = matrix.abs().amax(1, keepdim=True).clamp(min=TINY)
    norms: Tensor = torch.linalg.vector_norm(matrix / scale, dim=1) * scale[:, 0]
    return norms * (1 + gamma(matrix.shape[1] + 16)) + TINY
