"""Targets of a regression, which may be classes."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.asymptotics.labels import class_indices, classes_of
from shoal.kernels.arguments import as_tensor


def checked_targets(y: Any) -> tuple[Tensor, bool]:
    """Targets as they are, or indicators of classes."""
    kind = getattr(y, "dtype", None)
    if isinstance(kind, torch.dtype) and (kind.is_floating_point or kind.is_complex):
        return y, False
    if isinstance(kind, np.dtype) and kind.kind in "fc":
        return as_tensor(y, "y"), False
    labels = y + 0 if kind in (torch.bool, np.dtype(bool)) else y
    classes = classes_of(labels, "y")
    if len(classes) < 2:
        raise ValueError(f"y must have at least two classes, got one class, {classes[0]!r}")
    places = class_indices(labels, classes)
    return torch.nn.functional.one_hot(places, len(classes)).double(), True
