"""``shoal analyze``: an architecture on data, in one table and one report."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import shoal
from shoal.activations.names import parse_activation
from shoal.cli.command import Command, Example
from shoal.cli.errors import FAILED, INTERRUPTED, note
from shoal.cli.logs import state
from shoal.cli.model_files import model_in
from shoal.cli.options import Dtype, check_output, left_out
from shoal.cli.output import (
    add_rows,
    command_line,
    console,
    emit,
    meaning_table,
    progress,
    tell_files,
)
from shoal.cli.trained_model import analyze_model
from shoal.core import checks
from shoal.core.processes import Processes, alone, first_launched, processes
from shoal.core.threads import limited_threads
from shoal.data import load_data
from shoal.data.loading import sources
from shoal.pages.provenance import resolve_device
from shoal.report import SECTIONS, Findings, Section, Subject, document, save
from shoal.report import analyze as sections_of
from shoal.report.analysis import drawable
from shoal.report.verdict import verdict

_NAMES = ", ".join(section.name for section in SECTIONS)
_OF_A_DEQ = (
    "activation recurrent_variance input_variance standardize only skip dtype device"  # options
)


@Command(
    "A DEQ on data: kernels, spectrum, designs, training, certificate.",
    place=1,
    shared=True,
    writes="report.html (the page for people), analysis.json, analysis.png and .svg; "
    "of a trained model diagnosis.png and replacements.png, and .svg",
    exits="1 failed, or a section has no result; 2 bad input; 3 of some samples a "
    "trained model has no equilibrium that was found",
    examples=(
        Example("the default: handwritten digits, tanh", "shoal analyze"),
        Example("with report.html, figure and numbers", "shoal analyze --output analysis"),
        Example(
            "a CSV file whose classes are in the column 'kind'",
            "shoal analyze flowers.csv --label kind --activation relu --output flowers",
        ),
        Example(
            "your trained model on data that it has not seen: do I need this DEQ?",
            "shoal analyze x.npy --label y.npy --model weights.pt --code net.py:Model",
        ),
        Example(
            "two sections, for machines",
            "shoal analyze x.npy -n 500 --only kernels,spectrum --json",
        ),
    ),
    takes_data=True,
    panels={
        "Trained model": "model code trust reference",
        "Data": "label n seed standardize",
        "Network": "activation recurrent_variance input_variance",
        "Sections": "only skip",
    },
)
def analyze(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help=f"{sources()}; see below.")
    ] = "digits",
    /,
    label: str | None = None,
    model: Path | None = None,
    code: str | None = None,
    trust: bool = False,
    reference: Path | None = None,
    activation: str = "tanh",
    recurrent_variance: float = 0.2,
    input_variance: float = 0.8,
    n: int | None = None,
    seed: int | None = None,
    standardize: bool | None = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTIONS",
            help=f"These sections, separated by commas: {_NAMES}; by default all.",
        ),
    ] = None,
    skip: list[str] | None = None,
    dtype: Dtype = Dtype.float64,
    device: str = "auto",
    threads: int = 1,
    output: Path | None = None,
) -> None:
    """Analyze a DEQ on data: kernels, spectrum, shallow designs, training, certificate.

    The DEQ is f(x) = a·z, where z = φ(σ_a A z + σ_b B x)/√m has m units. Inputs are centered
    and scaled to a mean squared norm of one; columns of a file on very different scales are
    standardized before. What the data contradict is listed after the table. Without DATA,
    handwritten digits are taken. It takes a minute; after Ctrl-C the finished sections are kept
    as partial.html. Under torchrun, processes share the sections.

    With --model it is about a trained model instead, on data as they are, without centering: does
    it settle, how deep is it, and what could replace it. No code is run of FILE, unless --trust
    says so.

    Options:
        model (FILE): A trained model instead of an architecture: a network of shoal.save, or
            weights.
        code (PATH.py:FACTORY): What makes the model whose weights are in FILE. Runs PATH.py.
        n: How many samples, of each class its share; by default at most 1000.
        seed: Draws samples, where not all are taken; by default 0 for files, and of named data
            the first samples are taken.
        skip (SECTIONS): All sections but these; not with --only.
        dtype: Of inputs and kernels.
    """
    sections = _chosen(only, skip)
    check_output(output)
    if model is not None:
        left_out(_OF_A_DEQ, "with --model")
        if first_launched():
            with alone():
                net = model_in(model, code, trust=trust, argument="--model", option="--code")
                analyze_model(
                    net, model, data, reference=reference, label=label, n=n, seed=seed or 0,
                    threads=threads, output=output,
                )  # fmt: skip
        return
    left_out("code trust reference", "without --model")
    deq = architecture_of(activation, recurrent_variance, input_variance)
    place = resolve_device(device)
    if seed is not None:
        checks.integer("--seed", seed, at_least=0)
    shared = processes()
    with shared.together():
        inputs = load_data(
            data, label=label, n=n, dtype=dtype.torch, device=place, most=1000, seed=seed,
            standardize=standardize,
        )  # fmt: skip
    subject = Subject(deq, inputs)
    with limited_threads(threads):
        found, interrupted = _find(subject, sections, shared)
    if not shared.first:
        raise typer.Exit(INTERRUPTED if interrupted else 0)
    if found and not state.json:
        _show(subject, found)
    _finish(subject, found, output, len(sections) - len(found) if interrupted else None)


def _finish(
    subject: Subject, found: dict[Section, Findings], output: Path | None, missing: int | None
) -> None:
    """Write and print what was found; what was not found makes the command fail.

    After Ctrl-C, when a number of sections is missing, it is marked as a part.
    """
    files: list[Path] = []
    complete = missing is None
    if found and output is not None:
        found = drawable(found)
        files = save(subject, found, output, complete=complete, command=command_line())
    if found and state.json:
        emit(document(subject, found, complete=complete))
    if missing is not None:
        kept = f"kept in {', '.join(map(str, files))}" if files else "nothing is written"
        note(
            f"Interrupted: {len(found)} of {len(found) + missing} sections are finished, {kept}. "
            "Run the command again; it starts over."
        )
        raise typer.Exit(INTERRUPTED)
    if not state.json:
        tell_files(files, "--output FOLDER saves the report, the figure and the numbers.")
    errors: dict[str, list[str]] = {}  # sections may fail for one reason, which is told once
    for section, findings in found.items():
        if findings.error:
            errors.setdefault(findings.error, []).append(section.title)
    for error, titles in errors.items():
        note(f"Error: {', '.join(titles)}: {error}")
    if errors:
        raise typer.Exit(FAILED)


def architecture_of(activation: str, recurrent_variance: float, input_variance: float) -> shoal.DEQ:
    """The DEQ that the options say."""
    phi = parse_activation(activation, argument="--activation")
    if phi.lipschitz == 0:
        raise ValueError(f"--activation must not be constant, got {activation!r}")
    return shoal.DEQ(
        phi,
        checks.real("--recurrent-variance", recurrent_variance, at_least=0),
        checks.real("--input-variance", input_variance, above=0),
    )


def _chosen(only: list[str] | None, skip: list[str] | None) -> tuple[Section, ...]:
    """The sections that the options leave."""
    if only and skip:
        both = f"{','.join(only)!r} and {','.join(skip)!r}"
        raise ValueError(f"--only and --skip must not both be given, got {both}")
    known = {section.name: section for section in SECTIONS}
    option, given = ("--only", only) if only else ("--skip", skip or [])
    named = [name.strip() for text in given for name in text.split(",")]
    for name in named:
        checks.one_of(option, name, known)
    chosen = tuple(s for s in SECTIONS if (s.name in named) == bool(only))
    if not chosen:
        raise ValueError(f"{option} must leave a section, got {','.join(given)!r}")
    return chosen


def _find(
    subject: Subject, sections: tuple[Section, ...], shared: Processes
) -> tuple[dict[Section, Findings], bool]:
    """The findings, and whether they are not all because of Ctrl-C."""
    found: dict[Section, Findings] = {}
    try:
        with shared.together(), progress(silent=not shared.first) as bar:
            task = bar.add_task("", total=len(sections))
            for section in shared.dealt(sections):
                bar.update(task, description=section.title)
                with alone():
                    found |= dict(sections_of(subject, [section]))
                bar.advance(task)
            parts = shared.collected({section.name: f for section, f in found.items()})
    except KeyboardInterrupt:
        return found, True
    every = {name: findings for part in parts for name, findings in part.items()}
    return {section: every[section.name] for section in sections}, False


def _show(subject: Subject, found: dict[Section, Findings]) -> None:
    x = subject.x
    dtype = str(x.dtype).removeprefix("torch.")
    head = [
        str(subject.architecture),
        f"{subject.data.name}, n = {x.shape[0]}, p = {x.shape[1]}, {dtype}, {x.device}",
        *subject.data.notes,
    ]
    table = meaning_table("\n".join(head))
    reasons: set[str] = set()
    for section, findings in found.items():
        table.add_section()
        count = len(findings.warnings)
        told = f"! {count} warning{'s' if count > 1 else ''}, below" if count else ""
        table.add_row(Text(section.title, "bold"), Text(told, "yellow"), "")
        add_rows(table, findings.rows)
        if findings.error:
            again = findings.error in reasons
            reason = "for the same reason" if again else findings.error
            table.add_row(Text("  none", "red"), "", reason)
            reasons.add(findings.error)
    console().print(table)
    for section, findings in found.items():
        for warning in findings.warnings:
            words = Text.assemble(("! ", "yellow"), f"{section.title}: {warning}")
            console().print(words, soft_wrap=True)
    if summary := verdict(found):
        console().print(Text(" ".join(summary.sentences), "bold"), soft_wrap=True)
