"""Bars with their values on them, legends, and figures as bytes."""

import io
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shoal.core.figures import COLORS, GRAY, Axes, Figure, empty_figure, style

__all__ = ["COLORS", "GRAY", "Axes", "Bar", "Figure", "draw_bars", "image_of", "legend_below"]

_LABELS = 0.45  # inches that an axis has for its numbers and its name
_LONG = 40  # letters of a name that fills a line of a legend


def legend_below(axes: Axes) -> None:
    """A legend below the axes, where it covers nothing; layouts make room for it."""
    from matplotlib.transforms import ScaledTranslation

    names = axes.get_legend_handles_labels()[1]
    below = axes.transAxes + ScaledTranslation(0, -_LABELS, axes.figure.dpi_scale_trans)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=below,
        ncols=1 if max(map(len, names)) > _LONG else 2,
        fontsize=8,
        borderaxespad=0,
    )


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


def panel_figure(draw: Callable[[Axes], None]) -> Figure:
    """A figure of one panel, so small that its text is as large as that of a page."""
    with style():
        figure = empty_figure(4.7, 3.4)
        draw(figure.subplots())
    return figure


def image_of(figure: Figure, kind: str) -> bytes:
    """A figure as ``"png"`` or ``"svg"``; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with style():
        if kind == "svg":
            figure.savefig(buffer, format="svg", metadata={"Date": None})
        else:
            figure.savefig(buffer, format=kind, dpi=160)
    return buffer.getvalue()
