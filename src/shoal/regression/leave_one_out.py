"""Predictions for samples by all the others."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

__all__ = ["LeaveOneOut", "agreement"]


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    r"""What a regression predicts for each of its samples when that one is left out.

    Attributes:
        predictions: In the shape of the targets.
        residuals: Targets less predictions.
        variance: $1 / G_{ii}$: that of the left-out observation, noise included, for a Gaussian
            process of scale one.
        mean_squared_error: Of all residuals.
        accuracy: The share of samples whose largest output, or the sign of a single one, is that
            of the target. It means something where the targets are indicators of classes.
    """

    predictions: Any = field(repr=False)
    residuals: Any = field(repr=False)
    variance: Any = field(repr=False)
    mean_squared_error: float
    accuracy: float


def agreement(predictions: Tensor, targets: Tensor) -> float:
    """The share of rows in which the largest entry, or the sign of the only one, is the same."""
    if targets.shape[1] == 1:
        same = (predictions > 0) == (targets > 0)
    else:
        same = predictions.argmax(1) == targets.argmax(1)
    return float(same.double().mean())
