"""An analysis as a page."""

from collections.abc import Mapping

from shoal.pages.findings import Findings, Part
from shoal.pages.html import render_page
from shoal.report.section import Section, Subject
from shoal.report.verdict import verdict

__all__ = ["render"]


def render(
    subject: Subject,
    found: Mapping[Section, Findings],
    *,
    command: str | None = None,
    complete: bool = True,
) -> str:
    """An analysis as an HTML page: a verdict, what is fine and what is not, tables and plots.

    Args:
        subject: What was analyzed.
        found: The findings.
        command: What makes the page again, if it was made by a command.
        complete: Whether the analysis was finished.

    Returns:
        The text of the page.
    """
    x = subject.x
    dtype = str(x.dtype).removeprefix("torch.")
    return render_page(
        f"{subject.data.name}, {x.shape[0]} samples of dimension {x.shape[1]}",
        f"{subject.architecture}, {dtype}, {x.device}",
        [Part(section.name, section.title, findings) for section, findings in found.items()],
        device=x.device,
        command=command,
        complete=complete,
        notes=subject.data.notes,
        verdict=verdict(found),
    )
