"""Evaluation of a surface and its adjoint on a GPU, tile by tile, in one pass over the matrix.

For each function $f_s$ of the columns' norms, Clenshaw's recurrence sums the series in the angle,
whose coefficients belong to the row; only the cosines are read and only the results written. The
loops are not unrolled as a whole, so one compilation serves all ranks and degrees.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from shoal.kernels.backends import half_precision
from shoal.kernels.backends.block import Adjoint, Block, DifferentiableBlock, Polynomial, Rounded
from shoal.kernels.backends.blocks import Blocks, adjoint_series, row_series

_COLUMNS = {torch.float64: 256, torch.float32: 512}  # of a tile, which has one row; measured
_ADJOINT_COLUMNS = 256
_WARPS = 2
_UNROLLED = 4  # steps of the recurrence
_MIRRORED = 64  # rows and columns of a tile that is transposed


class Tiles(Blocks):
    """The back end of a GPU; entries to first order are those of blocks."""

    def evaluate(self, block: Block, out: tuple[Tensor, Tensor]) -> None:
        """Write both kernels of a block into ``out``."""
        surface, rows, columns, cosine = block
        low, high = surface.angles
        weights = columns.features.T * columns.scale[:, None]
        series = row_series(surface, rows).permute(1, 2, 3, 0)
        ends = (low + high) / 2, (high - low) / 2
        evaluate_tiles(cosine, series, weights.contiguous(), *ends, out)

    def adjoint(self, block: DifferentiableBlock, upstream: Tensor) -> Adjoint:
        """Gradients of cosines and norms of a block, given those of both kernels, (2, n, m)."""
        surface, rows, columns, cosine = block
        low, high = surface.angles
        series = adjoint_series(surface, rows).to(cosine).flatten(0, 1).permute(0, 2, 3, 1)
        factors = torch.cat([columns.slopes, columns.values]).to(cosine).mT
        ends = (low + high) / 2, (high - low) / 2
        return adjoint_tiles(cosine, upstream, series, factors.contiguous(), *ends)

    def rounded(self, unit: Tensor) -> Rounded:
        """Directions as numbers of half precision."""
        return half_precision.halves(unit)

    def multiply(
        self,
        polynomial: Polynomial,
        rows: tuple[Rounded, Tensor],
        columns: tuple[Rounded, Tensor],
        *,
        diagonal: bool,
    ) -> tuple[Tensor, Tensor]:
        """Products of a block with vectors of both sides; none of its entries is stored."""
        return half_precision.multiply(polynomial, rows, columns, diagonal=diagonal)

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
    falling, groups = _falling(series)
    rank = series.shape[1]
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


def _falling(series: Tensor) -> tuple[Tensor, int]:
    """Coefficients, highest degree first, and in how many groups that are unrolled."""
    several, rank, terms, count = series.shape
    groups = -(-terms // _UNROLLED)
    falling = series.new_zeros(several, rank, groups * _UNROLLED, count)
    falling[:, :, groups * _UNROLLED - terms :] = series.flip(2)
    return falling, groups


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


def adjoint_tiles(
    cosine: Tensor,
    upstream: Tensor,
    series: Tensor,
    factors: Tensor,
    middle: float,
    half_width: float,
) -> Adjoint:
    """Gradients of cosines and norms of a block, given those of both kernels.

    Args:
        cosine: The cosines, contiguous. shape: (n, m)
        upstream: Gradients of both kernels, contiguous. shape: (2, n, m)
        series: Coefficients of the rows, for the columns' slopes, the rows' slopes and the angle,
            of both kernels each. shape: (6, rank, degree + 1, n)
        factors: Slopes of what the columns contribute to both kernels, and that itself, contiguous.
            shape: (4, rank, m)
        middle: The middle of the range of angles.
        half_width: Half of its width.
    """
    count, size = cosine.shape
    falling, groups = _falling(series)
    ends = torch.tensor([middle, 1 / half_width], dtype=cosine.dtype, device=cosine.device)
    tiles = triton.cdiv(size, _ADJOINT_COLUMNS)
    turning, right = torch.empty_like(cosine), torch.empty_like(cosine)
    left = cosine.new_empty(count, tiles)
    with torch.cuda.device(cosine.device):
        _adjoint[(tiles * count,)](
            cosine,
            upstream,
            falling,
            factors,
            ends,
            turning,
            left,
            right,
            count,
            size,
            series.shape[1],
            groups,
            tiles,
            columns=_ADJOINT_COLUMNS,
            unrolled=_UNROLLED,
            num_warps=_WARPS,
        )
    return Adjoint(turning, left.sum(1, dtype=torch.float64), right.sum(0, dtype=torch.float64))


@triton.jit(do_not_specialize=["count", "size", "rank", "groups", "tiles"])
def _adjoint(
    cosine,
    upstream,
    series,
    factors,
    ends,
    turning,
    left,
    right,
    count,
    size,
    rank,
    groups,
    tiles,
    columns: tl.constexpr,
    unrolled: tl.constexpr,
):
    tile = tl.program_id(0) % tiles
    row = tl.cast(tl.program_id(0) // tiles, tl.int64)
    column = tile * columns + tl.arange(0, columns)
    inside = column < size
    place = row * size + column
    c = tl.load(cosine + place, mask=inside, other=0.0)
    ck = tl.load(upstream + place, mask=inside, other=0.0)
    ntk = tl.load(upstream + tl.cast(count, tl.int64) * size + place, mask=inside, other=0.0)
    t = (libdevice.acos(tl.minimum(tl.maximum(c, -1.0), 1.0)) - tl.load(ends)) * tl.load(ends + 1)
    t = tl.minimum(tl.maximum(t, -1.0), 1.0)
    twice = t + t
    in_angle, in_left, in_right = tl.zeros_like(t), tl.zeros_like(t), tl.zeros_like(t)
    one = tl.cast(rank, tl.int64) * groups * unrolled * count  # from one series to the next
    for s in range(rank):
        for d in tl.static_range(3):
            first = series + 2 * d * one + tl.cast(s, tl.int64) * groups * unrolled * count + row
            a1, a2 = tl.zeros_like(t), tl.zeros_like(t)
            b1, b2 = tl.zeros_like(t), tl.zeros_like(t)
            for _ in range(groups):
                for i in tl.static_range(unrolled):
                    a = twice * a1 + (tl.load(first + i * count) - a2)
                    b = twice * b1 + (tl.load(first + one + i * count) - b2)
                    a2 = a1
                    a1 = a
                    b2 = b1
                    b1 = b
                first += unrolled * count
            own = factors + (rank * (2 * (d > 0)) + s) * size + column
            v = tl.load(own, mask=inside, other=0.0)
            w = tl.load(own + rank * size, mask=inside, other=0.0)
            found = (a1 - t * a2) * ck * v + (b1 - t * b2) * ntk * w
            if d == 0:
                in_right += found
            elif d == 1:
                in_left += found
            else:
                in_angle += found
    tl.store(turning + place, -in_angle / tl.sqrt(1.0 - c * c), mask=inside)
    tl.store(right + place, in_right, mask=inside)
    tl.store(left + row * tiles + tile, tl.sum(in_left))


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
