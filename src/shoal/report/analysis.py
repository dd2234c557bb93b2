"""The analysis of an architecture on data: its sections, one after the other."""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import shoal
from shoal.core.checks import instance, items
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.core.fields import plain
from shoal.core.files import finite, json_text
from shoal.pages.figures import Figure, style
from shoal.pages.findings import Findings, Part
from shoal.pages.html import render_page
from shoal.pages.svg import inline_panel
from shoal.report.accuracy import ACCURACY
from shoal.report.certificate import CERTIFICATE
from shoal.report.designs import DESIGN
from shoal.report.equivalents import EQUIVALENTS
from shoal.report.images import IMAGES
from shoal.report.kernels import KERNELS
from shoal.report.prediction import PREDICTION
from shoal.report.saving import forget_parts, save_results
from shoal.report.section import Section, Subject
from shoal.report.spectra import SPECTRUM
from shoal.report.timing import TIMING
from shoal.report.training import TRAINING
from shoal.report.verdict import verdict
from shoal.report.well_posedness import WELL_POSEDNESS

_logger = logging.getLogger(__name__)

# What an analysis consists of: a new capability is a new section.
SECTIONS: tuple[Section, ...] = (
    WELL_POSEDNESS,
    KERNELS,
    EQUIVALENTS,
    SPECTRUM,
    DESIGN,
    TRAINING,
    ACCURACY,
    PREDICTION,
    IMAGES,
    CERTIFICATE,
    TIMING,
)

Analysis = dict[Section, Findings]

_COLUMNS = 4  # of the figure


def analyze(
    subject: Subject, sections: Sequence[Section] = SECTIONS
) -> Iterator[tuple[Section, Findings]]:
    """The findings section by section; where one fails, its error instead.

    Args:
        subject: What is analyzed.
        sections: What is looked at.
    """
    instance("subject", subject, Subject)
    for section in items("sections", sections):
        instance("sections", section, Section)
        _logger.info("section %s", section.name)
        try:
            findings = section.find(subject)
            json_text(finite(findings.numbers))  # one that cannot be written would spoil all
        except Exception as error:  # whatever it is, what is found before and after it is not lost
            _logger.debug("section %s", section.name, exc_info=True)
            findings = Findings(error=_reason(error))
        yield section, findings


def _reason(error: Exception) -> str:
    """What an error says; one that the library does not raise itself, with its kind."""
    text = " ".join(str(error).split())
    expected = isinstance(error, ConvergenceError | AccuracyError | ValueError)
    return text if expected and text else f"{type(error).__name__.strip('_')}: {text}"


def drawable(found: Analysis) -> Analysis:
    """Findings whose panels can be drawn; of others the rest is kept, and the error says why.

    Args:
        found: The findings.
    """
    return {section: _drawn(section, findings) for section, findings in found.items()}


def _drawn(section: Section, findings: Findings) -> Findings:
    if findings.panel is None:
        return findings
    try:
        inline_panel(findings.panel, section.name)
    except Exception as error:  # as in analyze: a plot must not take the numbers with it
        _logger.debug("panel of section %s", section.name, exc_info=True)
        reason = f"its figure cannot be drawn: {_reason(error)}"
        return replace(findings, panel=None, error=reason)
    return findings


def document(subject: Subject, found: Analysis, *, complete: bool = True) -> dict[str, Any]:
    """An analysis as plain values, marked if it is not complete."""
    return {
        "shoal": shoal.__version__,
        "complete": complete,
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


def draw(subject: Subject, found: Analysis, *, complete: bool = True) -> Figure:
    """The figure: a panel for each section that has one."""
    panels = [(section, f.panel) for section, f in found.items() if f.panel is not None]
    with style():
        from matplotlib.figure import Figure

        columns = min(_COLUMNS, max(1, len(panels)))
        rows = max(1, math.ceil(len(panels) / columns))
        figure = Figure(figsize=(4.2 * columns, 3.2 * rows + 0.2))
        figure.suptitle(
            f"{subject.architecture}\n{subject.data.name}, n = {subject.x.shape[0]}, "
            f"p = {subject.x.shape[1]}{'' if complete else ' (interrupted)'}",
            fontsize=10,
        )
        places: Any = figure.subplots(rows, columns, squeeze=False)
        for axes, (section, panel) in zip(places.flat, panels, strict=False):
            panel(axes)
            axes.set_title(f"{section.title}{' (!)' if found[section].warnings else ''}")
        for axes in places.flat[len(panels) :]:
            axes.set_axis_off()
    return figure


def render(
    subject: Subject,
    found: Analysis,
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


def save(
    subject: Subject,
    found: Analysis,
    folder: Path,
    *,
    complete: bool = True,
    command: str | None = None,
) -> list[Path]:
    """Write ``report.html``, ``analysis.json``, ``.png`` and ``.svg`` into a folder.

    What is not complete goes to ``partial.html`` and so on: it does not replace what is complete,
    and is removed by it.

    Args:
        subject: What was analyzed.
        found: The findings.
        folder: Where to; it is made if it is not there.
        complete: Whether the analysis was finished.
        command: What makes the report again, if it was made by a command.

    Returns:
        The files that were written.
    """
    figure = draw(subject, found, complete=complete)
    page, base = ("report.html", "analysis") if complete else ("partial.html", "partial")
    files = save_results(
        folder,
        pages={page: render(subject, found, command=command, complete=complete)},
        documents={f"{base}.json": document(subject, found, complete=complete)},
        figures={base: figure},
    )
    forget_parts(files)
    return files
