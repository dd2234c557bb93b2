"""Evaluation of a surface on a GPU, tile by tile, in one pass over the matrix.

For a few functions $f_s$ of the columns' norms at a time, the series in the angle are summed, whose
coefficients belong to the row; only the cosines are read and only the results written, those of a
symmetric matrix on both sides of its diagonal. The loops are not unrolled as a whole, so one
compilation serves all degrees, and another all ranks but one.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from shoal.kernels.backends import half_precision
from shoal.kernels.backends.adjoint_tiles import adjoint_tiles
from shoal.kernels.backends.block import (
    Adjoint,
    Block,
    DifferentiableBlock,
    Factors,
    Polynomial,
    Rounded,
)
from shoal.kernels.backends.blocks import Blocks, Pair, adjoint_series
from shoal.kernels.surface import Surface

__all__ = ["Tiles", "evaluate_tiles", "mirror_tiles"]

_ROWS, _COLUMNS = 8, 128  # of a tile; mirrored, its rows are whole sectors of memory
_TOGETHER = 3  # functions of a norm that share a basis of polynomials
_CUT = {torch.float64: 2e-12, torch.float32: 1e-9}  # what may be left out, of the diagonal
_WARPS = 4
_UNROLLED = 4  # steps of the recurrence
_MIRRORED = 64  # rows and columns of a tile that is transposed


class Tiles(Blocks):
    """The back end of a GPU; entries to first order are those of blocks."""

    mirrors = True

    def evaluate(self, block: Block, out: Pair, below: Pair | None = None) -> None:
        """Write both kernels of a block into ``out``, and what is above its diagonal below it."""
        surface, rows, columns, cosine = block
        evaluate_tiles(
            cosine, _series(surface, cosine.dtype, cosine.device), rows, columns, out, below
        )

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


class _Series(NamedTuple):
    """A surface on a device, in groups of functions of the columns' norms.

    Attributes:
        coefficients: Padded. shape: (2, rank, groups * together, terms)
        lengths: How often four terms are needed in each group. shape: (groups,)
        ends: The middle of the range of angles, and one over half of its width.
        together: How many functions a group has.
    """

    coefficients: Tensor
    lengths: Tensor
    ends: Tensor
    together: int


@lru_cache(maxsize=16)
def _series(surface: Surface, dtype: torch.dtype, device: torch.device) -> _Series:
    """Kept, since all blocks of a matrix need it, and often the next matrix."""
    full, rank = surface.coefficients, surface.rank
    together = 1 if rank == 1 else _TOGETHER
    groups, fours = -(-rank // together), -(-full.shape[-1] // _UNROLLED)
    more = 0, fours * _UNROLLED - full.shape[-1], 0, groups * together - rank
    coefficients = torch.nn.functional.pad(full, more)
    # functions of a norm are bounded by the sums of their coefficients
    largest = surface.basis.abs().sum(1)
    bound = torch.einsum("r,qrsk->qsk", largest, full.abs()).amax(0) * largest[:, None]
    rest = bound.flip(1).cumsum(1).flip(1)
    needed = (rest > _CUT[dtype] / rank).sum(1)
    lengths = [
        -(-int(needed[g * together : (g + 1) * together].max()) // _UNROLLED) for g in range(groups)
    ]
    low, high = surface.angles
    return _Series(
        coefficients.to(device, dtype),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        torch.tensor([(low + high) / 2, 2 / (high - low)], dtype=dtype, device=device),
        together,
    )


def evaluate_tiles(
    cosine: Tensor,
    series: _Series,
    rows: Factors,
    columns: Factors,
    out: Pair,
    below: Pair | None = None,
) -> None:
    """Write both kernels of a block.

    Args:
        cosine: The cosines, contiguous. shape: (n, m)
        series: The surface.
        rows: What the rows contribute.
        columns: What the columns contribute.
        out: Where the results go; their columns are contiguous.
        below: Where those above the diagonal go as well; their rows are contiguous. The others,
            below the diagonal, are then written nowhere.
    """
    count, size = cosine.shape
    core, lengths, ends, together = series
    _, rank, padded, terms = core.shape
    constant = rank == 1
    if constant:  # one series for all rows, since the function is the constant
        own, per_row = core[:, 0, :, :, None].contiguous(), 1
    else:
        own = torch.einsum("nr,qrsk->qskn", rows.features, core).contiguous()
        per_row = count
    weights = torch.zeros(2, padded, size, dtype=cosine.dtype, device=cosine.device)
    torch.mul(columns.features.T, columns.scale[:, None], out=weights[:, :rank])
    tiles = triton.cdiv(size, _COLUMNS)
    mirrored = out if below is None else below
    with torch.cuda.device(cosine.device):
        # all tiles along the first axis of the grid, the only one that takes more than 65,535
        _tile[(tiles * triton.cdiv(count, _ROWS),)](
            cosine,
            own,
            lengths,
            weights,
            rows.scale.contiguous(),
            ends,
            *out,
            *mirrored,
            count,
            size,
            padded // together,
            terms,
            per_row,
            tiles,
            out[0].stride(0),
            out[1].stride(0),
            mirrored[0].stride(1),
            mirrored[1].stride(1),
            one_series=constant,
            symmetric=below is not None,
            rows=_ROWS,
            columns=_COLUMNS,
            together=together,
            num_warps=_WARPS,
        )


@triton.jit(
    do_not_specialize=[
        *("count", "size", "groups", "terms", "per_row", "tiles"),
        *("stride_ck", "stride_ntk", "below_ck", "below_ntk"),
    ]
)
def _tile(
    cosine,
    series,
    lengths,
    weights,
    scale,
    ends,
    ck,
    ntk,
    mirrored_ck,
    mirrored_ntk,
    count,
    size,
    groups,
    terms,
    per_row,
    tiles,
    stride_ck,
    stride_ntk,
    below_ck,
    below_ntk,
    one_series: tl.constexpr,
    symmetric: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    together: tl.constexpr,
):
    start, left = tl.program_id(0) // tiles * rows, tl.program_id(0) % tiles * columns
    if symmetric:  # noqa: SIM102 (it is known to the compiler, the rest is not)
        if left + columns <= start:
            return
    row, column = start + tl.arange(0, rows), left + tl.arange(0, columns)
    within, among = row < count, column < size
    inside = within[:, None] & among[None, :]
    row_place, column_place = tl.cast(row, tl.int64)[:, None], tl.cast(column, tl.int64)[None, :]
    c = tl.load(cosine + row_place * size + column_place, mask=inside, other=0.0)
    angle = libdevice.acos(tl.minimum(tl.maximum(c, -1.0), 1.0))
    t = (angle - tl.load(ends)) * tl.load(ends + 1)
    t = tl.minimum(tl.maximum(t, -1.0), 1.0)
    twice = t + t
    first, second = tl.zeros_like(t), tl.zeros_like(t)
    step = tl.cast(per_row, tl.int64)  # from one term to the next, ...
    function = step * terms  # ... from one function of the columns' norms to the next, ...
    other = function * groups * together  # ... and from the CK to the NTK
    at = series + tl.minimum(row, 0 if one_series else count - 1)
    for g in range(groups):
        p, q = tl.full(t.shape, 1.0, t.dtype), t
        a0, b0 = tl.zeros_like(t), tl.zeros_like(t)
        if together == 3:
            a1, b1 = tl.zeros_like(t), tl.zeros_like(t)
            a2, b2 = tl.zeros_like(t), tl.zeros_like(t)
        k = at + tl.cast(g, tl.int64) * together * function
        for _ in range(tl.load(lengths + g)):
            for _two in tl.static_range(2):
                a0 += tl.load(k)[:, None] * p + tl.load(k + step)[:, None] * q
                b0 += tl.load(k + other)[:, None] * p + tl.load(k + other + step)[:, None] * q
                if together == 3:
                    j = k + function
                    a1 += tl.load(j)[:, None] * p + tl.load(j + step)[:, None] * q
                    b1 += tl.load(j + other)[:, None] * p + tl.load(j + other + step)[:, None] * q
                    m = j + function
                    a2 += tl.load(m)[:, None] * p + tl.load(m + step)[:, None] * q
                    b2 += tl.load(m + other)[:, None] * p + tl.load(m + other + step)[:, None] * q
                p = twice * q - p
                q = twice * p - q
                k += 2 * step
        v = weights + tl.cast(g, tl.int64) * together * size + column
        w = v + tl.cast(groups, tl.int64) * together * size
        first += a0 * tl.load(v, mask=among, other=0.0)[None, :]
        second += b0 * tl.load(w, mask=among, other=0.0)[None, :]
        if together == 3:
            first += a1 * tl.load(v + size, mask=among, other=0.0)[None, :]
            second += b1 * tl.load(w + size, mask=among, other=0.0)[None, :]
            first += a2 * tl.load(v + 2 * size, mask=among, other=0.0)[None, :]
            second += b2 * tl.load(w + 2 * size, mask=among, other=0.0)[None, :]
    first *= tl.load(scale + row, mask=within, other=0.0)[:, None]
    second *= tl.load(scale + count + row, mask=within, other=0.0)[:, None]
    above = inside
    if symmetric:
        above = inside & (column[None, :] >= row[:, None])
    tl.store(ck + row_place * stride_ck + column_place, first, mask=above)
    tl.store(ntk + row_place * stride_ntk + column_place, second, mask=above)
    if symmetric:
        beyond = inside & (column[None, :] > row[:, None])
        tl.store(mirrored_ck + column_place * below_ck + row_place, first, mask=beyond)
        tl.store(mirrored_ntk + column_place * below_ntk + row_place, second, mask=beyond)


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
