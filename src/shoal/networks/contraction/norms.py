r"""The operator norm of a matrix, between certified bounds.

$\|W\|^2 = \|M\|$ for $M = W^\top W$, and $\|M^q\|_F^{1/q}$ is an upper bound of $\|M\|$ that
exceeds it by a factor of at most $n^{1/2q}$, whatever the matrix. Squaring doubles $q$, so eleven
products suffice for a thousandth. Products only: as fast as the device multiplies.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.checks import float_tensor, real

_ROUNDING = 8.0  # in units of size times machine precision, per squaring; generous


class NormBounds(NamedTuple):
    """Bounds of an operator norm.

    Attributes:
        lower: The length that a certain unit vector is mapped to.
        upper: A number that no unit vector exceeds, rounding included.
    """

    lower: float
    upper: float


def operator_norm_bounds(matrix: Tensor, *, tightness: float = 1e-3) -> NormBounds:
    r"""Bound the operator norm $\|W\|$ from both sides.

    Args:
        matrix: $W$, of any shape (rows, columns); or (blocks, rows, columns), the blocks of a
            matrix that is zero elsewhere.
        tightness: By what fraction the upper bound may exceed the norm; up to rounding, it does
            not do so by more. A factor of two costs one matrix product.

    Returns:
        Both bounds, computed in float64.

    Example:
        >>> import torch
        >>> from shoal.networks import operator_norm_bounds
        >>> lower, upper = operator_norm_bounds(torch.diag(torch.tensor([1.0, 3.0, 2.0])))
        >>> f"{lower:.3f} {upper:.3f}"
        '3.000 3.000'
    """
    matrix = float_tensor("matrix", matrix)
    if matrix.dim() not in (2, 3):
        raise ValueError(
            "matrix must have shape (rows, columns) or (blocks, rows, columns), got "
            f"{tuple(matrix.shape)}"
        )
    tightness = real("tightness", tightness, above=0, at_least=1e-15)
    w = matrix.detach().double()
    w = w if w.shape[-2] >= w.shape[-1] else w.mT
    scale = float(w.abs().max())
    if scale == 0:
        return NormBounds(0.0, 0.0)
    w = w / scale
    rows, size = w.shape[-2], w[..., 0, :].numel()  # all columns, of all blocks
    squarings = max(0, math.ceil(math.log2(max(1.0, math.log(size) / (4 * math.log1p(tightness))))))
    power, logarithm, error = w.mT @ w, 0.0, 0.0
    for step in range(squarings + 1):
        frobenius = float(torch.linalg.vector_norm(power))
        logarithm += math.log(frobenius) / 2**step  # log of the bound of ‖M‖ so far
        # each product is off by a little, relatively to the norms of its factors
        error += _ROUNDING * math.sqrt(size) * rows * torch.finfo(w.dtype).eps / 2**step
        power = power / frobenius
        if step < squarings:
            power = power @ power
    upper = scale * math.exp(logarithm / 2) * (1 + error)
    return NormBounds(min(scale * _lower(w, power), upper), upper)


def _lower(w: Tensor, power: Tensor) -> float:
    """How long the image of the dominant direction is, as a high power of the matrix shows it."""
    if w.dim() == 3:
        block = int(torch.linalg.vector_norm(power, dim=(1, 2)).argmax())
        w, power = w[block], power[block]
    vector = power[:, int(torch.linalg.vector_norm(power, dim=0).argmax())]
    for _ in range(4):
        vector = w.t() @ (w @ vector)
        vector = vector / torch.linalg.vector_norm(vector)
    return float(torch.linalg.vector_norm(w @ vector)) * (1 - 1e-12)
