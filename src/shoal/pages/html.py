"""Pages for people: one HTML file that needs nothing else."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from shoal.pages.findings import Part, Verdict
from shoal.pages.provenance import all_versions, hardware
from shoal.pages.svg import inline_figure, inline_panel

if TYPE_CHECKING:
    from jinja2 import Template


def require_jinja() -> None:
    """Say what to install if there is nothing to fill templates with.

    Raises:
        ImportError: If Jinja2 is not installed.
    """
    if find_spec("jinja2") is None:
        raise ImportError("reports need Jinja2, which is not here: pip install 'shoal[plots]'")


def template(package: str, name: str) -> "Template":
    """A template of a package, which may include those of ``shoal.pages``.

    Raises:
        ImportError: If Jinja2 is not installed.
    """
    require_jinja()
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("shoal.pages")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def render_page(
    title: str,
    lead: str,
    parts: Sequence[Part],
    *,
    device: torch.device,
    command: str | None = None,
    complete: bool = True,
    notes: Sequence[str] = (),
    verdict: Verdict | None = None,
) -> str:
    """An HTML page that refers to nothing outside of itself, light or dark as the reader's system.

    Args:
        title: What the page is about.
        lead: What there is to say of it in a line.
        parts: What is shown, one below the other; their names differ.
        device: Where it was computed; the page names the machine.
        command: What makes the page again, if it was made by a command.
        complete: Whether everything was finished.
        notes: What else there is to say of it before all else, in sentences.
        verdict: What it comes to, before all numbers.

    Returns:
        The text of the page.
    """
    return template("shoal.pages", "page.html").render(
        title=title,
        lead=lead,
        notes=notes,
        verdict=verdict,
        sections=[_block(part) for part in parts],
        command=command,
        complete=complete,
        versions=all_versions(),
        machine=", ".join(str(value) for value in hardware(device).values() if value),
    )


def _block(part: Part) -> dict[str, Any]:
    """What the template shows of a part."""
    from markupsafe import Markup

    name, title, findings = part
    panel, figure = findings.panel, findings.figure
    return vars(findings) | {
        "name": name,
        "title": title,
        "rows": [row for row in findings.rows if row.holds is None],
        "checks": [row for row in findings.rows if row.holds is not None],
        "troubles": [*filter(None, [findings.error]), *findings.warnings, *findings.lacking],
        # made here, from numbers and from text that matplotlib has escaped
        "plot": None if panel is None else Markup(inline_panel(panel, name)),
        "figure": None if figure is None else Markup(inline_figure(figure, f"{name}-figure")),
    }
