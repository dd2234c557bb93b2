"""``shoal analyze``: an architecture on data, or a trained model, in one table and one report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import torch
import typer
from rich.text import Text

from shoal.app import options, terminal
from shoal.app.options import DATA, left_out
from shoal.core import checks

if TYPE_CHECKING:
    from shoal.app.report import Analysis
    from shoal.app.sections import Section, Subject

FAILED = 1
_OF_A_DEQ = (
    "activation recurrent_variance input_variance standardize only skip dtype device"  # options
)
_TRAINED, _SECTIONS = "Trained model", "Sections"


def analyze(
    context: typer.Context,
    data: options.Data = "digits",
    label: options.Label = None,
    n: options.Samples = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Draws samples, where not all are taken; by default 0 for files, "
                     "and of named data the first are taken.", rich_help_panel=DATA),
    ] = None,
    standardize: options.Standardize = None,
    activation: options.Activation = "tanh",
    recurrent_variance: options.RecurrentVariance = 0.2,
    input_variance: options.InputVariance = 0.8,
    only: Annotated[
        str | None,
        typer.Option(metavar="SECTIONS", help="These sections, separated by commas: well_posedness,"
                     " kernels, equivalents, spectrum, design, training, accuracy, prediction, "
                     "certificate; by default all.", rich_help_panel=_SECTIONS),
    ] = None,
    skip: Annotated[
        str | None,
        typer.Option(metavar="SECTIONS", help="All sections but these.", rich_help_panel=_SECTIONS),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A trained model instead of an architecture: a network "
                     "of shoal.save, or weights.", rich_help_panel=_TRAINED),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(metavar="PATH.py:FACTORY", help="What makes the model whose weights are in "
                     "FILE. Runs PATH.py.", rich_help_panel=_TRAINED),
    ] = None,
    reference: options.Reference = None,
    dtype: Annotated[Literal["float32", "float64"], typer.Option(help="Of inputs and kernels.")]
    = "float64",
    device: Annotated[
        str, typer.Option(help="auto (the GPU where there is one), cpu, cuda or cuda:N.")
    ] = "auto",
    threads: options.Threads = 1,
    output: options.Output = None,
    json: options.Json = False,
) -> None:  # fmt: skip
    """A DEQ on data: kernels, spectrum, designs, training, certificate.

    The DEQ is f(x) = a·z, where z = φ(σ_a A z + σ_b B x)/√m has m units. Inputs are centered
    and scaled to a mean squared norm of one; columns of a file on very different scales are
    standardized before. What the data contradict is listed after the table. Without DATA,
    handwritten digits are taken. It takes a minute.

    With --model it is about a trained model instead, on data as they are: does it settle, how deep
    is it, and what could replace it. No code is run of FILE.

    Examples: shoal analyze --output analysis; shoal analyze flowers.csv --label kind --activation
    relu; shoal analyze x.npy --label y.npy --model weights.pt --code net.py:Model.

    Exit codes: 1, a section has no result; 2, bad input; 3, of some samples a trained model has no
    equilibrium that was found.
    """
    torch.set_num_threads(threads)
    if model is not None:
        left_out(context, _OF_A_DEQ, "with --model")
        from shoal.app.trained_model import analyze_model

        analyze_model(model, code, reference, data, label, n, seed or 0, output=output, json=json)
        return
    from shoal.app import report
    from shoal.app.inputs import load_inputs
    from shoal.app.sections import Subject

    left_out(context, "code reference", "without --model")
    sections = _chosen(only, skip)
    deq = options.architecture_of(activation, recurrent_variance, input_variance)
    inputs = load_inputs(
        data, label=label, n=n, most=1000, seed=seed, standardize=standardize,
        dtype=getattr(torch, dtype), device=options.device_named(device),
    )  # fmt: skip
    terminal.prepare(output)
    subject, found = Subject(deq, inputs), {}
    with terminal.working("") as show:
        for place, section in enumerate(sections, 1):
            show(f"{section.title} ({place} of {len(sections)})")
            found[section] = report.find(section, subject)
    record = report.document(subject, found)
    files = []
    if output is not None:
        files = terminal.save(output, {"analysis.json": record})  # before what may not be drawn
        page = report.render(subject, found, terminal.command_line())
        figure = report.draw(subject, found)
        files += terminal.save(output, {"report.html": page, "analysis": figure})
    terminal.conclude(record, lambda: _show(subject, found), files, json=json)
    errors: dict[str, list[str]] = {}  # sections may fail for one reason, which is told once
    for section, findings in found.items():
        if findings.error:
            errors.setdefault(findings.error, []).append(section.title)
    for error, titles in errors.items():
        terminal.note(f"Error: {', '.join(titles)}: {error}")
    if errors:
        raise typer.Exit(FAILED)


def _chosen(only: str | None, skip: str | None) -> "tuple[Section, ...]":
    """The sections that the options leave."""
    from shoal.app.sections import SECTIONS

    if only is not None and skip is not None:
        raise ValueError("--only and --skip must not both be given")
    option, given = ("--skip", skip) if only is None else ("--only", only)
    named = [] if given is None else [name.strip() for name in given.split(",")]
    for name in named:
        checks.one_of(option, name, [section.name for section in SECTIONS])
    chosen = tuple(s for s in SECTIONS if (s.name in named) == (only is not None))
    if not chosen:
        raise ValueError(f"{option} must leave a section, got {given!r}")
    return chosen


def _show(subject: "Subject", found: "Analysis") -> None:
    from shoal.app.report import lead, verdict

    table = terminal.meaning_table("\n".join([*lead(subject), *subject.data.notes]))
    for section, findings in found.items():
        table.add_section()
        count = len(findings.warnings)
        told = f"! {count} warning{'s' if count > 1 else ''}, below" if count else ""
        table.add_row(Text(section.title, "bold"), Text(told, "yellow"), "")
        terminal.add_rows(table, findings.rows)
        if findings.error:
            table.add_row(Text("  none", "red"), "", Text(findings.error))
    terminal.console().print(table)
    for section, findings in found.items():
        for warning in findings.warnings:
            terminal.say(f"! {section.title}: {warning}")
    terminal.say(" ".join(verdict(found)), "bold")
