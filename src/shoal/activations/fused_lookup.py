"""Evaluation of a graded table on a GPU, in one pass over the entries."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.activations.lookup import GradedCells, Table

_BLOCK = 1024


def evaluate_fused(table: Table, x: Tensor, weight: Tensor | None, out: Tensor) -> None:
    """Write the value at each entry, times the entry of ``weight``.

    Args:
        table: One whose cells are graded, its rows side by side.
        x: The entries, contiguous, in float32 or below.
        weight: Factors, contiguous and of the same dtype.
        out: Where the results go, contiguous and of the same dtype.
    """
    cells, size = table.cells, x.numel()
    if not size or not isinstance(cells, GradedCells):
        return
    with torch.cuda.device(x.device):
        _evaluate[(triton.cdiv(size, _BLOCK),)](
            x,
            x if weight is None else weight,
            out,
            table.offset,
            size,
            1 / cells.end,
            cells.first,
            cells.count,
            23 - cells.bits,
            stride=table.offset.stride(0),
            degree=len(table.powers) - 1,
            weighted=weight is not None,
            block=_BLOCK,
        )


@triton.jit(do_not_specialize=["size", "inverse", "first", "count", "shift"])
def _evaluate(
    entries,
    weights,
    out,
    rows,
    size,
    inverse,
    first,
    count,
    shift,
    stride: tl.constexpr,
    degree: tl.constexpr,
    weighted: tl.constexpr,
    block: tl.constexpr,
):
    place = tl.cast(tl.program_id(0), tl.int64) * block + tl.arange(0, block)
    inside = place < size
    x = tl.load(entries + place, mask=inside, other=0.0).to(tl.float32)
    bits = (x * inverse).to(tl.int32, bitcast=True)
    cell = ((bits & 0x7FFFFFFF) >> shift) - first
    cell = tl.minimum(tl.maximum(cell, 0), count - 1)
    row = rows + tl.where(bits < 0, cell + count, cell) * stride
    s = x + tl.load(row)
    value = tl.load(row + degree + 1)
    for j in tl.static_range(degree):
        value = value * s + tl.load(row + degree - j)
    if weighted:
        value *= tl.load(weights + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)
