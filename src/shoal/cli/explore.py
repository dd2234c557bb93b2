"""``shoal explore``: a page on which a deep equilibrium model can be moved about."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from shoal.cli.command import Command, Example
from shoal.cli.errors import note
from shoal.cli.logs import state
from shoal.cli.options import check_folder, left_out
from shoal.cli.output import command_line, emit, working
from shoal.core import checks
from shoal.data import load_data
from shoal.explorer import explorer_page, population_of, two_classes
from shoal.explorer.tables import ACTIVATIONS
from shoal.pages.html import require_jinja
from shoal.report.saving import save_results


@Command(
    "A page to explore a DEQ on, with your data.",
    place=1,
    writes="nothing: --out names the page, which is the only file",
    examples=(
        Example("two classes, and everything else to be moved", "shoal explore"),
        Example("with norms, covariance and labels of the digits", "shoal explore digits"),
        Example(
            "of a file, elsewhere, beginning with a ReLU",
            "shoal explore x.npz --out pages/mine.html --activation relu",
        ),
    ),
    takes_data=True,
    panels={
        "Start": "activation recurrent_variance input_variance",
        "Data": "label n standardize",
    },
)
def explore(
    data: str | None = None,
    /,
    label: str | None = None,
    n: int | None = None,
    standardize: bool | None = None,
    activation: Annotated[
        str, typer.Option(help=f"φ at first: {', '.join(ACTIVATIONS)}.")
    ] = "tanh",
    recurrent_variance: float = 0.2,
    input_variance: float = 0.8,
    out: Annotated[
        Path,
        typer.Option("--out", "--output", metavar="FILE", help="The page; its folder is made."),
    ] = Path("explorer.html"),
) -> None:
    """Write one HTML page on which activation, variances, norm and p/n can be moved.

    Where the kernel exists, how fast a solver is, the kernel and its shallow twin, the spectrum,
    training and learning move with them. The page needs no server and no network. With DATA it
    knows the norms, the covariance and the labels; the inputs are centered and scaled as analyze
    does it.

    Options:
        data (DATA): Inputs, with or without labels; by default two classes.
        n: Samples to take; by default all.
    """
    checks.one_of("--activation", activation, tuple(ACTIVATIONS))
    checks.real("--recurrent-variance", recurrent_variance, at_least=0)
    checks.real("--input-variance", input_variance, above=0)
    if data is None:
        left_out("label n standardize", "without DATA")
    if out.suffix != ".html" or out.is_dir():
        raise ValueError(f"--out must be a file that ends in .html, got {str(out)!r}")
    require_jinja()
    check_folder(out.parent, "--out")
    with working("Summarizing the data"):
        population = two_classes()
        if data is not None:
            loaded = load_data(
                data,
                label=label,
                n=n,
                standardize=standardize,
                dtype=torch.float64,
                device=torch.device("cpu"),
            )
            population = population_of(loaded)
        page = explorer_page(
            population,
            activation=activation,
            recurrent_variance=recurrent_variance,
            input_variance=input_variance,
            command=command_line(),
        )
    save_results(out.parent, pages={out.name: page})
    if state.json:
        emit({"page": str(out), "bytes": len(page.encode()), "population": population.document()})
    else:
        note(f"Written: {out}. It opens in any browser, from the disk.")
