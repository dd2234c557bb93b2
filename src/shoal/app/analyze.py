"""``shoal analyze``: an architecture on data, or a trained model, in one table and one report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import torch
import typer
from rich.text import Text

from shoal.app.options import (
    DATA,
    Activation,
    Data,
    InputVariance,
    Json,
    Label,
    Output,
    RecurrentVariance,
    Reference,
    Samples,
    Standardize,
    Threads,
    Trust,
    architecture_of,
    device_named,
    left_out,
)
from shoal.app.output import (
    add_rows,
    command_line,
    conclude,
    console,
    meaning_table,
    note,
    prepare,
    save,
    say,
    working,
)
from shoal.core import checks

if TYPE_CHECKING:
    import shoal
    from shoal.app.report import Analysis
    from shoal.app.sections import Section, Subject

FAILED, NO_EQUILIBRIUM = 1, 3
_DIAGNOSED, _DISTILLED = 64, 4000  # samples of a trained model; some tens say as much as all
_OF_A_DEQ = (
    "activation recurrent_variance input_variance standardize only skip dtype device"  # options
)
_TRAINED, _SECTIONS = "Trained model", "Sections"


def analyze(
    context: typer.Context,
    data: Data = "digits",
    label: Label = None,
    n: Samples = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Draws samples, where not all are taken; by default 0 for files, "
                     "and of named data the first are taken.", rich_help_panel=DATA),
    ] = None,
    standardize: Standardize = None,
    activation: Activation = "tanh",
    recurrent_variance: RecurrentVariance = 0.2,
    input_variance: InputVariance = 0.8,
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
    trust: Trust = False,
    reference: Reference = None,
    dtype: Annotated[Literal["float32", "float64"], typer.Option(help="Of inputs and kernels.")]
    = "float64",
    device: Annotated[
        str, typer.Option(help="auto (the GPU where there is one), cpu, cuda or cuda:N.")
    ] = "auto",
    threads: Threads = 1,
    output: Output = None,
    json: Json = False,
) -> None:  # fmt: skip
    """A DEQ on data: kernels, spectrum, designs, training, certificate.

    The DEQ is f(x) = a·z, where z = φ(σ_a A z + σ_b B x)/√m has m units. Inputs are centered
    and scaled to a mean squared norm of one; columns of a file on very different scales are
    standardized before. What the data contradict is listed after the table. Without DATA,
    handwritten digits are taken. It takes a minute.

    With --model it is about a trained model instead, on data as they are: does it settle, how deep
    is it, and what could replace it. No code is run of FILE, unless --trust says so.

    Examples: shoal analyze --output analysis; shoal analyze flowers.csv --label kind --activation
    relu; shoal analyze x.npy --label y.npy --model weights.pt --code net.py:Model.

    Exit codes: 1, a section has no result; 2, bad input; 3, of some samples a trained model has no
    equilibrium that was found.
    """
    torch.set_num_threads(threads)
    if model is not None:
        left_out(context, _OF_A_DEQ, "with --model")
        _trained(data, label, n, seed or 0, model, code, trust, reference, output, json=json)
        return
    from shoal.app import report
    from shoal.app.inputs import load_inputs
    from shoal.app.sections import Subject

    left_out(context, "code trust reference", "without --model")
    sections = _chosen(only, skip)
    deq = architecture_of(activation, recurrent_variance, input_variance)
    inputs = load_inputs(
        data, label=label, n=n, dtype=getattr(torch, dtype), device=device_named(device), most=1000,
        seed=seed, standardize=standardize,
    )  # fmt: skip
    prepare(output)
    subject, found = Subject(deq, inputs), {}
    with working("") as show:
        for place, section in enumerate(sections, 1):
            show(f"{section.title} ({place} of {len(sections)})")
            found[section] = report.find(section, subject)
    record = report.document(subject, found)
    files = []
    if output is not None:
        contents = {
            "report.html": report.render(subject, found, command_line()),
            "analysis.json": record,
            "analysis": report.draw(subject, found),
        }
        files = save(output, contents)
    conclude(record, lambda: _show(subject, found), files, json=json)
    errors: dict[str, list[str]] = {}  # sections may fail for one reason, which is told once
    for section, findings in found.items():
        if findings.error:
            errors.setdefault(findings.error, []).append(section.title)
    for error, titles in errors.items():
        note(f"Error: {', '.join(titles)}: {error}")
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

    table = meaning_table("\n".join([*lead(subject), *subject.data.notes]))
    for section, findings in found.items():
        table.add_section()
        count = len(findings.warnings)
        told = f"! {count} warning{'s' if count > 1 else ''}, below" if count else ""
        table.add_row(Text(section.title, "bold"), Text(told, "yellow"), "")
        add_rows(table, findings.rows)
        if findings.error:
            table.add_row(Text("  none", "red"), "", Text(findings.error))
    console().print(table)
    for section, findings in found.items():
        for warning in findings.warnings:
            say(f"! {section.title}: {warning}")
    if summary := verdict(found):
        say(" ".join(summary.sentences), "bold")


def _trained(
    data: str,
    label: str | None,
    n: int | None,
    seed: int,
    file: Path,
    code: str | None,
    trust: bool,
    reference: Path | None,
    output: Path | None,
    *,
    json: bool,
) -> None:
    """Diagnose a trained model of a file, look for what may replace it, and report both."""
    import shoal
    from shoal.app.models import model_in, samples_for, weights_in
    from shoal.app.trained_model import answer, model_document, model_page

    net = model_in(file, code, trust=trust)
    before = None if reference is None else weights_in(reference)
    x, y = samples_for(net, data, _DISTILLED if n is None else n, label)
    prepare(output)
    with working("Diagnosing") as show:
        found = shoal.diagnose(net, None, x[:_DIAGNOSED], reference=before)
        show("Looking for a replacement")
        twin = shoal.distill(net, x, y, seed=seed)
    record = {"shoal": shoal.__version__, "file": str(file), "data": data}
    record |= model_document(found, twin)
    files = []
    if output is not None:
        contents = {
            "report.html": model_page(found, twin, command_line()),
            "analysis.json": record,
            "diagnosis": found.plot(),
            "replacements": twin.plot(),
        }
        files = save(output, contents)

    def tell() -> None:
        table = meaning_table(f"{found.model}: do I need this loop?")
        add_rows(table, answer(found, twin))
        console().print(table)
        say(str(twin))
        for remedy in found.remedies:
            say(f"{remedy.what[:1].upper()}{remedy.what[1:]}: {remedy.why}.")
        note(
            "Held-out samples are a quarter of those given: if the model was trained on them, it "
            "remembers them, and what may replace it does not. Give samples that it has not seen."
        )

    conclude(record, tell, files, json=json)
    require_equilibria(found)


def require_equilibria(found: "shoal.Diagnosis") -> None:
    """Say of how many samples no equilibrium was found, if there are some, and exit."""
    if missing := found.samples - found.solved:
        note(f"No equilibrium was found for {missing} of {found.samples} samples.")
        raise typer.Exit(NO_EQUILIBRIUM)
