"""Empty figures, of a library that is imported when there is something to draw."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:  # names for annotations, so that nobody imports matplotlib before there is something to draw
    Axes = Figure = Any

__all__ = ["Axes", "Figure", "empty_figure", "require_matplotlib"]


def require_matplotlib() -> None:
    """Say what to install if there is nothing to draw with.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ImportError("figures need matplotlib, which is not here: pip install 'shoal[plots]'")


def empty_figure(width: float, height: float) -> Figure:
    """A figure of a size in inches, whose parts make room for each other.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib import figure

    return figure.Figure(figsize=(width, height), layout="constrained")
