"""Pictures of trainings."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from shoal.training.result import TrainingRun

__all__ = ["plot_run"]

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_PANELS = {
    "gain": "gain of the recurrent layer",
    "least_eigenvalue": "least eigenvalue of the Gram matrix",
    "drift": "drift of the Gram matrix",
    "pl_ratio": "‖∇Φ‖² / λ₀Φ",
}


def plot_run(run: "TrainingRun") -> "Figure":
    """The loss with its bound, and a panel for each monitor."""
    if find_spec("matplotlib") is None:
        raise ImportError("plot needs matplotlib, which is not here: pip install 'shoal[plots]'")
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    names = [name for name in _PANELS if name in run.monitors]
    count = 1 + len(names) + bool(run.distances)
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows), layout="constrained")
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


def _loss(axes: "Axes", run: "TrainingRun") -> None:
    steps = range(run.steps + 1)
    axes.semilogy(
        steps, run.losses, color=_COLORS[0], label="loss", marker="" if run.steps else "."
    )
    if run.loss_bound is not None:
        axes.semilogy(steps, run.loss_bound, "--", color="#444444", label="bound")
    axes.set_title(f"loss, {run.status}")
    axes.legend(frameon=False)


def _series(axes: "Axes", run: "TrainingRun", name: str) -> None:
    values, bound = run.monitors[name], run.bounds[name]
    axes.plot(run.monitor_steps, values, ".-", color=_COLORS[0])
    axes.plot(run.monitor_steps, bound, "--", color="#444444", label="bound")
    if name in run.violations:
        axes.axvline(run.violations[name], color=_COLORS[1], label="broken")
    if _spread(values, bound) > 100:
        axes.set_yscale("log")
    axes.set_title(_PANELS[name])
    axes.legend(frameon=False)


def _spread(values: Tensor, bound: Tensor) -> float:
    """The ratio of the largest to the least of numbers, as far as they are positive."""
    numbers = [v for v in (*values.tolist(), *bound.tolist()) if 0 < v < float("inf")]
    return max(numbers) / min(numbers) if numbers else 1.0


def _distances(axes: "Axes", run: "TrainingRun") -> None:
    for index, (name, values) in enumerate(run.distances.items()):
        color = _COLORS[index % len(_COLORS)]
        axes.plot(run.monitor_steps, values, ".-", color=color, label=name)
    axes.set_title("distance from the start")
    axes.legend(frameon=False)
