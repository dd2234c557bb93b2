"""A diagnosis as a page."""

from functools import partial
from importlib import import_module

import torch

from shoal.diagnosis.plot import PANELS
from shoal.diagnosis.result import Diagnosis
from shoal.diagnosis.words import sections_of

__all__ = ["diagnosis_page"]


def diagnosis_page(found: Diagnosis, *, command: str | None = None) -> str:
    """A diagnosis as an HTML page that refers to nothing outside of itself.

    Args:
        found: The diagnosis.
        command: What makes the page again.

    Raises:
        ImportError: If Jinja2 or matplotlib is not installed.
    """
    # pages are an application, which stands on the library; it is asked for by name, when one is
    # wanted, and nothing of the library needs it
    page, section = (import_module(f"shoal.report.{name}") for name in ("page", "section"))
    parts = []
    for name, title, rows in sections_of(found):
        panel = PANELS.get(name)
        findings = section.Findings(
            tuple(section.Row(*row) for row in rows),
            panel=None if panel is None else partial(_draw, found, name),
        )
        parts.append(section.Part(name, title, findings))
    lead = f"{found.samples} samples, a state of size {found.size}: it {found.behavior}"
    text: str = page.render_page(
        f"Diagnosis of {found.model}", lead, parts, device=torch.device("cpu"), command=command
    )
    return text


def _draw(found: Diagnosis, name: str, axes: object) -> None:
    PANELS[name][1](axes, found)  # type: ignore[arg-type]
