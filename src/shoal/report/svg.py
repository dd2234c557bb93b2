"""Vector plots for pages: inline SVG whose colors follow the page, light or dark."""

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.experiments.figures import COLORS, GRAY, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["inline_svg"]

_SIZE = (4.7, 3.2)  # small, so that its text is as large as the page's

# colors of figures, and the custom properties of the page that take their places
_THEME = {
    "#000000": "--ink",
    "#444444": "--ink",
    "#ffffff": "--on-series",
    "#e4e4e4": "--grid",
    "#e6f3ec": "--wash-good",
    "#fbe9e1": "--wash-bad",
    GRAY.lower(): "--muted",
    **{color.lower(): f"--series-{place}" for place, color in enumerate(COLORS)},
}


def inline_svg(draw: "Callable[[Axes], None]", prefix: str) -> str:
    """Draw a panel as an SVG element for an HTML page.

    Args:
        draw: Draws on the axes it is given.
        prefix: What all ids begin with, different for each plot of a page.
    """
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=_SIZE)
        draw(figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]  # an element has no XML declaration
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'\s(?:xmlns(?::\w+)?|version|width|height)="[^"]*"', "", text, count=5)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = text.replace('xlink:href="#', f'href="#{prefix}-').replace("url(#", f"url(#{prefix}-")
    text = re.sub(r"#[0-9a-fA-F]{6}\b", _themed, text)
    return text.replace("<svg", '<svg class="plot" role="img" fill="currentColor"', 1).strip()


def _themed(match: re.Match[str]) -> str:
    name = _THEME.get(match[0].lower())
    return match[0] if name is None else f"var({name})"
