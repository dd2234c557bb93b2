"""``shoal analyze``: an architecture on data, in one table and one report."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import shoal
from shoal.activations.names import parse_activation
from shoal.cli.command import Example, command
from shoal.cli.errors import FAILED, INTERRUPTED, note
from shoal.cli.options import (
    Activation,
    Debug,
    Device,
    Dtype,
    InputVariance,
    Json,
    Label,
    RecurrentVariance,
    Reference,
    Save,
    Standardize,
    Threads,
    Trust,
    Verbose,
    check_count,
    check_output,
    limited,
)
from shoal.cli.output import command_line, console, emit, progress
from shoal.cli.tables import add_rows, meaning_table, tell_files
from shoal.cli.trained_model import TrainedModel, analyze_model
from shoal.core import checks
from shoal.core.processes import Processes, alone, first_launched, processes
from shoal.data import load_data
from shoal.data.loading import sources
from shoal.pages.provenance import resolve_device
from shoal.report import SECTIONS, Findings, Section, Subject, document, save
from shoal.report import analyze as sections_of
from shoal.report.analysis import drawable
from shoal.report.verdict import verdict

__all__ = ["analyze", "architecture_of"]

_NAMES = ", ".join(section.name for section in SECTIONS)


@command(
    "A DEQ on data: kernels, spectrum, designs, training, certificate.",
    place=1,
    shared=True,
    writes="report.html (the page for people), analysis.json, analysis.png and .svg;\n"
    "  of a trained model diagnosis.png and replacements.png, and .svg",
    exits="1 failed, or a section has no result; 2 bad input; 3 of some samples a\n"
    "  trained model has no equilibrium that was found",
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
        str,
        typer.Argument(
            metavar="DATA",
            help=f"{sources()}; see below.",
        ),
    ] = "digits",
    label: Label = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A trained model instead of an architecture: a network of shoal.save, or weights.",
        ),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(
            metavar="PATH.py:FACTORY",
            help="What makes the model whose weights are in FILE. Runs PATH.py.",
        ),
    ] = None,
    trust: Trust = False,
    reference: Reference = None,
    activation: Activation = "tanh",
    recurrent_variance: RecurrentVariance = 0.2,
    input_variance: InputVariance = 0.8,
    n: Annotated[
        int | None,
        typer.Option(
            "--n",
            "-n",
            help="How many samples, of each class its share.",
            show_default="at most 1000",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Draws samples, where not all are taken.",
            show_default="0 for files; the first samples of named data",
        ),
    ] = None,
    standardize: Standardize = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTIONS",
            help=f"These sections, separated by commas: {_NAMES}.",
            show_default="all",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="SECTIONS", help="All sections but these; not with --only."),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of inputs and kernels.")] = Dtype.float64,
    device: Device = "auto",
    threads: Threads = 1,
    output: Save = None,
    json: Json = False,
    verbose: Verbose = 0,  # noqa: ARG001
    debug: Debug = False,  # noqa: ARG001
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
    """
    sections = _chosen(only, skip)
    check_count("--threads", threads)
    check_output(output)
    if model is not None:
        for option, given, default in (
            ("--activation", activation, "tanh"),
            ("--recurrent-variance", recurrent_variance, 0.2),
            ("--input-variance", input_variance, 0.8),
            ("--standardize", standardize, None),
            ("--only", only, None),
            ("--skip", skip, None),
            ("--dtype", dtype, Dtype.float64),
            ("--device", device, "auto"),
        ):
            if given != default:
                raise ValueError(f"{option} must be left out with --model")
        if first_launched():
            with alone():
                analyze_model(
                    TrainedModel(model, code, trust, reference), data,
                    label=label, n=n, seed=seed or 0, threads=threads, output=output, json=json,
                )  # fmt: skip
        return
    for option, value in (("--code", code), ("--trust", trust), ("--reference", reference)):
        if value:
            raise ValueError(f"{option} must be left out without --model, got {str(value)!r}")
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
    with limited(threads):
        found, interrupted = _find(subject, sections, shared, quiet=json)
    if not shared.first:
        raise typer.Exit(INTERRUPTED if interrupted else 0)
    if found and not json:
        _show(subject, found)
    if interrupted:
        _keep(subject, found, output, json=json, total=len(sections))
        raise typer.Exit(INTERRUPTED)
    _finish(subject, found, output, json=json)


def _keep(
    subject: Subject,
    found: dict[Section, Findings],
    output: Path | None,
    *,
    json: bool,
    total: int,
) -> None:
    """Write what was finished before Ctrl-C, marked as a part, and print it for machines."""
    files: list[Path] = []
    if found and output is not None:
        found = drawable(found)
        files = save(subject, found, output, complete=False, command=command_line())
    if json and found:
        emit(document(subject, found, complete=False))
    kept = f"kept in {', '.join(map(str, files))}" if files else "nothing is written"
    note(
        f"Interrupted: {len(found)} of {total} sections are finished, {kept}. "
        "Run the command again; it starts over."
    )


def _finish(
    subject: Subject, found: dict[Section, Findings], output: Path | None, *, json: bool
) -> None:
    """Write and print what was found; what was not found makes the command fail."""
    files: list[Path] = []
    if output is not None:
        found = drawable(found)
        files = save(subject, found, output, command=command_line())
    if json:
        emit(document(subject, found))
    else:
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
    subject: Subject, sections: tuple[Section, ...], shared: Processes, *, quiet: bool
) -> tuple[dict[Section, Findings], bool]:
    """The findings, and whether they are not all because of Ctrl-C."""
    found: dict[Section, Findings] = {}
    try:
        with shared.together(), progress(quiet=quiet or not shared.first) as bar:
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
