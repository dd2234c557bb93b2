"""``shoal analyze``: data, or a trained model, in one table and one report."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.app import options
from shoal.app.options import DATA, NETWORK, READING, left_out

FAILED = 1
_TRAINED, _SECTIONS = "Trained model", "Sections"


def analyze(
    context: typer.Context,
    data: options.Data = "digits",
    label: options.Label = None,
    header: options.Header = None,
    sep: options.Separator = None,
    task: options.Task = None,
    drop: options.Drop = "",
    drop_missing: options.DropMissing = False,
    n: options.Samples = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the samples that are drawn; by default 0 for files, and "
                     "the first samples of named data.", rich_help_panel=DATA),
    ] = None,
    standardize: options.Standardize = None,
    activation: Annotated[
        str | None,
        typer.Option(help="Activation of the loop, such as tanh or leakyrelu:0.1; by default it "
                     "and both variances are chosen by leave-one-out.", rich_help_panel=NETWORK),
    ] = None,
    recurrent_variance: options.RecurrentVariance = 0.2,
    input_variance: options.InputVariance = 0.8,
    only: Annotated[
        str | None,
        typer.Option(metavar="SECTIONS", help="Sections, separated by commas: comparison, errors, "
                     "columns, more_data; well_posedness, kernels, equivalents, spectrum.",
                     rich_help_panel=_SECTIONS),
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Print the theory of the network, too.",
                     rich_help_panel=_SECTIONS),
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Trained model instead of an architecture: a network "
                     "of shoal.save, or weights.", rich_help_panel=_TRAINED),
    ] = None,
    code: options.Code = None,
    threads: options.Threads = 1,
    output: options.Output = None,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Is a loop any good on my data, beside what I use already?

    The kernel of a deep equilibrium model, that of one plain layer, the RBF kernel, and ridge or
    logistic regression predict every sample from the folds without it. The report has the verdict,
    the errors, the columns that matter, and the theory of the network below. Inputs are centered
    and scaled to a mean squared norm of one; columns on very different scales are standardized
    before. DATA is handwritten digits by default.

    With --model it analyzes a trained model instead, on unscaled data: how many iterations
    does it need, and what could replace it. FILE is read without running any code.

    Examples: shoal analyze flowers.csv --label kind --output analysis; shoal analyze prices.csv
    --label price --drop id,date --drop-missing; shoal analyze x.npy --label y.npy --model
    weights.pt --code net.py:Model.

    Exit codes: 1, a section failed; 2, bad input; 3, no equilibrium of a trained model was found
    for some samples.
    """
    import torch

    torch.set_num_threads(threads)
    if model is not None:
        architecture = "activation recurrent_variance input_variance"
        left_out(context, f"{architecture} standardize only full {READING}", "with --model")
        from shoal.app.models import analyze_model

        analyze_model(model, code, data, label, n, seed or 0, output=output, json=json)
        return
    from shoal.app import output as out
    from shoal.app import report
    from shoal.app.inputs import load_inputs
    from shoal.app.sections import Subject

    left_out(context, "code", "without --model")
    sections = report.chosen(only, theory=full or output is not None)
    printed = report.chosen(only, theory=full)
    deq = None
    if activation is None:
        left_out(context, "recurrent_variance input_variance", "without --activation")
    else:
        deq = options.make_architecture(activation, recurrent_variance, input_variance)
    inputs = load_inputs(
        data, label=label, reading=options.reading(header, sep, task, drop, drop_missing), n=n,
        most=1000, seed=seed, standardize=standardize,
    )  # fmt: skip
    out.prepare(output)
    subject, analysis = Subject(inputs, deq), {}
    with out.working("") as show:
        for place, section in enumerate(sections, 1):
            show(f"{section.title} ({place} of {len(sections)})")
            analysis[section] = report.find(section, subject)
    record = report.document(subject, analysis)
    files = []
    if output is not None:
        files = out.save(output, {"analysis.json": record})  # before drawing, which may fail
        page = report.render(subject, analysis)
        figure = report.draw(subject, analysis)
        files += out.save(output, {"report.html": page, "analysis": figure})
    out.conclude(
        record, lambda: report.show(subject, {s: analysis[s] for s in printed}), files, json=json
    )
    errors: dict[str, list[str]] = {}  # sections may fail for one reason, which is printed once
    for section, findings in analysis.items():
        if findings.error:
            errors.setdefault(findings.error, []).append(section.title)
    for error, titles in errors.items():
        out.note(f"Error: {', '.join(titles)}: {error}")
    if errors:
        raise typer.Exit(FAILED)
