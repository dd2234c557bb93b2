"""The back end of a GPU: a surface is evaluated tile by tile, in one pass over the matrix.

For each function $f_s$ of the columns' norms, a recurrence sums the series in the angle or the
cosine, whose coefficients belong to the row; only the cosines are read and only the results
written. The loops are not unrolled as a whole, so one compilation serves all ranks and degrees.
Series are sums of powers, which take half of the operations, where coefficients do not grow much by
it, and Chebyshev series elsewhere.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from shoal.core.caches import cached
from shoal.kernels.blocks import (
    Block,
    Blocks,
    Directions,
    EvaluatedBlock,
    MatrixPair,
    OptionalMatrices,
    cheapest_series,
)
from shoal.kernels.gpu.half_precision import SplitDirections
from shoal.kernels.surface import Surface, padded

# measured on an H200
_SQUARE = (32, 32, 8)  # rows, columns and warps of a tile
_COLUMNS, _SPAN = 256, 4  # columns of a tile with one row, and such tiles of a program
_UNROLLED = 4  # steps of the recurrence


class Tiles(Blocks):
    """The back end of a GPU."""

    takes_threads = False

    def directions(self, unit: Tensor) -> Directions:
        """Unit vectors; those of single precision as numbers of half precision. shape: (n, p)."""
        return SplitDirections.from_units(unit) if unit.dtype == torch.float32 else unit

    def cosines(self, rows: Any, columns: Any) -> Tensor:
        """Cosines of the angles between directions of this back end. shape: (n, m)."""
        return (
            rows.products(columns)
            if isinstance(rows, SplitDirections)
            else super().cosines(rows, columns)
        )

    def evaluate(
        self, block: Block, out: OptionalMatrices, mirrored: MatrixPair | None = None
    ) -> EvaluatedBlock:
        """Write both kernels of a block; those of one function of the angle transposed too."""
        both = [torch.empty_like(block.cosine) if matrix is None else matrix for matrix in out]
        surface, cosine = block.surface, block.cosine
        form, series = _values_form(surface, cosine.dtype, cosine.device)
        beyond = torch.zeros(1, dtype=torch.int32, device=cosine.device)
        if surface.rank == 1:
            _evaluate_series(form, series, block, (both[0], both[1]), mirrored, beyond)
        else:
            _evaluate_rows(form, block.rows.features @ series, block, (both[0], both[1]), beyond)
            mirrored = None
        return EvaluatedBlock(_on_host(beyond), mirrored=mirrored is not None)

    def mirror(self, matrix: Tensor, rows: slice) -> None:
        """Copy the part of a strip of rows above the diagonal to below it."""
        if matrix.stride(1) == 1:
            _mirror_tiles(matrix, rows)
        else:
            super().mirror(matrix, rows)


def _on_host(flag: Tensor) -> Callable[[], bool]:
    """Start to copy a number to the host, and return a function that waits for it."""
    number = torch.empty(1, dtype=flag.dtype, pin_memory=True).copy_(flag, non_blocking=True)
    arrived = torch.cuda.current_stream(flag.device).record_event()

    def wait() -> bool:
        arrived.synchronize()
        return bool(number)

    return wait


class _SeriesForm(NamedTuple):
    """How series of a surface are summed on a GPU.

    Attributes:
        of_angle: Whether they are in the angle; otherwise they are in the cosine.
        powers: Whether they are sums of powers; otherwise they are Chebyshev series.
        ends: The middle of the range of that variable, 2 / width, and the least and the largest
            cosine of the surface.
        groups: The number of terms that matter for each function of a column's norm, in fours.
        terms: The number of terms.
    """

    of_angle: bool
    powers: bool
    ends: Tensor
    groups: Tensor
    terms: int


@cached
def _values_form(
    surface: Surface, dtype: torch.dtype, device: torch.device
) -> tuple[_SeriesForm, Tensor]:
    """The form of both kernels that is cheapest, and the coefficients of each function of a row.

    The latter are of both kernels in turn, the highest terms first.
    shape: (rank, rank * terms * 2)
    """
    form = cheapest_series(surface, dtype)
    groups = (form.lengths + _UNROLLED - 1) // _UNROLLED
    terms = _UNROLLED * max(1, int(groups.max()))
    series = padded(form.core, terms).flip(-1).permute(1, 2, 3, 0).flatten(1).contiguous()
    low, high = form.span
    ends = torch.tensor([(low + high) / 2, 2 / (high - low), *surface.cosines], dtype=torch.float64)
    on_device = _SeriesForm(
        form.of_angle, form.powers, ends.to(device, dtype), groups.int().to(device), terms
    )
    return on_device, series.to(device, dtype)


def _evaluate_series(
    form: _SeriesForm,
    series: Tensor,
    block: Block,
    out: MatrixPair,
    mirrored: MatrixPair | None,
    beyond: Tensor,
) -> None:
    """Write both kernels of a block where norms are but factors.

    Args:
        form: The form of the series.
        series: Series of both kernels in turn. shape: (1, terms * 2)
        block: The block; of a symmetric matrix it begins at the diagonal.
        out: The results; their rows are contiguous.
        mirrored: Transposed results above the diagonal; those below it are not written then.
        beyond: Set to one if some cosine is out of the range of the surface.
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
            form.terms // _UNROLLED,
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
            unrolled=_UNROLLED,
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
    """Set a flag if a cosine is out of the range of the surface."""
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


def _evaluate_rows(
    form: _SeriesForm, series: Tensor, block: Block, out: MatrixPair, beyond: Tensor
) -> None:
    """Write both kernels of a block with one series for each row; see :func:`_evaluate_series`.

    The series are of both kernels in turn, for each function of a column's norm.
    shape: (n, rank * terms * 2)
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
            unrolled=_UNROLLED,
            num_warps=1,
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


def _mirror_tiles(matrix: Tensor, rows: slice) -> None:
    """Copy the part of a strip above the diagonal to below it; columns are contiguous."""
    size, side = len(matrix), 64
    tiles = triton.cdiv(size - rows.start, side), triton.cdiv(rows.stop - rows.start, side)
    with torch.cuda.device(matrix.device):
        _mirror[tiles](matrix, rows.start, rows.stop, size, matrix.stride(0), side=side)


@triton.jit(do_not_specialize=["start", "stop", "size", "stride"])
def _mirror(matrix, start, stop, size, stride, side: tl.constexpr):
    row = start + tl.program_id(1) * side + tl.arange(0, side)
    column = start + tl.program_id(0) * side + tl.arange(0, side)
    above = (row < stop)[:, None] & (column < size)[None, :] & (column[None, :] > row[:, None])
    places = matrix + tl.cast(row, tl.int64)[:, None] * stride + column[None, :]
    mirrored = matrix + tl.cast(column, tl.int64)[:, None] * stride + row[None, :]
    tile = tl.load(places, mask=above, other=0.0)
    tl.store(mirrored, tl.trans(tile), mask=tl.trans(above.to(tl.int8)) != 0)
