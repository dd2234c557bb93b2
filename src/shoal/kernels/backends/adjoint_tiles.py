"""The adjoint of the evaluation of a surface on a GPU, tile by tile, in one pass over the matrix.

For each function $f_s$ of the columns' norms, Clenshaw's recurrence sums the series in the angle,
whose coefficients belong to the row. The loops are not unrolled as a whole, so one compilation
serves all ranks and degrees.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from shoal.kernels.backends.block import Adjoint

__all__ = ["adjoint_tiles"]

_COLUMNS = 256  # of a tile, which has one row; measured
_WARPS = 2
_UNROLLED = 4  # steps of the recurrence


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
    tiles = triton.cdiv(size, _COLUMNS)
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
            columns=_COLUMNS,
            unrolled=_UNROLLED,
            num_warps=_WARPS,
        )
    return Adjoint(turning, left.sum(1, dtype=torch.float64), right.sum(0, dtype=torch.float64))


def _falling(series: Tensor) -> tuple[Tensor, int]:
    """Coefficients, highest degree first, and in how many groups that are unrolled."""
    several, rank, terms, count = series.shape
    groups = -(-terms // _UNROLLED)
    falling = series.new_zeros(several, rank, groups * _UNROLLED, count)
    falling[:, :, groups * _UNROLLED - terms :] = series.flip(2)
    return falling, groups


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
