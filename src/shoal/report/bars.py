"""Horizontal bars with their values on them."""

from collections.abc import Sequence
from typing import NamedTuple

from shoal.pages.figures import Axes

__all__ = ["Bar", "draw_bars"]


class Bar(NamedTuple):
    """A bar: what it is, how long, what is written on it, and its color."""

    label: str
    value: float
    text: str
    color: str


def draw_bars(axes: Axes, bars: Sequence[Bar], end: float) -> None:
    """Draw bars from above to below; one that is longer than the axis is cut at its ``end``."""
    for place, bar in enumerate(bars):
        length = min(bar.value, end)
        inside = length > end / 3
        axes.barh(place, length, height=0.55, color=bar.color)
        axes.annotate(
            bar.text,
            (length, place),
            xytext=(-5 if inside else 4, 0),
            textcoords="offset points",
            ha="right" if inside else "left",
            va="center",
            color="white" if inside else "black",
            fontsize=9,
        )
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, end)
    axes.grid(visible=False)
