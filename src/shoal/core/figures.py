"""Empty figures and their style; matplotlib is imported with the first of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:  # names for annotations
    Axes = Figure = Any

__all__ = ["COLORS", "GRAY", "Axes", "Figure", "empty_figure", "require_matplotlib", "style"]

# distinct also for the color-blind (Okabe and Ito)
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GRAY = "#6b6b6b"

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.constrained_layout.use": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "svg.hashsalt": "shoal",  # the same figure makes the same file
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}


def require_matplotlib() -> None:
    """Check that figures can be drawn.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ImportError(
            "figures need matplotlib, not installed here: pip install 'shoal-deq[plots]'"
        )


@contextmanager
def style() -> Iterator[None]:
    """A context in which figures are drawn and saved in shoal's style."""
    require_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        yield


def empty_figure(width: float, height: float) -> Figure:
    """An empty figure with a size in inches.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib import figure

    return figure.Figure(figsize=(width, height), layout="constrained")
