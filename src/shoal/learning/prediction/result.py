"""What learning curves return."""

import math
from dataclasses import dataclass, field

from torch import Tensor

from shoal.core.figures import Axes, Figure, empty_figure

_BLUE, _ORANGE, _GREEN, _GRAY = "#0072B2", "#E69F00", "#009E73", "#444444"


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
        samples: How many samples it was predicted from.
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

    def plot(self) -> Figure:
        """Errors against the number of samples, with the checks, and error rates of classes."""
        count = 1 if self.error_rate is None else 2
        figure = empty_figure(5.2 * count, 3.6)
        panels: list[Axes] = list(figure.subplots(1, count, squeeze=False).flat)
        _errors(panels[0], self)
        if self.error_rate is not None:
            panels[1].plot(self.sizes, self.error_rate, color=_GREEN, label="new samples")
            _rates(panels[1], self)
        for axes in panels:
            axes.set_xscale("log")
            axes.set_xlabel("training samples")
            axes.grid(color="#e4e4e4", linewidth=0.6)
            axes.legend(framealpha=0.7, edgecolor="none")
        return figure


def _errors(axes: Axes, curve: LearningCurve) -> None:
    low, high = (curve.test_error + s * curve.uncertainty for s in (-1, 1))
    axes.fill_between(curve.sizes, low.clamp_min(0), high, color=_BLUE, alpha=0.2, linewidth=0)
    axes.plot(curve.sizes, curve.test_error, color=_BLUE, label="new samples")
    axes.plot(curve.sizes, curve.bias, "--", color=_BLUE, label="of these, bias")
    axes.plot(curve.sizes, curve.train_error, color=_ORANGE, label="training samples")
    if curve.checks:
        sizes, values = [c.size for c in curve.checks], [c.measured for c in curve.checks]
        axes.plot(sizes, values, "o", color=_GRAY, label="measured")
    if bool((curve.train_error > 0).any()):
        axes.set_yscale("log", nonpositive="mask")
    axes.set_title(f"mean squared error, λ = {curve.ridge:g}")


def _rates(axes: Axes, curve: LearningCurve) -> None:
    measured = [(c.size, c.measured_rate) for c in curve.checks if c.measured_rate is not None]
    if measured:
        axes.plot(*zip(*measured, strict=True), "o", color=_GRAY, label="measured")
    axes.set_yscale("log", nonpositive="mask")
    axes.set_title("share of wrong classes")
