"""A diagnosis as a page."""

from functools import partial

from shoal.diagnosis.plot import PANELS
from shoal.diagnosis.result import Diagnosis
from shoal.diagnosis.words import sections_of
from shoal.pages.findings import Findings, Part, Row
from shoal.pages.html import render_page

__all__ = ["diagnosis_page", "diagnosis_parts"]


def diagnosis_page(found: Diagnosis, *, command: str | None = None) -> str:
    """A diagnosis as an HTML page that refers to nothing outside of itself.

    Args:
        found: The diagnosis.
        command: What makes the page again.

    Raises:
        ImportError: If Jinja2 or matplotlib is not installed.
    """
    parts = diagnosis_parts(found)
    lead = f"{found.samples} samples, a state of size {found.size}: it {found.behavior}"
    device = found.iterations[0].state.device
    return render_page(f"Diagnosis of {found.model}", lead, parts, device=device, command=command)


def diagnosis_parts(found: Diagnosis) -> list[Part]:
    """What a page shows of a diagnosis, one part below the other."""
    parts = []
    for name, title, rows in sections_of(found):
        panel = PANELS.get(name)
        findings = Findings(
            tuple(Row(*row) for row in rows),
            panel=None if panel is None else partial(_draw, found, name),
        )
        parts.append(Part(name, title, findings))
    return parts


def _draw(found: Diagnosis, name: str, axes: object) -> None:
    PANELS[name][1](axes, found)  # type: ignore[arg-type]
