"""Pictures of learning curves."""

from typing import TYPE_CHECKING

from shoal.core.figures import Axes, Figure, empty_figure

if TYPE_CHECKING:
    from shoal.prediction.result import LearningCurve

__all__ = ["plot_curve"]

_BLUE, _ORANGE, _GREEN, _GRAY = "#0072B2", "#E69F00", "#009E73", "#444444"


def plot_curve(curve: "LearningCurve") -> Figure:
    """Errors, and error rates where there are classes."""
    count = 1 if curve.error_rate is None else 2
    figure = empty_figure(5.2 * count, 3.6)
    panels: list[Axes] = list(figure.subplots(1, count, squeeze=False).flat)
    _errors(panels[0], curve)
    if curve.error_rate is not None:
        panels[1].plot(curve.sizes, curve.error_rate, color=_GREEN, label="new samples")
        _rates(panels[1], curve)
    for axes in panels:
        axes.set_xscale("log")
        axes.set_xlabel("training samples")
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.legend(framealpha=0.7, edgecolor="none")
    return figure


def _errors(axes: Axes, curve: "LearningCurve") -> None:
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


def _rates(axes: Axes, curve: "LearningCurve") -> None:
    measured = [(c.size, c.measured_rate) for c in curve.checks if c.measured_rate is not None]
    if measured:
        axes.plot(*zip(*measured, strict=True), "o", color=_GRAY, label="measured")
    axes.set_yscale("log", nonpositive="mask")
    axes.set_title("share of wrong classes")
