"""``shoal diagnose``: how many iterations does this loop need, and do more help or hurt?"""

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
    data: Annotated[
        str, typer.Option(help="As for analyze, but not scaled.", rich_help_panel=DATA)
    ] = "digits",
    label: Annotated[
        str | None,
        typer.Option("--labels", "--label", metavar="COLUMN", rich_help_panel=DATA,
                     help="Labels per sample or per token: an .npy file, or a column of a CSV "
                          "file."),
    ] = None,
    n: Annotated[
        int, typer.Option("-n", "--n", min=1, help="Number of samples.", rich_help_panel=DATA)
    ] = 64,
    steps: Annotated[
        int | None, typer.Option(help="Number of iterations that the model runs, if not found.",
                                 min=1, rich_help_panel=_ITERATION)
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(help="Largest number of iterations; 16 times the model's own.",
                                 min=1, rich_help_panel=_ITERATION)
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Relative distance up to which two values agree.",
                            rich_help_panel=_ITERATION)
    ] = 0.01,
    equilibrium: Annotated[
        bool | None, typer.Option(help="Measure the equilibrium, its Jacobian, solvers and "
                                       "gradients; by default only of models that solve for one.",
                                  rich_help_panel=_ITERATION)
    ] = None,
    threads: options.Threads = 1,
    output: options.Output = None,
    json: options.Json = False,
) -> None:  # fmt: skip
    """How many iterations does this loop need, and do more help or hurt?

    The loop is found in the model and runs for up to 16 times its own number of iterations. On the
    way each decision is compared with the decision of the unchanged model, and with labels. The
    file is read without running any code.

    Examples: shoal diagnose net.safetensors; shoal diagnose model.pt --code file.py:make_model
    --data tokens.npy --labels y.npy --output found.

    Exit codes: 2, bad input; 3, no equilibrium was found for some samples of a model that solves.
    """
    import torch

    import shoal
    from shoal.app import output as out
    from shoal.app.models import load_model, load_samples, require_equilibria

    torch.set_num_threads(threads)
    net = load_model(model, code)
    x, y = load_samples(net, data, n, label)
    out.prepare(output)
    with out.working("Diagnosing"):
        diagnosis = shoal.diagnose(
            net, x, y=None if label is None else y, steps=steps, max_steps=max_steps,
            tolerance=tolerance, equilibrium=equilibrium,
        )  # fmt: skip
    record = {"shoal": shoal.__version__, "file": str(model), "data": data, **diagnosis.document()}
    parts = diagnosis.parts()
    files = []
    if output is not None:
        page = out.render_page(
            f"Diagnosis of {diagnosis.model}",
            diagnosis.verdict,
            [(part.name, part.title, part) for part in parts],
            device=x.device,
        )
        contents = {"report.html": page, "diagnosis.json": record, "diagnosis": diagnosis.plot()}
        files = out.save(output, contents)

    def show() -> None:
        out.say(diagnosis.verdict)
        table = out.RowTable("")
        for part in parts:
            table.add_part(part.title, part.rows)
        out.console().print(table)

    out.conclude(record, show, files, json=json)
    require_equilibria(diagnosis)
