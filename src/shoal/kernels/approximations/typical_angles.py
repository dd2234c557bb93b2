"""The angles that most pairs of inputs have."""

import math

import torch
from torch import Tensor

from shoal.core.caches import cached
from shoal.kernels.approximations.surface import ANY_ANGLE, Span
from shoal.kernels.inputs import CLOSE, Inputs

_ALL = 512  # rows and columns whose angles are all looked at
_SAMPLE = 256  # the same of more: some of them
GRID = 8  # ranges of angles end at multiples of 1/8 ...
_MARGIN = 1 / 16  # ... this far beyond the angles of the sample, ...
_TAIL = 0.35  # ... or this share of half their range if there are others, whichever is more
_NARROWEST = 0.5


def typical_angles(left: Inputs, right: Inputs) -> Span:
    """A range that holds nearly all angles, seen in a sample, rounded outwards.

    Nearly parallel or opposite pairs, one for each input at most, do not count: the same inputs may
    be among the rows and among the columns.
    """
    rows = _sample(left)
    columns = rows if left is right else _sample(right)
    cosine = left.unit[rows] @ right.unit[columns].T
    own = torch.eye(*cosine.shape, dtype=torch.bool, device=cosine.device)
    own &= left is right
    left_out = own | (cosine.abs() > 1 - CLOSE)
    close, all_left_out = torch.stack([(left_out ^ own).sum(), left_out.all()]).tolist()
    if close > max(cosine.shape):
        left_out = own
    elif all_left_out:
        return ANY_ANGLE
    ends = cosine.masked_fill(left_out, 1.0).min(), cosine.masked_fill(left_out, -1.0).max()
    least, most = (min(max(end, -1.0), 1.0) for end in torch.stack(ends).tolist())
    first, last = math.acos(most), math.acos(least)
    others = max(len(left), len(right)) > _ALL
    margin = max(_MARGIN, _TAIL * (last - first) / 2) if others else _MARGIN
    low = math.floor((first - margin) * GRID) / GRID
    high = math.ceil((last + margin) * GRID) / GRID
    widened = max(0.0, (_NARROWEST - (high - low)) / 2)
    return max(low - widened, 0.0), min(high + widened, math.pi)


def _sample(inputs: Inputs) -> Tensor:
    """Some inputs that are not zero."""
    some = _some(len(inputs), inputs.points.device)
    return some[inputs.norm[some] > 0]


@cached
def _some(count: int, device: torch.device) -> Tensor:
    """Numbers of some out of so many inputs, or of all if these are few."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return order[: _ALL if count <= _ALL else _SAMPLE].to(device)
