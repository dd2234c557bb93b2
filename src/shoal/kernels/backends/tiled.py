"""Evaluation of a surface on a GPU, tile by tile, in one pass over the matrix.

For each function $f_s$ of the columns' norms, Clenshaw's recurrence sums the series in the angle,
whose coefficients belong to the row; only the cosines are read and only the results written. The
loops are not unrolled as a whole, so one compilation serves all ranks and degrees.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from shoal.kernels.backends.block import Block
from shoal.kernels.backends.blocks import Blocks, row_series

__all__ = ["Tiles", "evaluate_tiles", "mirror_tiles"]

_COLUMNS = {torch.float64: 256, torch.float32: 512}  # of a tile, which has one row; measured
_WARPS = 2
_UNROLLED = 4  # steps of the recurrence
_MIRRORED = 64  # rows and columns of a tile that is transposed


class Tiles(Blocks):
    """The back end of a GPU; derivatives are those of blocks."""

    def evaluate(self, block: Block, out: tuple[Tensor, Tensor]) -> None:
        """Write both kernels of a block into ``out``."""
        surface, rows, columns, cosine = block
        low, high = surface.angles
        weights = columns.features.T * columns.scale[:, None]
        series = row_series(surface, rows).permute(1, 2, 3, 0)
        ends = (low + high) / 2, (high - low) / 2
        evaluate_tiles(cosine, series, weights.contiguous(), *ends, out)

    def mirror(self, matrix: Tensor, rows: slice) -> None:
        """Copy what a strip of rows of a square matrix has above the diagonal to below it."""
        if matrix.stride(1) == 1:
            mirror_tiles(matrix, rows)
        else:
            super().mirror(matrix, rows)


def evaluate_tiles(
    cosine: Tensor,
    series: Tensor,
    weights: Tensor,
    middle: float,
    half_width: float,
    out: tuple[Tensor, Tensor],
) -> None:
    """Write both kernels of a block.

    Args:
        cosine: The cosines, contiguous. shape: (n, m)
        series: Coefficients of the rows. shape: (2, rank, degree + 1, n)
        weights: Factors of the columns, contiguous. shape: (2, rank, m)
        middle: The middle of the range of angles.
        half_width: Half of its width.
        out: Where the results go; their columns are contiguous.
    """
    count, size = cosine.shape
    _, rank, terms, _ = series.shape
    groups = -(-terms // _UNROLLED)
    falling = series.new_zeros(2, rank, groups * _UNROLLED, count)  # highest degree first
    falling[:, :, groups * _UNROLLED - terms :] = series.flip(2)
    ends = torch.tensor([middle, 1 / half_width], dtype=cosine.dtype, device=cosine.device)
    columns = _COLUMNS[cosine.dtype]
    with torch.cuda.device(cosine.device):
        # all tiles along the first axis of the grid, the only one that takes more than 65,535
        tiles = triton.cdiv(size, columns)
        _tile[(tiles * count,)](
            cosine,
            falling,
            weights,
            ends,
            out[0],
            out[1],
            count,
            size,
            rank,
            groups,
            tiles,
            out[0].stride(0),
            out[1].stride(0),
            columns=columns,
            unrolled=_UNROLLED,
            num_warps=_WARPS,
        )


@triton.jit(
    do_not_specialize=["count", "size", "rank", "groups", "tiles", "stride_ck", "stride_ntk"]
)
def _tile(
    cosine,
    series,
    weights,
    ends,
    ck,
    ntk,
    count,
    size,
    rank,
    groups,
    tiles,
    stride_ck,
    stride_ntk,
    columns: tl.constexpr,
    unrolled: tl.constexpr,
):
    row = tl.cast(tl.program_id(0) // tiles, tl.int64)
    column = tl.program_id(0) % tiles * columns + tl.arange(0, columns)
    inside = column < size
    c = tl.load(cosine + row * size + column, mask=inside, other=0.0)
    angle = libdevice.acos(tl.minimum(tl.maximum(c, -1.0), 1.0))
    t = (angle - tl.load(ends)) * tl.load(ends + 1)
    t = tl.minimum(tl.maximum(t, -1.0), 1.0)
    twice = t + t
    first, second = tl.zeros_like(t), tl.zeros_like(t)
    other = tl.cast(rank, tl.int64) * groups * unrolled * count  # from the CK to the NTK
    for s in range(rank):
        left = series + tl.cast(s, tl.int64) * groups * unrolled * count + row
        b1, b2 = tl.zeros_like(t), tl.zeros_like(t)
        d1, d2 = tl.zeros_like(t), tl.zeros_like(t)
        for _ in range(groups):
            for i in tl.static_range(unrolled):
                b = twice * b1 + (tl.load(left + i * count) - b2)
                d = twice * d1 + (tl.load(left + other + i * count) - d2)
                b2 = b1
                b1 = b
                d2 = d1
                d1 = d
            left += unrolled * count
        v = tl.load(weights + s * size + column, mask=inside, other=0.0)
        w = tl.load(weights + (rank + s) * size + column, mask=inside, other=0.0)
        first += (b1 - t * b2) * v
        second += (d1 - t * d2) * w
    tl.store(ck + row * stride_ck + column, first, mask=inside)
    tl.store(ntk + row * stride_ntk + column, second, mask=inside)


def mirror_tiles(matrix: Tensor, rows: slice) -> None:
    """Copy what a strip of rows has above the diagonal to below it.

    Args:
        matrix: A square matrix whose columns are contiguous. shape: (n, n)
        rows: The strip.
    """
    size = len(matrix)
    tiles = (
        triton.cdiv(size - rows.start, _MIRRORED),
        triton.cdiv(rows.stop - rows.start, _MIRRORED),
    )
    with torch.cuda.device(matrix.device):
        _mirror[tiles](matrix, rows.start, rows.stop, size, matrix.stride(0), side=_MIRRORED)


@triton.jit(do_not_specialize=["start", "stop", "size", "stride"])
def _mirror(matrix, start, stop, size, stride, side: tl.constexpr):
    row = start + tl.program_id(1) * side + tl.arange(0, side)
    column = start + tl.program_id(0) * side + tl.arange(0, side)
    above = (row < stop)[:, None] & (column < size)[None, :] & (column[None, :] > row[:, None])
    places = matrix + tl.cast(row, tl.int64)[:, None] * stride + column[None, :]
    mirrored = matrix + tl.cast(column, tl.int64)[:, None] * stride + row[None, :]
    tile = tl.load(places, mask=above, other=0.0)
    tl.store(mirrored, tl.trans(tile), mask=tl.trans(above.to(tl.int8)) != 0)
