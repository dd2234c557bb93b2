"""Pictures of trainings."""

from typing import TYPE_CHECKING

import numpy as np

from shoal.core.figures import Axes, Figure, empty_figure

if TYPE_CHECKING:
    from shoal.training.result import Records

_COLORS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_BROKEN, _GRAY, _LIGHT = "#D55E00", "#444444", "#B8CDE0"
_MUCH = 100.0  # the ratio of values from which a logarithmic axis is taken
_PANELS = {
    "gain": "gain of the recurrent layer",
    "least_eigenvalue": "least eigenvalue of the Gram matrix",
    "drift": "drift of the Gram matrix",
    "pl_ratio": "‖∇Φ‖² / λ₀Φ",
}


def plot_records(run: "Records") -> Figure:
    """The loss with its bound, and a panel for each monitor."""
    names = [name for name in _PANELS if name in run.monitors]
    count = 1 + len(names) + bool(run.distances)
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = empty_figure(4.2 * columns, 3.2 * rows)
    from matplotlib.ticker import MaxNLocator

    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    _loss(panels[0], run)
    for axes, name in zip(panels[1:], names, strict=False):
        _series(axes, run, name)
    if run.distances:
        _distances(panels[1 + len(names)], run)
    for axes in panels[count:]:
        axes.set_axis_off()
    for axes in panels[:count]:
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color="#e4e4e4", linewidth=0.6)
    return figure


def _loss(axes: Axes, run: "Records") -> None:
    steps, batches = run.loss_steps, getattr(run, "batch_losses", None)  # none if none was found
    if batches is not None:
        axes.plot(range(len(batches)), batches, color=_LIGHT, linewidth=0.8, label="of batches")
    marker = "" if len(steps) > 20 else "."
    axes.plot(steps, run.losses, color=_COLORS[0], label="loss", marker=marker)
    if run.loss_bound is not None and len(steps) and run.loss_bound[-1] > 0:
        axes.plot(steps, run.loss_bound, "--", color=_GRAY, label="bound")
    _scale(axes, 1.0)
    _mark(axes, run, "loss")
    axes.set_title(run.title)
    axes.legend(framealpha=0.7, edgecolor="none")


def _series(axes: Axes, run: "Records", name: str) -> None:
    """A monitor, with its bound if that is promised."""
    axes.plot(run.monitor_steps, run.monitors[name], ".-", color=_COLORS[0], label="measured")
    if name in run.kept:
        axes.plot(run.monitor_steps, run.bounds[name], "--", color=_GRAY, label="bound")
    _scale(axes)
    _mark(axes, run, name)
    axes.set_title(_PANELS[name])
    axes.legend(framealpha=0.7, edgecolor="none")


def _distances(axes: Axes, run: "Records") -> None:
    """How far each group is from its start, below what a certificate allows."""
    for index, (name, values) in enumerate(run.distances.items()):
        color, limit = _COLORS[index % len(_COLORS)], run.bounds.get(f"distance.{name}")
        axes.plot(run.monitor_steps, values, ".-", color=color, label=name)
        if limit is not None:
            axes.plot(run.monitor_steps, limit, "--", color=color)
    _scale(axes)
    broken = [name for name in run.violations if name.startswith("distance.")]
    if broken:
        _mark(axes, run, min(broken, key=run.violations.__getitem__))
    bounded = any(name.startswith("distance.") for name in run.bounds)
    axes.set_title(f"distance from the start{', bound dashed' if bounded else ''}")
    axes.legend(framealpha=0.7, edgecolor="none")


def _mark(axes: Axes, run: "Records", name: str) -> None:
    """Show where a promise was broken."""
    if name in run.violations:
        axes.axvline(run.violations[name], color=_BROKEN, label="broken")


def _scale(axes: Axes, ratio: float = _MUCH) -> None:
    """A logarithmic axis where values differ by a factor; zeros, as at the start, are left out."""
    values = [float(v) for line in axes.get_lines() for v in np.asarray(line.get_ydata())]
    numbers = [v for v in values if 0 < v < float("inf")]
    if numbers and max(numbers) >= ratio * min(numbers):
        axes.set_yscale("log", nonpositive="mask")
