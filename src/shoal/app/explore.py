"""``shoal explore``: a page on which a deep equilibrium model can be changed interactively."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.app import options
from shoal.app.options import left_out


def explore(
    context: typer.Context,
    data: Annotated[
        str | None, typer.Argument(help=f"By default two classes. {options.DATA_HELP}")
    ] = None,
    label: options.Label = None,
    header: options.Header = None,
    sep: options.Separator = None,
    task: options.Task = None,
    drop: options.Drop = "",
    drop_missing: options.DropMissing = False,
    n: options.Samples = None,
    standardize: options.Standardize = None,
    activation: options.Activation = "tanh",
    recurrent_variance: options.RecurrentVariance = 0.2,
    input_variance: options.InputVariance = 0.8,
    output: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for the page, explorer.html.")
    ] = Path(),
    json: options.Json = False,
) -> None:
    """A page to explore a DEQ, with your data.

    Where the kernel exists, how fast a solver is, the kernel and its shallow twin, the spectrum,
    training and learning move with activation, variances, norm and p/n. The page needs no server
    and no network. With DATA it uses the norms, the covariance and the labels; the inputs are
    centered and scaled as by analyze.

    Examples: shoal explore; shoal explore x.npz --output pages --activation relu.
    """
    from shoal.app import output as out
    from shoal.app.explorer import explorer_page, summarize, two_classes
    from shoal.app.inputs import load_inputs
    from shoal.core import checks
    from shoal.core.files import json_text, write_text

    checks.real("--recurrent-variance", recurrent_variance, at_least=0)
    checks.real("--input-variance", input_variance, above=0)
    with out.working("Summarizing the data"):
        if data is None:
            left_out(context, f"n standardize label {options.READING}", "without DATA")
            population = two_classes()
        else:
            reading = options.reading(header, sep, task, drop, drop_missing)
            loaded = load_inputs(data, label=label, reading=reading, n=n, standardize=standardize)
            population = summarize(loaded)
        page = explorer_page(
            population,
            activation=activation,
            recurrent_variance=recurrent_variance,
            input_variance=input_variance,
            command=out.command_line(),
        )
    out.prepare(output)
    file = output / "explorer.html"
    write_text(file, page)
    if json:
        document = {"page": str(file), "bytes": len(page.encode())}
        typer.echo(json_text(document | {"population": population.document()}), nl=False)
    else:
        out.note(f"Written: {file}. It opens in any browser, from the disk.")
