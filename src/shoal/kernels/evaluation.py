"""Evaluation of a surface on a block of a kernel matrix, given the cosines of its angles."""

import logging
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from shoal.approximation import chebyshev_basis
from shoal.kernels.compiled import fused_series
from shoal.kernels.surface import Surface

__all__ = ["Factors", "evaluate", "mirror"]

_LOGGER = logging.getLogger(__name__)

_WORK = 1 << 18  # numbers of the basis that stay in the cache of a CPU
_WORK_ELSEWHERE = 1 << 26


@dataclass(frozen=True, eq=False)
class Factors:
    """What the rows or the columns of a matrix contribute, in the dtype of the matrix.

    Attributes:
        scale: Roots of the diagonals of both kernels. shape: (2, n)
        features: Functions of the norms. shape: (n, rank)
    """

    scale: Tensor
    features: Tensor

    def __getitem__(self, part: slice) -> "Factors":
        return Factors(self.scale[:, part], self.features[part])


def evaluate(
    surface: Surface,
    rows: Factors,
    columns: Factors,
    cosine: Tensor,
    out: tuple[Tensor, Tensor],
    *,
    fuse: bool = False,
) -> None:
    """Write both kernels of a block into ``out``; the cosines are used up.

    Args:
        surface: The kernels.
        rows: What the rows contribute.
        columns: What the columns contribute.
        cosine: Cosines of the angles. shape: (n, m)
        out: Where the results go. shapes: (n, m)
        fuse: Whether to compile one fused pass on a CPU; a GPU has one anyway.
    """
    low, high = surface.angles
    middle, half_width = (low + high) / 2, (high - low) / 2
    tiles = _tiled() if cosine.device.type == "cuda" else None
    if tiles is not None:
        weights = columns.features.T * columns.scale[:, None]
        series = _row_series(surface, rows).permute(1, 2, 3, 0)
        tiles.evaluate_tiles(cosine, series, weights.contiguous(), middle, half_width, out)
        return
    if fuse and surface.rank == 1:
        coefficients = surface.coefficients[:, 0, 0].to(cosine)
        values = fused_series(cosine.view(-1), coefficients, middle, half_width)
        if values is not None:
            _scale(values.view(2, *cosine.shape), rows, columns, out)
            return
    t = cosine.clamp_(-1.0, 1.0).acos_().sub_(middle).mul_(1 / half_width).clamp_(-1.0, 1.0)
    width = max(1, surface.coefficients.shape[-1] + 2 * surface.rank)
    work = _WORK if t.device.type == "cpu" else _WORK_ELSEWHERE
    step = max(1, work // (width * t.shape[1]))
    block = _constant_block if surface.rank == 1 else _block
    for start in range(0, len(t), step):
        part = slice(start, start + step)
        block(surface, rows[part], columns, t[part], (out[0][part], out[1][part]))


@lru_cache(maxsize=1)
def _tiled() -> ModuleType | None:
    """The passes of a GPU, where their compiler is installed."""
    try:
        from shoal.kernels import tiled
    except ImportError:
        _LOGGER.warning("triton is not installed: kernels are evaluated in blocks, more slowly")
        return None
    return tiled


def mirror(matrix: Tensor, rows: slice) -> None:
    """Copy what a strip of rows of a square matrix has above the diagonal to below it."""
    tiles = _tiled() if matrix.device.type == "cuda" else None
    if tiles is not None and matrix.stride(1) == 1:
        tiles.mirror_tiles(matrix, rows)
        return
    block = matrix[rows, rows]
    block.copy_(block.triu() + block.triu(1).T)
    matrix[rows.stop :, rows] = matrix[rows, rows.stop :].T


def _constant_block(
    surface: Surface, rows: Factors, columns: Factors, t: Tensor, out: tuple[Tensor, Tensor]
) -> None:
    """One function of the angle, times scales."""
    coefficients = surface.coefficients[:, 0, 0].to(t)
    basis = chebyshev_basis(t.reshape(-1), coefficients.shape[1] - 1)
    _scale((coefficients @ basis).view(2, *t.shape), rows, columns, out)


def _scale(values: Tensor, rows: Factors, columns: Factors, out: tuple[Tensor, Tensor]) -> None:
    for q in range(2):
        torch.mul(values[q].mul_(rows.scale[q, :, None]), columns.scale[q], out=out[q])


def _block(
    surface: Surface, rows: Factors, columns: Factors, t: Tensor, out: tuple[Tensor, Tensor]
) -> None:
    """Each row is a function of the angle and the other norm: a product of small matrices."""
    count, size = t.shape
    degree = surface.coefficients.shape[-1] - 1
    basis = chebyshev_basis(t.reshape(-1), degree).view(degree + 1, count, size)
    series = _row_series(surface, rows).flatten(1, 2)
    sums = torch.bmm(series, basis.transpose(0, 1)).view(count, 2, -1, size)
    weights = columns.features.T * columns.scale[:, None]  # shape: (2, rank, size)
    for q in range(2):
        torch.sum(sums[:, q].mul_(weights[q]), dim=1, out=out[q])


def _row_series(surface: Surface, rows: Factors) -> Tensor:
    """Coefficients in the angle, for each row. shape: (n, 2, rank, angular degree + 1)."""
    coefficients = surface.coefficients.to(rows.features)
    series = torch.einsum("nr,qrsk->nqsk", rows.features, coefficients)
    return series * rows.scale.T[:, :, None, None]
