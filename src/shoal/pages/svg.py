"""Vector plots for pages: inline SVG whose colors follow the page, light or dark."""

import io
import re
from collections.abc import Callable

from shoal.pages.figures import COLORS, GRAY, Axes, Figure, style

_SIZE = (4.7, 3.4)  # small, so that its text is as large as the page's
_NATURAL, _LEGIBLE = 7.2, 3.6  # rem for an inch: text nearly as large as the page's, or readable

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


def inline_panel(draw: "Callable[[Axes], None]", prefix: str) -> str:
    """Draw a panel as an SVG element for an HTML page.

    Args:
        draw: Draws on the axes it is given.
        prefix: What all ids begin with, different for each plot of a page.
    """
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=_SIZE)
        draw(figure.subplots())
        return _inline(figure, prefix, f"max-width: {_rem(figure, _NATURAL)}")


def inline_figure(figure: Figure, prefix: str) -> str:
    """A figure as an SVG element for an HTML page, of readable size; a phone has to scroll it.

    Args:
        figure: The figure.
        prefix: What all ids begin with, different for each plot of a page.
    """
    least, most = _rem(figure, _LEGIBLE), _rem(figure, _NATURAL)
    return _inline(figure, prefix, f"min-width: {least}; max-width: {most}")


def _rem(figure: Figure, scale: float) -> str:
    return f"{figure.get_figwidth() * scale:.3g}rem"


def _inline(figure: Figure, prefix: str, size: str) -> str:
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]  # an element has no XML declaration
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'\s(?:xmlns(?::\w+)?|version|width|height)="[^"]*"', "", text, count=5)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = text.replace("xlink:href=", "href=").replace('href="#', f'href="#{prefix}-')
    text = text.replace("url(#", f"url(#{prefix}-")
    text = re.sub(r"#[0-9a-fA-F]{6}\b", _themed, text)
    head = f'<svg class="plot" role="img" fill="currentColor" style="{size}"'
    return text.replace("<svg", head, 1).strip()


def _themed(match: re.Match[str]) -> str:
    name = _THEME.get(match[0].lower())
    return match[0] if name is None else f"var({name})"
