"""The analysis of an architecture on data: its sections, one after the other, and its page."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import shoal
from shoal.app import output as out
from shoal.app.kernel_sections import DESIGN, EQUIVALENTS, KERNELS, SPECTRUM, WELL_POSEDNESS
from shoal.app.network_sections import ACCURACY, CERTIFICATE, PREDICTION, TRAINING
from shoal.app.sections import Findings, Section, Subject
from shoal.core import checks
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.core.fields import plain
from shoal.core.figures import Figure, empty_figure, style
from shoal.core.files import finite, json_text
from shoal.diagnosis.words import Row

Analysis = dict[Section, Findings]

SECTIONS: tuple[Section, ...] = (
    *(WELL_POSEDNESS, KERNELS, EQUIVALENTS, SPECTRUM, DESIGN),
    *(TRAINING, ACCURACY, PREDICTION, CERTIFICATE),
)
_COLUMNS = 3  # of the figure
_SAME = 0.02  # share of explained variance that is not worth a loop
_DEVIATIONS = 2.0  # up to which a difference of accuracies is chance
_COMPARED = ("deq", "naive")  # the loop, and one layer with its activation


def find(section: Section, subject: Subject) -> Findings:
    """The findings of a section; where it fails, its error instead."""
    try:
        findings = section.find(subject)
        json_text(finite(findings.numbers))  # numbers that cannot be written would spoil all
    except Exception as error:  # the other sections are not lost
        text = " ".join(str(error).split())
        if text and isinstance(error, ConvergenceError | AccuracyError | ValueError):
            return Findings(error=text)
        return Findings(error=f"{type(error).__name__}: {text}")
    return findings


def lead(subject: Subject) -> Iterator[str]:
    """The architecture and the data, in two lines."""
    yield str(subject.architecture)
    samples, features = subject.x.shape
    dtype = str(subject.x.dtype).removeprefix("torch.")
    yield f"{subject.data.name}, n = {samples}, p = {features}, {dtype}, {subject.x.device}"


def document(subject: Subject, found: Analysis) -> dict[str, Any]:
    """An analysis as plain values."""
    return {
        "shoal": shoal.__version__,
        "architecture": plain(subject.architecture),
        "data": subject.data.document(),
        "verdict": list(verdict(found)),
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
    columns = min(_COLUMNS, max(1, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    with style():
        figure = empty_figure(4.2 * columns, 3.2 * rows + 0.2)
        figure.suptitle("\n".join(lead(subject)), fontsize=10)
        places: Any = figure.subplots(rows, columns, squeeze=False)
        for axes, (section, panel) in zip(places.flat, panels, strict=False):
            panel(axes)
            axes.set_title(f"{section.title}{' (!)' if found[section].warnings else ''}")
        for axes in places.flat[len(panels) :]:
            axes.set_axis_off()
    return figure


def render(subject: Subject, found: Analysis, command: str | None = None) -> str:
    """An analysis as an HTML page: the verdict, warnings, tables and plots."""
    samples, features = subject.x.shape
    return out.render_page(
        f"{subject.data.name}, {samples} samples of dimension {features}",
        ", ".join(lead(subject)),
        [(section.name, section.title, findings) for section, findings in found.items()],
        device=subject.x.device,
        command=command,
        notes=subject.data.notes,
        verdict=verdict(found),
    )


def chosen(only: str | None) -> tuple[Section, ...]:
    """The sections of ``--only``, in their order."""
    if only is None:
        return SECTIONS
    names = [name.strip() for name in only.split(",")]
    for name in names:
        checks.one_of("--only", name, [section.name for section in SECTIONS])
    return tuple(section for section in SECTIONS if section.name in names)


def show(subject: Subject, found: Analysis) -> None:
    """Print an analysis: a table, warnings and the verdict."""
    table = out.RowTable("\n".join([*lead(subject), *subject.data.notes]))
    for section, findings in found.items():
        count = len(findings.warnings)
        remark = f"! {count} warning{'s' if count > 1 else ''}, below" if count else ""
        failed = [Row("none", "", findings.error)] if findings.error else []
        table.add_part(section.title, [*findings.rows, *failed], remark)
    out.console().print(table)
    for section, findings in found.items():
        for warning in findings.warnings:
            out.say(f"! {section.title}: {warning}")
    out.say(" ".join(verdict(found)), "bold")


def verdict(found: Mapping[Section, Findings]) -> tuple[str, ...]:
    """Whether the DEQ converges, how well it predicts, and whether it needs its loop.

    Empty without sections that say anything about it.
    """
    numbers = {section.name: findings.numbers for section, findings in found.items()}
    converges, new, widths, designs = (
        numbers.get(name) or {} for name in ("well_posedness", "prediction", "accuracy", "design")
    )
    first = [*_converges(converges), *_predicts(new)]
    sentences = [f"The network {', and '.join(first)}."] if first else []
    sentences += [*_loop(widths, designs)][:1]
    return tuple(sentences)


def _converges(numbers: Mapping[str, Any]) -> Iterator[str]:
    if not numbers:
        return
    if numbers["contraction"]:
        yield "converges to one equilibrium for every input"
    elif numbers["kernel_guaranteed"]:
        yield "has a kernel, but no guarantee that it converges"
    else:
        yield "has no guarantee that it converges, nor that its kernel exists"


def _predicts(numbers: Mapping[str, Any]) -> Iterator[str]:
    if not numbers:
        return
    if numbers["classes"]:
        yield f"classifies {numbers['accuracy']:.1%} of new samples correctly"
    elif math.isfinite(numbers["loo"]):
        yield f"leaves {numbers['loo']:.2g} of the target's variance unexplained on new samples"


def _loop(widths: Mapping[str, Any], designs: Mapping[str, Any]) -> Iterator[str]:
    """Replacements of the loop, the simplest first."""
    scores = ""
    if widths:
        deq, layer = (float(widths["infinite"][name]) for name in _COMPARED)
        scores = f"with trained readouts a plain layer scores {layer:.1%}, the loop {deq:.1%}"
        chance = _SAME
        if widths["measure"] == "accuracy":
            tested = int(widths["tested"])
            spread = deq * (1 - deq) + layer * (1 - layer)
            chance = max(1 / tested, _DEVIATIONS * math.sqrt(spread / tested))
        if deq - layer <= chance:
            yield f"No evidence that the loop helps on this data: {scores}."
    made = designs.get("ntk_sphere")
    if made and made["feasible"]:
        gap = f"one hidden layer with a designed activation has its NTK, up to {made['gap']:.1g}"
        yield f"The loop can be replaced: {gap}, for inputs of one norm."
    if widths:
        yield f"The loop helps on this data: {scores}."
