"""The verdict on all samples of a recorded solve in one kernel of a GPU.

It is that of :meth:`~shoal.equilibrium.solvers.limits.Limits.verdict`, whose dozen operations take
longer than two steps of a small equilibrium.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.equilibrium.solvers.limits import WORSE, Limits, Pair

_COLUMNS = 1024  # of a row that are read at once


def fused_verdict(limits: Limits, begun: Pair, ended: Pair) -> tuple[Tensor, Tensor]:
    """How far off the worst sample was before some steps and is after them; residuals.

    Args:
        limits: What counts as solved.
        begun: The map's value and the iterate before the steps, in float32 or a smaller dtype,
            whose squares are in the range of float64. shape: (samples, width)
        ended: The same after them.
    """
    tensors = [tensor.contiguous() for tensor in (*begun, *ended)]
    samples, width = tensors[0].shape
    residual = tensors[0].new_empty(samples)
    excess = residual.new_empty(2, samples, dtype=torch.float64)
    least = max(limits.atol, limits.finest)
    with torch.cuda.device(residual.device):
        _judge[(samples,)](
            *tensors,
            excess,
            residual,
            samples,
            width,
            rtol=limits.rtol,
            atol=limits.atol,
            lowest=least if limits.explicit else limits.finest,
            highest=least,
            absolute=bool(limits.explicit and limits.atol),
            worse=WORSE,
            columns=_COLUMNS,
        )
    return excess.amax(1), residual


@triton.jit(do_not_specialize=["samples", "width"])
def _judge(
    value_begun,
    begun,
    value_ended,
    ended,
    excess,
    residual,
    samples,
    width,
    rtol: tl.constexpr,
    atol: tl.constexpr,
    lowest: tl.constexpr,
    highest: tl.constexpr,
    absolute: tl.constexpr,
    worse: tl.constexpr,
    columns: tl.constexpr,
):
    sample = tl.program_id(0)
    off_before, size_before = tl.zeros((columns,), tl.float64), tl.zeros((columns,), tl.float64)
    off_after, size_after = tl.zeros((columns,), tl.float64), tl.zeros((columns,), tl.float64)
    for start in range(0, width, columns):
        column = start + tl.arange(0, columns)
        inside = column < width
        place = tl.cast(sample, tl.int64) * width + column
        y = tl.load(begun + place, mask=inside, other=0.0)
        z = tl.load(ended + place, mask=inside, other=0.0)
        d = (tl.load(value_begun + place, mask=inside, other=0.0) - y).to(tl.float64)
        e = (tl.load(value_ended + place, mask=inside, other=0.0) - z).to(tl.float64)
        off_before += d * d
        off_after += e * e
        size_before += y.to(tl.float64) * y.to(tl.float64)
        size_after += z.to(tl.float64) * z.to(tl.float64)
    before, after = tl.sqrt(tl.sum(off_before)), tl.sqrt(tl.sum(off_after))
    was, size = tl.sqrt(tl.sum(size_before)), tl.sqrt(tl.sum(size_after))
    first = tl.maximum(before, was)
    tolerance = tl.minimum(tl.maximum(first * atol, lowest), highest)
    strange = before + was  # both of these drop what is no number
    tolerance = tl.where(strange != strange, strange, tolerance)
    unjudged = size > worse * first
    if absolute:
        unjudged |= (first <= atol) & (before > rtol * was)
    tl.store(excess + sample, before / (tolerance + rtol * was))
    factor = tl.where(unjudged, float("inf"), after / (tolerance + rtol * size))
    tl.store(excess + samples + sample, factor)
    tl.store(residual + sample, after.to(residual.dtype.element_ty))
