"""Pictures of distillations."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from shoal.distillation.measures import Measured
from shoal.distillation.result import Twin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_frontier"]

_COLORS = ("#0072B2", "#D55E00", "#6b6b6b")


def plot_frontier(twin: Twin) -> "Figure":
    """Score against time: what is up and to the left is better."""
    if find_spec("matplotlib") is None:
        raise ImportError("plot needs matplotlib, which is not here: pip install 'shoal[plots]'")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    axes = figure.subplots()
    best = twin.best
    for one in (twin.original, *twin.candidates):
        color = _COLORS[1] if one is twin.original else _COLORS[0]
        marker = "*" if one is best else "o"
        size = 12 if one is best else 6
        axes.plot(1e3 * one.seconds, _score(one), marker, color=color, markersize=size)
        axes.annotate(
            one.name,
            (1e3 * one.seconds, _score(one)),
            xytext=(6, 3),
            textcoords="offset points",
            fontsize=8,
        )
    allowed = _score(twin.original) - 100 * twin.tolerance
    axes.axhline(allowed, color=_COLORS[2], linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.margins(x=0.2)
    words = "accuracy" if twin.original.scores.accuracy is not None else "agreement"
    axes.set(xlabel=f"ms for {twin.original.batch} samples", ylabel=f"{words}, %")
    axes.set_title("Dashed: what may be lost. Star: the replacement", loc="left", fontsize=10)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure


def _score(one: Measured) -> float:
    scores = one.scores
    return 100 * (1 - one.loss if scores.accuracy is None else scores.accuracy)
