"""What learning curves return."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from shoal.prediction.plot import plot_curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Check", "LearningCurve"]


@dataclass(frozen=True)
class Check:
    """A regression on some of the samples, measured on others, beside what was predicted for it.

    Attributes:
        size: How many samples it was given.
        source: How many samples the prediction is from: all, or half of them.
        predicted: The test error that was predicted.
        measured: The mean squared error on samples that it was not given, a mean over repetitions.
        measured_rate: The share of these that are classified wrong, where there are classes.
    """

    size: int
    source: int
    predicted: float
    measured: float
    measured_rate: float | None

    @property
    def deviation(self) -> float:
        """Predicted over measured, less one."""
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else math.inf
        return self.predicted / self.measured - 1


@dataclass(frozen=True, eq=False)
class LearningCurve:
    r"""Predicted errors of kernel ridge regression against the number of samples.

    All errors are mean squares over samples and outputs, and expectations over training sets. Where
    nothing is claimed they are NaN.

    Attributes:
        sizes: Numbers of training samples. shape: (s,), like all tensors here
        ridge: $\lambda$.
        test_error: On new samples of the same kind, noise included: ``bias + variance``.
        bias: The error of the mean predictor, over training sets; it has the noise, and all that
            the kernel cannot learn from so many samples.
        variance: What single training sets add to that.
        train_error: On the training samples themselves.
        error_rate: The share of new samples that are classified wrong by the largest output; for
            targets that are classes. It is claimed up to ``samples``.
        uncertainty: One standard deviation of ``test_error``: sampling errors, and how far the
            checks were off.
        limit: The largest size for which anything is claimed.
        samples: How many samples it was predicted from; ``None`` if from a law.
        checks: Measured errors, beside those predicted.
    """

    sizes: Tensor
    ridge: float
    test_error: Tensor
    bias: Tensor
    variance: Tensor
    train_error: Tensor
    error_rate: Tensor | None
    uncertainty: Tensor
    limit: float
    samples: int | None = None
    checks: tuple[Check, ...] = field(default=(), repr=False)

    def plot(self) -> "Figure":
        """Errors against the number of samples, with the checks, and error rates of classes."""
        return plot_curve(self)
