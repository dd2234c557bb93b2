"""The analysis of an architecture on data: its sections, one after the other, and its page."""

import math
from typing import Any

import shoal
from shoal.app import output as out
from shoal.app.answer_sections import COLUMNS, COMPARISON, ERRORS, MORE_DATA
from shoal.app.answer_sections import verdict as verdict_of
from shoal.app.sections import Findings, ReportSection, Subject
from shoal.app.theory_sections import EQUIVALENTS, KERNELS, SPECTRUM, WELL_POSEDNESS
from shoal.core import checks
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.core.figures import Figure, empty_figure, style
from shoal.core.files import finite, json_text, plain
from shoal.core.words import Row

Analysis = dict[ReportSection, Findings]

SECTIONS: tuple[ReportSection, ...] = (
    *(COMPARISON, ERRORS, COLUMNS, MORE_DATA),
    *(WELL_POSEDNESS, KERNELS, EQUIVALENTS, SPECTRUM),
)
CRITERION = (
    "✓: the section passed the check that it states. ✗: it failed, and nothing else of it is shown."
)
_COLUMNS = 3  # of the figure


def find(section: ReportSection, subject: Subject) -> Findings:
    """The findings of a section; where it fails, its error instead."""
    try:
        findings = section.find(subject)
        json_text(finite(findings.numbers))  # fails here for numbers that JSON lacks
    except Exception as error:  # the other sections go on
        text = " ".join(str(error).split())
        if text and isinstance(error, ConvergenceError | AccuracyError | ValueError):
            return Findings(error=text)
        return Findings(error=f"{type(error).__name__}: {text}")
    return findings


def lead(subject: Subject) -> list[str]:
    """The data, the network, and every decision."""
    samples, features = subject.x.shape
    dtype = str(subject.x.dtype).removeprefix("torch.")
    chosen = " (chosen by leave-one-out)" if subject.chosen else ""
    return [
        f"{subject.data.name}, {samples} samples, {features} features, {dtype}, {subject.x.device}",
        *subject.data.notes,
        f"Network{chosen}: {subject.deq}",
    ]


def document(subject: Subject, analysis: Analysis) -> dict[str, Any]:
    """An analysis as plain values."""
    return {
        "shoal": shoal.__version__,
        "architecture": plain(subject.deq),
        "data": subject.data.document(),
        "verdict": verdict(subject, analysis),
        "sections": {
            section.name: finite(findings.numbers)
            | ({"error": findings.error} if findings.error else {})
            | ({"check": findings.check, "holds": findings.holds} if findings.check else {})
            for section, findings in analysis.items()
        },
    }


def draw(subject: Subject, analysis: Analysis) -> Figure:
    """The figure: a panel for each section that has one."""
    panels = [(section, f.panel) for section, f in analysis.items() if f.panel is not None]
    columns = min(_COLUMNS, max(1, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    with style():
        figure = empty_figure(4.2 * columns, 3.2 * rows + 0.2)
        figure.suptitle(lead(subject)[0], fontsize=10)
        places: Any = figure.subplots(rows, columns, squeeze=False)
        for axes, (section, panel) in zip(places.flat, panels, strict=False):
            panel(axes)
            axes.set_title(section.title)
        for axes in places.flat[len(panels) :]:
            axes.set_axis_off()
    return figure


def render(subject: Subject, analysis: Analysis, command: str | None = None) -> str:
    """An analysis as an HTML page: the verdict, tables and plots, theory below."""
    first, *notes = lead(subject)
    return out.render_page(
        subject.data.name,
        first,
        [(section.name, section.title, findings) for section, findings in analysis.items()],
        device=subject.x.device,
        command=command,
        notes=notes,
        verdict=verdict(subject, analysis),
        criterion=CRITERION,
        theory=[section.name for section in analysis if section.theory],
    )


def chosen(only: str | None, *, theory: bool) -> tuple[ReportSection, ...]:
    """The sections of ``--only``, in their order; by default the answers, perhaps with theory."""
    if only is None:
        return tuple(section for section in SECTIONS if theory or not section.theory)
    names = [name.strip() for name in only.split(",")]
    for name in names:
        checks.one_of("--only", name, [section.name for section in SECTIONS])
    return tuple(section for section in SECTIONS if section.name in names)


def show(subject: Subject, analysis: Analysis) -> None:
    """Print an analysis: its data and decisions, the sections, and the verdict."""
    table = out.RowTable("\n".join(lead(subject)))
    for section, findings in analysis.items():
        failed = [Row("none", "", findings.error)] if findings.error else []
        if findings.holds is False:
            failed.append(Row("nothing to rely on", "check failed", findings.check))
        mark = {None: "", True: " ✓", False: " ✗"}[findings.holds]
        table.add_part(f"{section.title}{mark}", [*findings.rows, *failed])
    out.console().print(table)
    if any(findings.check for findings in analysis.values()):
        out.say(CRITERION)
    if text := verdict(subject, analysis):
        out.say(text, "bold")


def verdict(subject: Subject, analysis: Analysis) -> str:
    """The answer of the comparison; empty without one."""
    compared = COMPARISON in analysis and "contest" in vars(subject)
    return verdict_of(subject.contest) if compared else ""
