"""The analysis of an architecture on data: its sections, one after the other, and its page."""

import math
from collections.abc import Iterator
from typing import Any

import shoal
from shoal.app.figures import Figure
from shoal.app.pages import Block, render_page
from shoal.app.sections import Findings, Section, Subject
from shoal.app.verdict import verdict
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.core.fields import plain
from shoal.core.figures import style
from shoal.core.files import finite, json_text

__all__ = ["Analysis", "document", "draw", "find", "lead", "render", "verdict"]

Analysis = dict[Section, Findings]

_COLUMNS = 4  # of the figure


def find(section: Section, subject: Subject) -> Findings:
    """The findings of a section; where it fails, its error instead."""
    try:
        findings = section.find(subject)
        json_text(finite(findings.numbers))  # one that cannot be written would spoil all
    except Exception as error:  # whatever it is, what is found before and after it is not lost
        return Findings(error=_reason(error))
    return findings


def _reason(error: Exception) -> str:
    """What an error says; one that the library does not raise itself, with its kind."""
    text = " ".join(str(error).split())
    expected = isinstance(error, ConvergenceError | AccuracyError | ValueError)
    return text if expected and text else f"{type(error).__name__}: {text}"


def lead(subject: Subject) -> Iterator[str]:
    """What was analyzed, in two lines."""
    dtype = str(subject.x.dtype).removeprefix("torch.")
    yield str(subject.architecture)
    samples, features = subject.x.shape
    yield f"{subject.data.name}, n = {samples}, p = {features}, {dtype}, {subject.x.device}"


def document(subject: Subject, found: Analysis) -> dict[str, Any]:
    """An analysis as plain values."""
    return {
        "shoal": shoal.__version__,
        "architecture": plain(subject.architecture),
        "data": {
            "name": subject.data.name,
            "samples": subject.x.shape[0],
            "features": subject.x.shape[1],
            "dtype": str(subject.x.dtype).removeprefix("torch."),
            "device": str(subject.x.device),
            "standardized": subject.data.standardized,
            "seed": subject.data.seed,
            "notes": list(subject.data.notes),
        },
        "verdict": list(told.sentences) if (told := verdict(found)) else [],
        "sections": {
            section.name: finite(findings.numbers)
            | ({"error": findings.error} if findings.error else {})
            for section, findings in found.items()
        },
        "warnings": {
            section.name: list(findings.warnings)
            for section, findings in found.items()
            if findings.warnings
        },
    }


def draw(subject: Subject, found: Analysis) -> Figure:
    """The figure: a panel for each section that has one."""
    panels = [(section, f.panel) for section, f in found.items() if f.panel is not None]
    with style():
        from matplotlib.figure import Figure

        columns = min(_COLUMNS, max(1, len(panels)))
        rows = max(1, math.ceil(len(panels) / columns))
        figure = Figure(figsize=(4.2 * columns, 3.2 * rows + 0.2))
        figure.suptitle("\n".join(lead(subject)), fontsize=10)
        places: Any = figure.subplots(rows, columns, squeeze=False)
        for axes, (section, panel) in zip(places.flat, panels, strict=False):
            panel(axes)
            axes.set_title(f"{section.title}{' (!)' if found[section].warnings else ''}")
        for axes in places.flat[len(panels) :]:
            axes.set_axis_off()
    return figure


def render(subject: Subject, found: Analysis, command: str) -> str:
    """An analysis as an HTML page: a verdict, what is fine and what is not, tables and plots."""
    samples, features = subject.x.shape
    return render_page(
        f"{subject.data.name}, {samples} samples of dimension {features}",
        ", ".join(lead(subject)),
        [Block(section.name, section.title, findings) for section, findings in found.items()],
        device=subject.x.device,
        command=command,
        notes=subject.data.notes,
        verdict=verdict(found),
    )
