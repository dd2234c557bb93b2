"""The angles that most pairs of inputs have."""

import math

import torch

from shoal.kernels.approximations.surface import ANY_ANGLE, Span
from shoal.kernels.inputs import CLOSE, Inputs

__all__ = ["GRID", "typical_angles"]

_SAMPLE = 512  # rows and columns whose angles are looked at first
GRID = 8  # ranges of angles end at multiples of 1/8 ...
_MARGIN = 1 / 16  # ... this far beyond the angles of the sample, ...
_TAIL = 0.35  # ... or this share of half their range if there are others, whichever is more
_NARROWEST = 0.5


def typical_angles(left: Inputs, right: Inputs) -> Span:
    """A range that holds nearly all angles, seen in a sample, rounded outwards.

    Nearly parallel or opposite pairs, one for each input at most, do not count: the same inputs may
    be among the rows and among the columns.
    """
    generator = torch.Generator().manual_seed(0)
    i, j = (
        torch.randperm(len(s), generator=generator)[:_SAMPLE].to(s.points.device)
        for s in (left, right)
    )
    cosine = left.unit[i] @ right.unit[j].T
    ordinary = (left.norm[i, None] > 0) & (right.norm[j] > 0)
    if left is right:
        ordinary &= i[:, None] != j
    apart = ordinary & (cosine.abs() <= 1 - CLOSE)
    if int((ordinary ^ apart).sum()) <= max(cosine.shape):
        ordinary = apart
    if not bool(ordinary.any()):
        return ANY_ANGLE
    least, most = (float(end) for end in torch.aminmax(cosine[ordinary].double().clamp(-1.0, 1.0)))
    first, last = math.acos(most), math.acos(least)
    others = max(len(left), len(right)) > _SAMPLE
    margin = max(_MARGIN, _TAIL * (last - first) / 2) if others else _MARGIN
    low = math.floor((first - margin) * GRID) / GRID
    high = math.ceil((last + margin) * GRID) / GRID
    widened = max(0.0, (_NARROWEST - (high - low)) / 2)
    return max(low - widened, 0.0), min(high + widened, math.pi)
