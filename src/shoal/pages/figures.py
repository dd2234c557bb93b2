"""How figures look, bars with their values on them, and how figures are saved."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

from shoal.core.figures import Axes, Figure, require_matplotlib
from shoal.core.files import write_together

__all__ = [
    "COLORS",
    "GRAY",
    "Axes",
    "Bar",
    "Figure",
    "draw_bars",
    "figure_writers",
    "legend_below",
    "new_figure",
    "require_matplotlib",
    "save_figure",
    "style",
    "styled",
]

_Options = ParamSpec("_Options")

# distinct also for the color-blind (Okabe and Ito)
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GRAY = "#6b6b6b"

_LABELS = 0.45  # inches that an axis has for its numbers and its name
_LONG = 40  # letters of a name that fills a line of a legend
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "svg.hashsalt": "shoal",  # the same figure makes the same file
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}


@contextmanager
def style() -> Iterator[None]:
    """The style of shoal's figures, for what is drawn inside."""
    require_matplotlib()
    import matplotlib as mpl

    whole: dict[Any, Any] = {**mpl.rcParamsDefault, **_STYLE}
    with mpl.rc_context({**whole, "backend": mpl.rcParams["backend"]}):
        yield


def styled(draw: Callable[_Options, Figure]) -> Callable[_Options, Figure]:
    """Let a function draw in the style of shoal's figures; a decorator."""

    @wraps(draw)
    def drawn(*args: _Options.args, **options: _Options.kwargs) -> Figure:
        with style():
            return draw(*args, **options)

    return drawn


def legend_below(axes: Axes) -> None:
    """A legend below the axes, where it covers nothing; layouts make room for it."""
    from matplotlib.transforms import ScaledTranslation

    names = axes.get_legend_handles_labels()[1]
    columns = 1 if max(map(len, names)) > _LONG else 2
    below = axes.transAxes + ScaledTranslation(0, -_LABELS, axes.figure.dpi_scale_trans)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=below,
        ncols=columns,
        fontsize=8,
        borderaxespad=0,
    )


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches."""
    from matplotlib import figure

    return figure.Figure(figsize=(width, height))


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Save a figure as PNG and SVG, under the name ``path`` with these endings."""
    return write_together(path.parent, figure_writers(figure, path.name))


def figure_writers(figure: Figure, name: str) -> dict[str, Callable[[Path], None]]:
    """What writes a figure as ``name.png`` and ``name.svg``, for ``write_together``."""

    def png(path: Path) -> None:
        with style():
            figure.savefig(path, format="png", dpi=160)

    def svg(path: Path) -> None:
        with style():
            figure.savefig(path, format="svg", metadata={"Date": None})

    return {f"{name}.png": png, f"{name}.svg": svg}


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
