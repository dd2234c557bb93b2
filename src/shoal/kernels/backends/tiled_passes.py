"""Evaluation of a surface and its adjoint on a GPU, tile by tile, in one pass over the matrix.

For each function $f_s$ of the columns' norms, a recurrence sums the series in the angle or the
cosine, whose coefficients belong to the row; only the cosines are read and only the results
written. The loops are not unrolled as a whole, so one compilation serves all ranks and degrees.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from shoal.kernels.approximations.surface import padded
from shoal.kernels.backends.block import Adjoint, Block, DifferentiableBlock
from shoal.kernels.backends.blocks import Pair, adjoint_series
from shoal.kernels.backends.series_forms import UNROLLED, SeriesForm, slopes_form

_SQUARE = (32, 32, 8)  # rows, columns and warps of a tile; measured, as are the following
_COLUMNS, _WARPS = 256, 1  # of a tile that has one row
_SPAN = 4  # such tiles that one program has, with the same coefficients
_MIRRORED = 64  # rows and columns of a tile that is transposed


def evaluate_series(
    form: SeriesForm, series: Tensor, block: Block, out: Pair, mirrored: Pair | None, beyond: Tensor
) -> None:
    """Write both kernels of a block where norms are but factors.

    Args:
        form: How series are summed.
        series: Those of both kernels in turn. shape: (1, terms * 2)
        block: The block; of a symmetric matrix it begins at the diagonal.
        out: Where the results go; their rows are contiguous.
        mirrored: Where those above the diagonal go too, transposed; those below it go nowhere then.
        beyond: A number that becomes one if some cosine is beyond those that the surface knows.
    """
    cosine = block.cosine
    count, size = cosine.shape
    rows, columns, warps = _SQUARE
    tiles = triton.cdiv(size, columns), triton.cdiv(count, rows)
    below = out if mirrored is None else mirrored
    with torch.cuda.device(cosine.device):
        # all tiles along the first axis of the grid, the only one that takes more than 65,535
        _series_tile[(tiles[0] * tiles[1],)](
            cosine,
            series,
            form.ends,
            block.rows.scale,
            block.columns.scale,
            *out,
            *below,
            beyond,
            count,
            size,
            tiles[0],
            form.terms // UNROLLED,
            cosine.stride(0),
            block.rows.scale.stride(0),
            block.columns.scale.stride(0),
            out[0].stride(0),
            out[1].stride(0),
            below[0].stride(0),
            below[1].stride(0),
            of_angle=form.of_angle,
            powers=form.powers,
            symmetric=mirrored is not None,
            rows=rows,
            columns=columns,
            unrolled=UNROLLED,
            num_warps=warps,
        )


@triton.jit
def _place(c, ends, of_angle: tl.constexpr):
    """Where cosines are in the range of a series, as -1 to 1."""
    if of_angle:
        c = libdevice.acos(tl.minimum(tl.maximum(c, -1.0), 1.0))
    t = (c - tl.load(ends)) * tl.load(ends + 1)
    return tl.minimum(tl.maximum(t, -1.0), 1.0)


@triton.jit
def _tell(beyond, c, ends, inside):
    """Note that a cosine is beyond those of the surface, if one is."""
    strange = inside & ((c < tl.load(ends + 2)) | (c > tl.load(ends + 3)))
    tl.store(beyond + tl.zeros_like(c).to(tl.int32), tl.full(c.shape, 1, tl.int32), mask=strange)


@triton.jit
def _sums(series, t, groups, powers: tl.constexpr, unrolled: tl.constexpr):
    """Two series in turn, the highest terms first."""
    b1, b2 = tl.zeros_like(t), tl.zeros_like(t)
    d1, d2 = tl.zeros_like(t), tl.zeros_like(t)
    for _ in range(groups):
        for i in tl.static_range(unrolled):
            first, second = tl.load(series + 2 * i), tl.load(series + 2 * i + 1)
            if powers:
                b1 = t * b1 + first
                d1 = t * d1 + second
            else:
                b = 2.0 * t * b1 + (first - b2)
                d = 2.0 * t * d1 + (second - d2)
                b2 = b1
                b1 = b
                d2 = d1
                d1 = d
        series += 2 * unrolled
    return b1 - t * b2, d1 - t * d2


@triton.jit(
    do_not_specialize=[
        "count", "size", "tiles", "groups", "stride", "row_stride", "column_stride",
        "stride_ck", "stride_ntk", "below_ck", "below_ntk",
    ]
)  # fmt: skip
def _series_tile(
    cosine,
    series,
    ends,
    row_scale,
    column_scale,
    ck,
    ntk,
    mirrored_ck,
    mirrored_ntk,
    beyond,
    count,
    size,
    tiles,
    groups,
    stride,
    row_stride,
    column_stride,
    stride_ck,
    stride_ntk,
    below_ck,
    below_ntk,
    of_angle: tl.constexpr,
    powers: tl.constexpr,
    symmetric: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    unrolled: tl.constexpr,
):
    tile = tl.program_id(0)
    i = tl.cast(tile // tiles * rows + tl.arange(0, rows), tl.int64)
    j = tl.cast(tile % tiles * columns + tl.arange(0, columns), tl.int64)
    inside = (i < count)[:, None] & (j < size)[None, :]
    if symmetric:
        inside &= j[None, :] > i[:, None]
    c = tl.load(cosine + i[:, None] * stride + j[None, :], mask=inside, other=0.0)
    _tell(beyond, c, ends, inside)
    first, second = _sums(series, _place(c, ends, of_angle), groups, powers, unrolled)
    known, there = i < count, j < size
    first *= tl.load(row_scale + i, mask=known, other=0.0)[:, None]
    first *= tl.load(column_scale + j, mask=there, other=0.0)[None, :]
    second *= tl.load(row_scale + row_stride + i, mask=known, other=0.0)[:, None]
    second *= tl.load(column_scale + column_stride + j, mask=there, other=0.0)[None, :]
    tl.store(ck + i[:, None] * stride_ck + j[None, :], first, mask=inside)
    tl.store(ntk + i[:, None] * stride_ntk + j[None, :], second, mask=inside)
    if symmetric:
        below = tl.trans(inside.to(tl.int8)) != 0
        places = mirrored_ck + j[:, None] * below_ck + i[None, :]
        tl.store(places, tl.trans(first), mask=below)
        places = mirrored_ntk + j[:, None] * below_ntk + i[None, :]
        tl.store(places, tl.trans(second), mask=below)


def evaluate_rows(
    form: SeriesForm, series: Tensor, block: Block, out: Pair, beyond: Tensor
) -> None:
    """Write both kernels of a block whose rows have series of their own.

    Args:
        form: How series are summed.
        series: Those of the rows, for each function of a column's norm, of both kernels in turn.
            shape: (n, rank * terms * 2)
        block: The block.
        out: Where the results go; their rows are contiguous.
        beyond: A number that becomes one if some cosine is beyond those that the surface knows.
    """
    rows, columns, cosine = block.rows, block.columns, block.cosine
    count, size = cosine.shape
    rank = rows.features.shape[1]
    features = columns.features.T  # of contiguous columns
    if features.stride(1) != 1:
        features = features.contiguous()
    tiles = triton.cdiv(size, _COLUMNS * _SPAN)
    with torch.cuda.device(cosine.device):
        _row_tile[(tiles * count,)](
            cosine,
            series,
            form.groups,
            form.ends,
            rows.scale,
            features,
            columns.scale,
            *out,
            beyond,
            size,
            rank,
            form.terms,
            tiles,
            cosine.stride(0),
            rows.scale.stride(0),
            features.stride(0),
            columns.scale.stride(0),
            out[0].stride(0),
            out[1].stride(0),
            of_angle=form.of_angle,
            powers=form.powers,
            columns=_COLUMNS,
            span=_SPAN,
            unrolled=UNROLLED,
            num_warps=_WARPS,
        )


@triton.jit(
    do_not_specialize=[
        "size", "rank", "terms", "tiles", "stride", "row_stride", "feature_stride", "column_stride",
        "stride_ck", "stride_ntk",
    ]
)  # fmt: skip
def _row_tile(
    cosine,
    series,
    lengths,
    ends,
    row_scale,
    features,
    column_scale,
    ck,
    ntk,
    beyond,
    size,
    rank,
    terms,
    tiles,
    stride,
    row_stride,
    feature_stride,
    column_stride,
    stride_ck,
    stride_ntk,
    of_angle: tl.constexpr,
    powers: tl.constexpr,
    columns: tl.constexpr,
    span: tl.constexpr,
    unrolled: tl.constexpr,
):
    i = tl.cast(tl.program_id(0) // tiles, tl.int64)
    first_scale, second_scale = tl.load(row_scale + i), tl.load(row_scale + row_stride + i)
    begin = tl.program_id(0) % tiles * columns * span
    for start in range(begin, tl.minimum(begin + columns * span, size), columns):
        j = start + tl.arange(0, columns)
        inside = j < size
        c = tl.load(cosine + i * stride + j, mask=inside, other=0.0)
        _tell(beyond, c, ends, inside)
        t = _place(c, ends, of_angle)
        first, second = tl.zeros_like(t), tl.zeros_like(t)
        for s in range(rank):
            groups = tl.load(lengths + s)
            own = series + (i * rank + s + 1) * terms * 2 - groups * unrolled * 2
            b, d = _sums(own, t, groups, powers, unrolled)
            f = tl.load(features + s * feature_stride + j, mask=inside, other=0.0)
            first += b * f
            second += d * f
        first *= tl.load(column_scale + j, mask=inside, other=0.0) * first_scale
        second *= tl.load(column_scale + column_stride + j, mask=inside, other=0.0) * second_scale
        tl.store(ck + i * stride_ck + j, first, mask=inside)
        tl.store(ntk + i * stride_ntk + j, second, mask=inside)


def adjoint_rows(block: DifferentiableBlock, upstream: Tensor) -> Adjoint:
    """Gradients of cosines and norms of a block, given those of both kernels.

    Args:
        block: The block.
        upstream: Gradients of both kernels, contiguous. shape: (2, n, m)
    """
    surface, rows, columns, cosine = block
    (count, size), rank = cosine.shape, surface.rank
    form = slopes_form(surface, cosine.dtype, cosine.device)
    # for the columns' slopes, the rows' slopes and the angle, by row and function of a column
    series = padded(adjoint_series(surface, rows).to(cosine), form.terms)
    series = torch.einsum("dqnsk,skp->nsdpq", series, form.falling).contiguous()
    factors = torch.cat([columns.slopes, columns.values]).to(cosine).mT.contiguous()
    tiles = triton.cdiv(size, _COLUMNS * _SPAN)
    turning, right = (cosine.new_empty(count, size) for _ in range(2))
    left = cosine.new_empty(count, tiles)
    with torch.cuda.device(cosine.device):
        _adjoint_tile[(tiles * count,)](
            cosine,
            upstream,
            series,
            form.groups,
            form.ends,
            factors,
            turning,
            left,
            right,
            count,
            size,
            rank,
            form.terms,
            tiles,
            cosine.stride(0),
            powers=form.powers,
            columns=_COLUMNS,
            span=_SPAN,
            unrolled=UNROLLED,
            num_warps=_WARPS,
        )
    return Adjoint(turning, left.sum(1, dtype=torch.float64), right.sum(0, dtype=torch.float64))


@triton.jit(do_not_specialize=["count", "size", "rank", "terms", "tiles", "stride"])
def _adjoint_tile(
    cosine,
    upstream,
    series,
    lengths,
    ends,
    factors,
    turning,
    left,
    right,
    count,
    size,
    rank,
    terms,
    tiles,
    stride,
    powers: tl.constexpr,
    columns: tl.constexpr,
    span: tl.constexpr,
    unrolled: tl.constexpr,
):
    i = tl.cast(tl.program_id(0) // tiles, tl.int64)
    begin = tl.program_id(0) % tiles * columns * span
    to_ntk = tl.cast(count, tl.int64) * size
    total = tl.zeros((columns,), dtype=turning.dtype.element_ty)
    for start in range(begin, tl.minimum(begin + columns * span, size), columns):
        j = start + tl.arange(0, columns)
        inside = j < size
        place = i * size + j
        c = tl.load(cosine + i * stride + j, mask=inside, other=0.0)
        ck = tl.load(upstream + place, mask=inside, other=0.0)
        ntk = tl.load(upstream + to_ntk + place, mask=inside, other=0.0)
        t = _place(c, ends, True)
        in_angle, in_right = tl.zeros_like(t), tl.zeros_like(t)
        for s in range(rank):
            groups = tl.load(lengths + s)
            own = series + ((i * rank + s) * 3 + 1) * terms * 2 - groups * unrolled * 2
            for d in tl.static_range(3):
                a, b = _sums(own + d * terms * 2, t, groups, powers, unrolled)
                column = factors + (rank * (2 * (d > 0)) + s) * size + j
                v = tl.load(column, mask=inside, other=0.0)
                w = tl.load(column + rank * size, mask=inside, other=0.0)
                found = a * ck * v + b * ntk * w
                if d == 0:
                    in_right += found
                elif d == 1:
                    total += found
                else:
                    in_angle += found
        tl.store(turning + place, -in_angle / tl.sqrt(1.0 - c * c), mask=inside)
        tl.store(right + place, in_right, mask=inside)
    tl.store(left + tl.program_id(0), tl.sum(total))


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
