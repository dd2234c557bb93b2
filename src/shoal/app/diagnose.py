"""``shoal diagnose``: does this trained model settle, how deep is it, what does it cost?"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.text import Text

from shoal.app import options, terminal
from shoal.app.options import DATA

_LOOKING = "Looking"


def diagnose(
    model: Annotated[
        Path,
        typer.Argument(help="A network of shoal.save, or with --model the weights of a model."),
    ],
    factory: Annotated[
        str | None,
        typer.Option("--model", metavar="PATH.py:FACTORY", help="What makes the model whose state "
                     "dictionary the file is. Runs PATH.py."),
    ] = None,
    reference: options.Reference = None,
    data: Annotated[
        str, typer.Option(help="As for analyze, taken as they are.", rich_help_panel=DATA)
    ] = "digits",
    label: options.Label = None,
    n: Annotated[
        int, typer.Option("-n", "--n", min=1, help="Samples, at most.", rich_help_panel=DATA)
    ] = 64,
    tolerance: Annotated[
        float, typer.Option(help="Within which an output is as good as its limit.",
                            rich_help_panel=_LOOKING)
    ] = 0.01,
    starts: Annotated[
        int, typer.Option(help="From how many states to look.", rich_help_panel=_LOOKING)
    ] = 4,
    steps: Annotated[
        int, typer.Option(help="Most applications of the cell.", rich_help_panel=_LOOKING)
    ] = 500,
    threads: options.Threads = 1,
    output: options.Output = None,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Does this trained model settle, and do I need its loop?

    Does its iteration settle, cycle or diverge; after how many applications is the output what it
    will be; is the equilibrium unique; what do solvers and gradients cost, and how far off are
    they. No code is run of the file.

    Examples: shoal diagnose net.safetensors; shoal diagnose weights.pt --model net.py:Model --data
    x.npy --output found.

    Exit codes: 2, bad input; 3, of some samples no equilibrium was found.
    """
    import shoal
    from shoal.app.models import model_in, samples_for, weights_in
    from shoal.app.pages import blocks, render_page
    from shoal.app.trained_model import require_equilibria
    from shoal.diagnosis.words import sections_of

    torch.set_num_threads(threads)
    net = model_in(model, factory)
    before = None if reference is None else weights_in(reference)
    x, _ = samples_for(net, data, n, label)
    terminal.prepare(output)
    with terminal.working("Diagnosing"):
        found = shoal.diagnose(
            net, None, x, tolerance=tolerance, starts=starts, steps=steps, reference=before
        )
    record = {"shoal": shoal.__version__, "file": str(model), "data": data, **found.document()}
    sizes = f"{found.samples} samples, a state of size {found.size}"
    parts = sections_of(found)
    files = []
    if output is not None:
        page = render_page(
            f"Diagnosis of {found.model}",
            f"{sizes}: it {found.behavior}",
            blocks(parts),
            device=x.device,
            command=terminal.command_line(),
        )
        contents = {"report.html": page, "diagnosis.json": record, "diagnosis": found.plot()}
        files = terminal.save(output, contents)

    def show() -> None:
        table = terminal.meaning_table(f"{found.model}: {sizes}")
        for part in parts:
            table.add_section()
            table.add_row(Text(part.title, "bold"), "", "")
            terminal.add_rows(table, part.rows)
        terminal.console().print(table)

    terminal.conclude(record, show, files, json=json)
    require_equilibria(found)
