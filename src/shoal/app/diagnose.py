"""``shoal diagnose``: does this trained model converge, how deep is it, what does it cost?"""

from pathlib import Path
from typing import Annotated

import typer

from shoal.app import options
from shoal.app.options import DATA

_ITERATION = "Iteration"


def diagnose(
    model: Annotated[
        Path,
        typer.Argument(help="A network of shoal.save, or with --code the weights of a model."),
    ],
    code: options.Code = None,
    reference: options.Reference = None,
    data: Annotated[
        str, typer.Option(help="As for analyze, but not scaled.", rich_help_panel=DATA)
    ] = "digits",
    label: options.Label = None,
    n: Annotated[
        int, typer.Option("-n", "--n", min=1, help="Number of samples.", rich_help_panel=DATA)
    ] = 64,
    tolerance: Annotated[
        float, typer.Option(help="Relative distance at which an output is as good as its limit.",
                            rich_help_panel=_ITERATION)
    ] = 0.01,
    starts: Annotated[
        int, typer.Option(help="Number of initial states.", rich_help_panel=_ITERATION)
    ] = 4,
    steps: Annotated[
        int, typer.Option(help="Largest number of iterations.", rich_help_panel=_ITERATION)
    ] = 500,
    threads: options.Threads = 1,
    output: options.Output = None,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Does this trained model converge, and do I need its loop?

    Does its iteration converge, cycle or diverge; after how many iterations is the output final;
    is the equilibrium unique; what do solvers and gradients cost, and how large are their errors.
    The file is read without running any code.

    Examples: shoal diagnose net.safetensors; shoal diagnose weights.pt --code net.py:Model --data
    x.npy --output found.

    Exit codes: 2, bad input; 3, no equilibrium was found for some samples.
    """
    import torch

    import shoal
    from shoal.app import output as out
    from shoal.app.models import model_in, require_equilibria, samples_for, weights_in
    from shoal.diagnosis.words import sections_of

    torch.set_num_threads(threads)
    net = model_in(model, code)
    before = None if reference is None else weights_in(reference)
    x, _ = samples_for(net, data, n, label)
    out.prepare(output)
    with out.working("Diagnosing"):
        found = shoal.diagnose(
            net, None, x, tolerance=tolerance, starts=starts, steps=steps, reference=before
        )
    record = {"shoal": shoal.__version__, "file": str(model), "data": data, **found.document()}
    sizes = f"{found.samples} samples, a state of size {found.size}"
    parts = sections_of(found)
    files = []
    if output is not None:
        page = out.render_page(
            f"Diagnosis of {found.model}",
            f"{sizes}: it {found.behavior}",
            [(part.name, part.title, part) for part in parts],
            device=x.device,
        )
        contents = {"report.html": page, "diagnosis.json": record, "diagnosis": found.plot()}
        files = out.save(output, contents)

    def show() -> None:
        table = out.RowTable(f"{found.model}: {sizes}")
        for part in parts:
            table.add_part(part.title, part.rows)
        out.console().print(table)

    out.conclude(record, show, files, json=json)
    require_equilibria(found)
