r"""Products with a kernel matrix on a GPU of which no entry is ever written to memory.

A tile of inner products of half-precision inputs is summed in float32, becomes a tile of the kernel
by a polynomial in $\sin\tfrac\theta2 = \sqrt{(1 - \cos\theta)/2}$, and is multiplied from both
sides: its rows with the vectors of the columns, and its columns with the vectors of the rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["COLUMNS", "multiply_tiles"]

COLUMNS = 16  # vectors that are multiplied together
_ROWS, _ACROSS, _DEEP = 128, 128, 64  # of a tile, and features that are loaded together
_SPAN = 32  # tiles of a row that one program has
_WARPS, _STAGES = 8, 3


def multiply_tiles(
    rows: Tensor,
    columns: Tensor,
    polynomial: Tensor,
    scales: tuple[Tensor, Tensor],
    vectors: tuple[Tensor, Tensor],
    *,
    diagonal: bool,
) -> tuple[Tensor, Tensor | None]:
    r"""Products of a block of a kernel matrix with vectors from both sides.

    Args:
        rows: Multiples of directions in float16, contiguous. shape: (n, p), with n a multiple of
            128 and p one of 64
        columns: The same of the columns. shape: (m, p)
        polynomial: Coefficients, highest first, of the kernel in $u = s \sin\tfrac\theta2 - 1$,
            and $s$ in front. shape: (degree + 2,), in float32
        scales: What makes cosines of inner products, for rows and columns. shapes: (n,), (m,)
        vectors: Those of the rows, $l$, and of the columns, $r$. shapes: (n, 16), (m, 16)
        diagonal: Whether the block is square and on the diagonal, where cosines are one; what is
            below it then counts as what is above, and there is no second product.

    Returns:
        $Kr$ and $K^T l$, sums over parts still to be made. shapes: (parts, n, 16), (parts, m, 16)
    """
    count, size = len(rows), len(columns)
    spans = triton.cdiv(size, _ACROSS * _SPAN)
    down = rows.new_empty(spans, count, COLUMNS, dtype=torch.float32)
    across = None
    if not diagonal:
        across = rows.new_empty(count // _ROWS, size, COLUMNS, dtype=torch.float32)
    with torch.cuda.device(rows.device) if rows.is_cuda else torch.no_grad():
        _multiply[(count // _ROWS, spans)](
            rows,
            columns,
            polynomial,
            *scales,
            *vectors,
            down,
            down if across is None else across,
            count,
            size,
            rows.shape[1],
            len(polynomial) - 1,
            on_diagonal=diagonal,
            tall=_ROWS,
            wide=_ACROSS,
            deep=_DEEP,
            span=_SPAN,
            vectors=COLUMNS,
            num_warps=_WARPS,
            num_stages=_STAGES,
        )
    return down, across


@triton.jit(do_not_specialize=["count", "size", "terms"])
def _multiply(
    rows,
    columns,
    polynomial,
    row_scale,
    column_scale,
    left,
    right,
    down,
    across,
    count,
    size,
    features,
    terms,
    on_diagonal: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    deep: tl.constexpr,
    span: tl.constexpr,
    vectors: tl.constexpr,
):
    tile, part = tl.program_id(0), tl.program_id(1)
    i = tile * tall + tl.arange(0, tall)
    q = tl.arange(0, vectors)
    d = tl.arange(0, deep)
    scale = tl.load(row_scale + i)
    own = tl.load(left + i[:, None] * vectors + q[None, :])
    total = tl.zeros((tall, vectors), dtype=tl.float32)
    slope = tl.load(polynomial)
    begin = part * span * wide
    for start in range(begin, tl.minimum(begin + span * wide, size), wide):
        j = start + tl.arange(0, wide)
        cosine = tl.zeros((tall, wide), dtype=tl.float32)
        for k in range(0, features, deep):
            a = tl.load(rows + tl.cast(i, tl.int64)[:, None] * features + (k + d)[None, :])
            b = tl.load(columns + tl.cast(j, tl.int64)[None, :] * features + (k + d)[:, None])
            cosine = tl.dot(a, b, cosine)
        cosine = cosine * scale[:, None] * tl.load(column_scale + j)[None, :]
        u = slope * tl.sqrt(tl.maximum(0.5 - 0.5 * cosine, 0.0)) - 1.0
        value = tl.zeros((tall, wide), dtype=tl.float32) + tl.load(polynomial + 1)
        for term in range(2, terms + 1):
            value = value * u + tl.load(polynomial + term)
        if on_diagonal:
            value = tl.where(i[:, None] == j[None, :], 1.0, value)
        other = tl.load(right + j[:, None] * vectors + q[None, :])
        total = tl.dot(value, other, total, input_precision="tf32x3")
        if not on_diagonal:
            image = tl.dot(tl.trans(value), own, input_precision="tf32x3")
            place = (tl.cast(tile, tl.int64) * size + j)[:, None] * vectors + q[None, :]
            tl.store(across + place, image)
    place = (tl.cast(part, tl.int64) * count + i)[:, None] * vectors + q[None, :]
    tl.store(down + place, total)
