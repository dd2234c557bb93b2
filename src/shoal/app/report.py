"""The analysis of an architecture on data: its sections, one after the other, and its page."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import shoal
from shoal.app.figures import Figure
from shoal.app.pages import Block, render_page
from shoal.app.sections import Findings, Section, Subject
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.core.fields import plain
from shoal.core.figures import style
from shoal.core.files import finite, json_text

Analysis = dict[Section, Findings]

_COLUMNS = 3  # of the figure
_SAME = 0.02  # of the explained variance: a difference that is not worth a loop
_DEVIATIONS = 2.0  # up to which a difference of accuracies is chance
_PAIR = ("deq", "naive")  # what is compared: the loop, and one layer with its activation


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


def verdict(found: Mapping[Section, Findings]) -> tuple[str, ...]:
    """Whether the DEQ settles, how well it predicts, and whether it needs its loop.

    Empty without sections that say anything of it.
    """
    of = {section.name: findings.numbers for section, findings in found.items()}
    settled, new, widths, designs = (
        of.get(name) or {} for name in ("well_posedness", "prediction", "accuracy", "design")
    )
    first = [*_settles(settled), *_predicts(new)]
    sentences = [f"The network {', and '.join(first)}."] if first else []
    sentences += [*_loop(widths, designs)][:1]
    return tuple(sentences)


def _settles(numbers: Mapping[str, Any]) -> Iterator[str]:
    if not numbers:
        return
    if numbers["contraction"]:
        yield "settles to one equilibrium for every input"
    elif numbers["kernel_guaranteed"]:
        yield "has a kernel, but no guarantee that it settles"
    else:
        yield "has no guarantee that it settles, nor that its kernel exists"


def _predicts(numbers: Mapping[str, Any]) -> Iterator[str]:
    if not numbers:
        return
    if numbers["classes"]:
        yield f"gets {numbers['accuracy']:.1%} of new samples right"
    elif math.isfinite(numbers["loo"]):
        yield f"misses {numbers['loo']:.2g} of the target's variance on new samples"


def _chance(widths: Mapping[str, Any]) -> float:
    """How much two scores may differ without a reason."""
    if widths["measure"] != "accuracy":
        return _SAME
    scores, tested = [float(widths["infinite"][name]) for name in _PAIR], int(widths["tested"])
    spread = sum(score * (1 - score) for score in scores)
    return max(1 / tested, _DEVIATIONS * math.sqrt(spread / tested))


def _loop(widths: Mapping[str, Any], designs: Mapping[str, Any]) -> Iterator[str]:
    """What to use instead of the loop, the simplest first."""
    if widths:
        deq, plain = (widths["infinite"][name] for name in _PAIR)
        scores = f"with trained readouts a plain layer scores {plain:.1%}, the loop {deq:.1%}"
        if deq - plain <= _chance(widths):
            yield f"Nothing shows that these data need its loop: {scores}."
    gap = _gap(designs)
    if gap is not None:
        layer = f"one hidden layer with a designed activation has its NTK, up to {gap:.1g}"
        yield f"The loop can be replaced: {layer}, for inputs of one norm."
    if widths:
        yield f"These data gain by its loop: {scores}."


def _gap(designs: Mapping[str, Any]) -> float | None:
    """How far the NTK of the design for the sphere is off, if there is one."""
    made = designs.get("ntk_sphere")
    return float(made["gap"]) if made and made["feasible"] else None
