"""What a page shows of a diagnosis."""

from functools import partial

from shoal.diagnosis.plot import PANELS
from shoal.diagnosis.result import Diagnosis
from shoal.diagnosis.words import sections_of
from shoal.pages.findings import Findings, Part, Row

__all__ = ["diagnosis_parts"]


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
