"""Reports for people: one HTML file that needs nothing else."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from shoal.experiments.provenance import all_versions, hardware
from shoal.report.section import Findings, Section, Subject
from shoal.report.svg import inline_svg

__all__ = ["render", "require_jinja"]


def require_jinja() -> None:
    """Say what to install if there is nothing to fill templates with.

    Raises:
        ImportError: If Jinja2 is not installed.
    """
    if find_spec("jinja2") is None:
        raise ImportError("reports need Jinja2, which is not here: pip install 'shoal[plots]'")


def render(
    subject: Subject,
    found: Mapping[Section, Findings],
    *,
    command: str | None = None,
    complete: bool = True,
) -> str:
    """An analysis as an HTML page: tables, plots, the certificate as a checklist.

    The page refers to nothing outside of itself, and is light or dark as the reader's system.

    Args:
        subject: What was analyzed.
        found: The findings.
        command: What makes the page again, if it was made by a command.
        complete: Whether the analysis was finished.

    Returns:
        The text of the page.
    """
    require_jinja()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("shoal.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    machine = hardware(subject.x.device)
    return environment.get_template("analysis.html").render(
        architecture=str(subject.architecture),
        data=subject.data,
        dtype=str(subject.x.dtype).removeprefix("torch."),
        device=subject.x.device,
        sections=[_block(section, findings) for section, findings in found.items()],
        command=command,
        complete=complete,
        versions=all_versions(),
        machine=", ".join(str(value) for value in machine.values() if value),
    )


def _block(section: Section, findings: Findings) -> dict[str, Any]:
    """What the template shows of a section."""
    from markupsafe import Markup

    panel = findings.panel
    return {
        "name": section.name,
        "title": section.title,
        "rows": [row for row in findings.rows if row.holds is None],
        "checks": [row for row in findings.rows if row.holds is not None],
        "notes": findings.notes,
        "error": findings.error,
        # made here, from numbers and from text that matplotlib has escaped
        "plot": None if panel is None else Markup(inline_svg(panel, section.name)),
    }
