"""Figures: their style, tables of panels, errors with the power laws that fit them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from experiments.statistics import power_law

# distinct also for the color-blind (Okabe and Ito)
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GRAY = "#6b6b6b"
STYLE = {
    **mpl.rcParamsDefault,
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "backend": "agg",
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}


def draw_panels(
    rows: Collection[Any], columns: Collection[Any], draw: Callable[[Axes, Any, Any], str],
    size: tuple[float, float], *, x: str = "", y: str = "", title: float = 11,
    legend: int | None = 0, **shared: Any,
) -> Figure:  # fmt: skip
    """A figure with a panel for each row and column, whose titles ``draw`` returns.

    ``x`` names the axes below the last row, ``y`` those left of the first column, ``title`` is the
    size of titles, and ``legend`` the row whose first panel supplies the legend below all panels.
    """
    figure = Figure(figsize=size)
    panels: Any = figure.subplots(len(rows), len(columns), squeeze=False, **shared)
    for line, row in zip(panels, rows, strict=True):
        for axes, column in zip(line, columns, strict=True):
            axes.set_title(draw(axes, row, column), fontsize=title)
        if y:
            line[0].set_ylabel(y)
    for axes in panels[-1] if x else ():
        axes.set_xlabel(x)
    if legend is not None:
        legend_outside(figure, panels[legend, 0])
    return figure


def new_row(width: float, height: float, count: int = 2, **shared: Any) -> tuple[Figure, Any]:
    """A figure of a size in inches, and the axes of its panels, which stand side by side."""
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(1, count, squeeze=False, **shared)[0]


def legend_outside(figure: Figure, axes: Axes, columns: int | None = None) -> None:
    """A legend of one panel, below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns or len(labels))


def logarithmic_axes(axes: Axes, ticks: Iterable[float], label: str = "") -> None:
    """Logarithmic axes, the horizontal one with a name and these ticks alone."""
    places = [int(place) for place in ticks]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(places, [str(place) for place in places])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(label)


def plain_numbers(axes: Axes) -> None:
    """Ticks of a logarithmic vertical axis at 1, 2 and 5, as numbers without exponents."""
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_lines(axes: Axes, x: Any, rows: Mapping[str, Any], line: str = "o-", **look: Any) -> None:
    """A line for each row of numbers, in a color of its own, with its label; ``x`` may be None."""
    for (label, values), color in zip(rows.items(), COLORS, strict=False):
        x = np.arange(len(values)) if x is None else x
        axes.plot(x, values, line, **{"color": color, "label": label, "markersize": 4} | look)


def draw_limit(axes: Axes, height: float, label: str | None = None, width: float = 1.2) -> None:
    """A dashed line at a bound."""
    axes.axhline(height, color=GRAY, linestyle="--", linewidth=width, label=label)


def draw_densities(
    axes: Axes, curves: Sequence[tuple[Any, dict[str, Any]]], logarithmic: bool = False
) -> float:
    """Densities of eigenvalues; returns the height of a single one in the widest bin."""
    every = np.concatenate([values for values, _ in curves])
    least, largest = float(every.min()), float(every.max())
    if logarithmic:
        edges: Any = np.geomspace(0.9 * max(least, 1e-4 * largest), 1.1 * largest, 60)
        axes.set_xscale("log")
    else:
        margin = 0.03 * (largest - least)
        edges = np.linspace(least - margin, largest + margin, 120)
    widths = np.diff(np.log(edges)) if logarithmic else np.diff(edges)
    for values, look in curves:
        axes.stairs(np.histogram(values, edges)[0] / (len(values) * widths), edges, **look)
    single = float(1 / (len(curves[0][0]) * widths.max()))
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5 * single)
    return single


def draw_limiting(axes: Axes, grid: Any, density: Any, isolated: Any, height: float) -> None:
    """A limiting density, and its isolated eigenvalues at a height."""
    density = np.where(density > 0, density, np.nan)
    axes.plot(grid, density, color="black", linewidth=1.2, label="limit")
    axes.plot(isolated, np.full(len(isolated), height), "kv", markersize=4, label="isolated")


def draw_laws(
    axes: Axes, curves: Mapping[str, tuple[Any, Any]], label: str, *, least: float = 0
) -> None:
    """Errors against sizes as dots, the power laws that fit them from a size on, and theory's."""
    for (name, (x, errors)), color in zip(curves.items(), cycle(COLORS), strict=False):
        law, levels = power_law(x[x >= least], errors[x >= least]), np.unique(x)
        axes.plot(x, errors, ".", color=color, alpha=0.4, markersize=5, markeredgewidth=0)
        look = {"color": color, "linewidth": 1.4, "label": f"{name}: slope {law.words()}"}
        axes.plot(levels, law(levels), **look)
    lowest = min(float((errors * np.sqrt(x)).min()) for x, errors in curves.values())
    ends = levels[[0, -1]]
    axes.plot(ends, 0.8 * lowest / np.sqrt(ends), "--", color=GRAY, lw=1.2, label="slope $-1/2$")
    logarithmic_axes(axes, levels, label)
    plain_numbers(axes)
    axes.margins(y=0.25)  # room for the legend
    axes.legend(loc="upper right", fontsize=8)
