"""``shoal diagnose``: does this trained model settle, how deep is it, what does it cost?"""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import shoal
from shoal.cli.command import Command, Example
from shoal.cli.errors import note
from shoal.cli.model_files import model_in, samples_for, weights_in
from shoal.cli.options import check_output
from shoal.cli.output import (
    add_rows,
    command_line,
    conclude,
    console,
    meaning_table,
    working,
)
from shoal.core.threads import limited_threads
from shoal.diagnosis.words import sections_of
from shoal.report.saving import save_results

NO_EQUILIBRIUM = 3
_SAMPLES = 64


@Command(
    "Does this trained model settle, and do I need its loop?",
    place=2,
    writes="report.html (the page for people), diagnosis.json, diagnosis.png and .svg",
    exits="1 failed; 2 bad input; 3 of some samples no equilibrium was found",
    examples=(
        Example("a network of shoal.save on digits", "shoal diagnose net.safetensors"),
        Example(
            "your model: weights.pt has the weights of what net.py's Model() makes",
            "shoal diagnose weights.pt --model net.py:Model --data x.npy --output found",
        ),
        Example(
            "how far training moved it from its kernel, for machines",
            "shoal diagnose net.safetensors --reference initial.safetensors --json",
        ),
    ),
    takes_data=True,
    panels={
        "Model": "factory trust reference",
        "Data": "data label n",
        "Looking": "tolerance starts steps",
    },
)
def diagnose(
    model: Path,
    /,
    data: str = "digits",
    label: str | None = None,
    n: int = _SAMPLES,
    factory: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="PATH.py:FACTORY",
            help="What makes the model whose state dictionary FILE is. Runs PATH.py.",
        ),
    ] = None,
    trust: bool = False,
    reference: Path | None = None,
    tolerance: float = 0.01,
    starts: int = 4,
    steps: int = 500,
    threads: int = 1,
    output: Path | None = None,
) -> None:
    """Diagnose a trained model with an equilibrium inside: do I need this DEQ?

    Does its iteration settle, cycle or diverge; after how many applications is the output what it
    will be; is the equilibrium unique; what do solvers and gradients cost, and how far off are
    they. The exit code is 3 if of some samples no equilibrium was found. No code is run of FILE,
    unless --trust says so.

    Options:
        model (FILE): A network of shoal.save, or with --model the weights of a model; see below.
        data (DATA): Inputs, as for analyze, taken as they are.
        label (COLUMN): Labels in a CSV file, by name or by index from 0: they are left out.
        n: How many samples, at most.
        tolerance: Within which an output is as good as its limit.
        starts: From how many states to look.
        steps: Most applications of the cell.
    """
    check_output(output)
    net = model_in(model, factory, trust=trust)
    before = None if reference is None else weights_in("--reference", reference)
    x, _ = samples_for(net, data, n, label)
    with limited_threads(threads), working("Diagnosing"):
        found = shoal.diagnose(
            net, None, x, tolerance=tolerance, starts=starts, steps=steps, reference=before
        )
    record = {"shoal": shoal.__version__, "file": str(model), "data": data, **found.document()}
    conclude(
        record,
        partial(_show, found),
        output,
        lambda folder: save_results(
            folder,
            pages={"report.html": found.page(command=command_line())},
            documents={"diagnosis.json": record},
            figures={"diagnosis": found.plot()},
        ),
        saves="--output FOLDER saves the report, the figure and the numbers.",
    )
    require_equilibria(found)


def require_equilibria(found: shoal.Diagnosis) -> None:
    """Say of how many samples no equilibrium was found, if there are some, and exit."""
    if missing := found.samples - found.solved:
        note(f"No equilibrium was found for {missing} of {found.samples} samples.")
        raise typer.Exit(NO_EQUILIBRIUM)


def _show(found: shoal.Diagnosis) -> None:
    title = f"{found.model}: {found.samples} samples, a state of size {found.size}"
    table = meaning_table(title)
    for part in sections_of(found):
        table.add_section()
        table.add_row(Text(part.title, "bold"), "", "")
        add_rows(table, part.findings.rows)
    console().print(table)
