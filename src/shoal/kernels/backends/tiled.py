"""Evaluation of a surface and its adjoint on a GPU, tile by tile, in one pass over the matrix.

For each function $f_s$ of the columns' norms, Clenshaw's recurrence sums the series in the angle,
whose coefficients belong to the row; only the cosines are read and only the results written. The
loops are not unrolled as a whole, so one compilation serves all ranks and degrees.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.polynomial.chebyshev import cheb2poly
from torch import Tensor
from triton.language.extra import libdevice

from shoal.core.caches import cached
from shoal.kernels.approximations.surface import Span, Surface, padded
from shoal.kernels.backends import half_precision
from shoal.kernels.backends.block import (
    Adjoint,
    Block,
    DifferentiableBlock,
    Directions,
    Evaluated,
    Polynomial,
    Rounded,
)
from shoal.kernels.backends.blocks import Blocks, Pair, adjoint_series
from shoal.kernels.backends.half_precision import Halves

_COLUMNS = 256  # of a tile, which has one row; measured, as are the following
_SPAN = 8  # such tiles that one program has, with the same coefficients
_WARPS = 2
_SQUARE = {torch.float64: (32, 64, 4), torch.float32: (64, 64, 8)}  # rows, columns and warps
_ADJOINT_COLUMNS = 256
_ALIGNED = 16  # numbers of a row of cosines, with which products are fast
_UNROLLED = 4  # steps of the recurrence
_MIRRORED = 64  # rows and columns of a tile that is transposed
_CUT = {torch.float64: 2e-13, torch.float32: 1e-9}  # of the diagonal, that may be left out
_GROWTH = 4.0  # of the coefficients, up to which series are summed as powers


class Tiles(Blocks):
    """The back end of a GPU; entries to first order are those of blocks."""

    def directions(self, unit: Tensor) -> Directions:
        """Unit vectors; those of single precision as numbers of half precision. shape: (n, p)."""
        return Halves.of(unit) if unit.dtype == torch.float32 else unit

    def cosines(self, left: Any, right: Any) -> Tensor:
        """Cosines of the angles between directions of this back end. shape: (n, m)."""
        whole = triton.cdiv(len(right), _ALIGNED) * _ALIGNED
        if isinstance(left, Halves):
            space = left.whole.new_empty(len(left), whole, dtype=torch.float32)
            return left.products(right, space[:, : len(right)])
        return torch.mm(left, right.T, out=left.new_empty(len(left), whole)[:, : len(right)])

    def evaluate(self, block: Block, out: Pair, mirrored: Pair | None = None) -> Evaluated:
        """Write both kernels of a block; those of one function of the angle transposed too."""
        form = _form(block.surface, block.cosine.dtype, block.cosine.device)
        if block.surface.rank == 1:
            return Evaluated(_on_host(evaluate_series(form, block, out, mirrored)), True)
        evaluate_rows(form, block, out)
        return Evaluated(_on_host(torch.stack(torch.aminmax(block.cosine))))

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


def _on_host(ends: Tensor) -> Callable[[], Span]:
    """Two numbers on their way to the host, and what waits for them."""
    numbers = torch.empty(2, dtype=ends.dtype, pin_memory=True).copy_(ends, non_blocking=True)
    arrived = torch.cuda.current_stream(ends.device).record_event()

    def wait() -> Span:
        arrived.synchronize()
        least, most = numbers.tolist()
        return least, most

    return wait


class _Form(NamedTuple):
    """The series of a surface, on a GPU.

    Attributes:
        of_angle: Whether they are in the angle; otherwise they are in the cosine.
        powers: Whether they are sums of powers; otherwise they are Chebyshev series.
        ends: The middle of the range of that variable, and 2 / width.
        series: What functions of a row's norm contribute to series, the highest terms first, both
            kernels in turn. shape: (rank, rank * terms * 2)
        groups: How many of the terms matter for each function of a column's norm, in fours.
        terms: How many there are.
    """

    of_angle: bool
    powers: bool
    ends: Tensor
    series: Tensor
    groups: Tensor
    terms: int


@cached
def _form(surface: Surface, dtype: torch.dtype, device: torch.device) -> _Form:
    """The form of a surface that is cheapest there."""
    cut, (low, high) = _CUT[dtype], surface.angles
    core = surface.in_cosines(cut)
    of_angle = core is None
    if core is None:
        core = surface.coefficients
    else:
        low, high = math.cos(high), math.cos(low)
    most = surface.basis.abs().sum(1)  # of the functions of a norm
    size = torch.einsum("r,qrsk,s->sqk", most, core.abs(), most).amax(1)
    needed = (size.flip(1).cumsum(1).flip(1) > cut / 2 / surface.rank).sum(1)
    groups = (needed + _UNROLLED - 1) // _UNROLLED
    terms = _UNROLLED * int(groups.max())
    core = padded(core[..., :terms], terms)
    polynomials = [cheb2poly(row) for row in np.eye(terms)]
    in_powers = core @ torch.from_numpy(
        np.stack([np.pad(powers, (0, terms - len(powers))) for powers in polynomials])
    )
    powers = bool(in_powers.abs().sum() <= _GROWTH * core.abs().sum())
    chosen = (in_powers if powers else core).flip(-1).permute(1, 2, 3, 0).flatten(1)
    return _Form(
        of_angle,
        powers,
        torch.tensor([(low + high) / 2, 2 / (high - low)], dtype=dtype, device=device),
        chosen.to(device, dtype).contiguous(),
        groups.to(device, torch.int32),
        terms,
    )


def evaluate_series(form: _Form, block: Block, out: Pair, mirrored: Pair | None) -> Tensor:
    """Write both kernels of a block where norms are but factors.

    Args:
        form: The surface, of rank one.
        block: The block; of a symmetric matrix it begins at the diagonal.
        out: Where the results go; their columns are contiguous.
        mirrored: Where those above the diagonal go too, transposed; those below it go nowhere then.

    Returns:
        The least and the largest cosine, of those above the diagonal if there is one.
    """
    cosine = block.cosine
    count, size = cosine.shape
    rows, columns, warps = _SQUARE[cosine.dtype]
    tiles = triton.cdiv(size, columns), triton.cdiv(count, rows)
    ends = cosine.new_empty(2, tiles[0] * tiles[1])
    below = out if mirrored is None else mirrored
    with torch.cuda.device(cosine.device):
        # all tiles along the first axis of the grid, the only one that takes more than 65,535
        _series_tile[(tiles[0] * tiles[1],)](
            cosine,
            form.series,
            form.ends,
            block.rows.scale,
            block.columns.scale,
            *out,
            *below,
            ends,
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
    return torch.stack([ends[0].amin(), ends[1].amax()])


@triton.jit
def _place(c, ends, of_angle: tl.constexpr):
    """Where cosines are in the range of a series, as -1 to 1."""
    if of_angle:
        c = libdevice.acos(tl.minimum(tl.maximum(c, -1.0), 1.0))
    t = (c - tl.load(ends)) * tl.load(ends + 1)
    return tl.minimum(tl.maximum(t, -1.0), 1.0)


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
    seen,
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
    tl.store(seen + tile, tl.min(tl.where(inside, c, 1.0)))
    tl.store(seen + tl.num_programs(0) + tile, tl.max(tl.where(inside, c, -1.0)))
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


def evaluate_rows(form: _Form, block: Block, out: Pair) -> None:
    """Write both kernels of a block whose rows have series of their own.

    Args:
        form: The surface.
        block: The block.
        out: Where the results go; their columns are contiguous.
    """
    rows, columns, cosine = block.rows, block.columns, block.cosine
    count, size = cosine.shape
    rank = rows.features.shape[1]
    series = rows.features @ form.series
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
        t = _place(tl.load(cosine + i * stride + j, mask=inside, other=0.0), ends, of_angle)
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


def _falling(series: Tensor) -> tuple[Tensor, int]:
    """Coefficients, highest degree first, and in how many groups that are unrolled."""
    several, rank, terms, count = series.shape
    groups = -(-terms // _UNROLLED)
    falling = series.new_zeros(several, rank, groups * _UNROLLED, count)
    falling[:, :, groups * _UNROLLED - terms :] = series.flip(2)
    return falling, groups


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
        cosine: The cosines. shape: (n, m)
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
    turning, right = (cosine.new_empty(count, size) for _ in range(2))
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
            cosine.stride(0),
            columns=_ADJOINT_COLUMNS,
            unrolled=_UNROLLED,
            num_warps=_WARPS,
        )
    return Adjoint(turning, left.sum(1, dtype=torch.float64), right.sum(0, dtype=torch.float64))


@triton.jit(do_not_specialize=["count", "size", "rank", "groups", "tiles", "stride"])
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
    stride,
    columns: tl.constexpr,
    unrolled: tl.constexpr,
):
    tile = tl.program_id(0) % tiles
    row = tl.cast(tl.program_id(0) // tiles, tl.int64)
    column = tile * columns + tl.arange(0, columns)
    inside = column < size
    place = row * size + column
    c = tl.load(cosine + row * stride + column, mask=inside, other=0.0)
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
