"""``shoal analyze``: an architecture on data, or a trained model, in one table and one report."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from shoal.app import options
from shoal.app.options import DATA, left_out

FAILED = 1
_OF_A_DEQ = "activation recurrent_variance input_variance standardize only dtype device"
_TRAINED, _SECTIONS = "Trained model", "Sections"


def analyze(
    context: typer.Context,
    data: options.Data = "digits",
    label: options.Label = None,
    n: options.Samples = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the samples that are drawn; by default 0 for files, and "
                     "the first samples of named data.", rich_help_panel=DATA),
    ] = None,
    standardize: options.Standardize = None,
    activation: options.Activation = "tanh",
    recurrent_variance: options.RecurrentVariance = 0.2,
    input_variance: options.InputVariance = 0.8,
    only: Annotated[
        str | None,
        typer.Option(metavar="SECTIONS", help="Sections, separated by commas: well_posedness,"
                     " kernels, equivalents, spectrum, design, training, accuracy, prediction, "
                     "certificate; by default all.", rich_help_panel=_SECTIONS),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Trained model instead of an architecture: a network "
                     "of shoal.save, or weights.", rich_help_panel=_TRAINED),
    ] = None,
    code: options.Code = None,
    reference: options.Reference = None,
    dtype: Annotated[
        Literal["float32", "float64"], typer.Option(help="Precision of inputs and kernels.")
    ] = "float64",
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
    standardized before. Predictions that the data contradict are listed after the table. DATA is
    handwritten digits by default. It takes a minute.

    With --model it analyzes a trained model instead, on unscaled data: does it converge, how deep
    is it, and what could replace it. FILE is read without running any code.

    Examples: shoal analyze --output analysis; shoal analyze flowers.csv --label kind --activation
    relu; shoal analyze x.npy --label y.npy --model weights.pt --code net.py:Model.

    Exit codes: 1, a section failed; 2, bad input; 3, no equilibrium of a trained model was found
    for some samples.
    """
    import torch

    torch.set_num_threads(threads)
    if model is not None:
        left_out(context, _OF_A_DEQ, "with --model")
        from shoal.app.models import analyze_model

        analyze_model(model, code, reference, data, label, n, seed or 0, output=output, json=json)
        return
    from shoal.app import output as out
    from shoal.app import report
    from shoal.app.inputs import load_inputs
    from shoal.app.sections import Subject

    left_out(context, "code reference", "without --model")
    sections = report.chosen(only)
    deq = options.architecture_of(activation, recurrent_variance, input_variance)
    inputs = load_inputs(
        data, label=label, n=n, most=1000, seed=seed, standardize=standardize,
        dtype=getattr(torch, dtype), device=options.device_named(device),
    )  # fmt: skip
    out.prepare(output)
    subject, found = Subject(deq, inputs), {}
    with out.working("") as show:
        for place, section in enumerate(sections, 1):
            show(f"{section.title} ({place} of {len(sections)})")
            found[section] = report.find(section, subject)
    record = report.document(subject, found)
    files = []
    if output is not None:
        files = out.save(output, {"analysis.json": record})  # before drawing, which may fail
        page = report.render(subject, found)
        figure = report.draw(subject, found)
        files += out.save(output, {"report.html": page, "analysis": figure})
    out.conclude(record, lambda: report.show(subject, found), files, json=json)
    errors: dict[str, list[str]] = {}  # sections may fail for one reason, which is told once
    for section, findings in found.items():
        if findings.error:
            errors.setdefault(findings.error, []).append(section.title)
    for error, titles in errors.items():
        out.note(f"Error: {', '.join(titles)}: {error}")
    if errors:
        raise typer.Exit(FAILED)
