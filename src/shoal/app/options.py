"""Options that commands share.

Modules of commands import torch when a command runs, so that ``--help`` is there at once.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from shoal import DEQ

NETWORK, DATA, OUTPUT = "Network", "Data", "Output"
READING = "header sep task drop drop_missing"
"""Names of the options that say how a table is read."""

DATA_HELP = (
    "digits, mnist, fashion-mnist, cifar-10 (their official files, below the folder that the "
    "environment variable SHOAL_DATA names), or a file. .csv, .csv.gz: a table, a row for each "
    "sample. .npy: a matrix (n, p) of numbers, or images. .npz: the array X, perhaps labels y."
)

Activation = Annotated[
    str,
    typer.Option(
        help="φ by name: tanh, relu, gelu and so on; with numbers after a colon where it takes "
        "some: leakyrelu:0.1.",
        rich_help_panel=NETWORK,
    ),
]
RecurrentVariance = Annotated[
    float, typer.Option(help="σ_a² of the recurrent weights, at least 0.", rich_help_panel=NETWORK)
]
InputVariance = Annotated[
    float, typer.Option(help="σ_b² of the input weights, above 0.", rich_help_panel=NETWORK)
]
Data = Annotated[str, typer.Argument(metavar="[DATA]", help=DATA_HELP)]
Label = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Target: a column of a CSV file, by name or by index from 0, or an .npy file.",
        rich_help_panel=DATA,
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(help="Whether the first row of a CSV file has names; by default it does if no "
                 "cell is a number.", rich_help_panel=DATA),
]  # fmt: skip
Separator = Annotated[
    str | None,
    typer.Option("--sep", metavar="CHARACTER", rich_help_panel=DATA,
                 help="Separator of a CSV file; by default it is found."),
]  # fmt: skip
Task = Annotated[
    Literal["classification", "regression"] | None,
    typer.Option(help="By default text, and at most 20 whole numbers that occur 5 times or more "
                 "each, are classes.", rich_help_panel=DATA),
]  # fmt: skip
Drop = Annotated[
    str,
    typer.Option(metavar="COLUMNS", rich_help_panel=DATA,
                 help="Columns of a CSV file to leave out, separated by commas."),
]  # fmt: skip
DropMissing = Annotated[
    bool, typer.Option("--drop-missing", help="Leave out rows with missing values.",
                       rich_help_panel=DATA)
]  # fmt: skip
Samples = Annotated[
    int | None,
    typer.Option("-n", "--n", help="Number of samples, of each class its share.",
                 rich_help_panel=DATA),
]  # fmt: skip
Standardize = Annotated[
    bool | None,
    typer.Option(
        help="Give all columns a mean of 0 and a variance of 1; by default if the columns of a "
        "file are on very different scales.",
        rich_help_panel=DATA,
    ),
]
Code = Annotated[
    str | None,
    typer.Option(metavar="PATH.py:FACTORY",
                 help="Factory of the model whose weights are in the file. Runs PATH.py."),
]  # fmt: skip
Threads = Annotated[int, typer.Option(min=1, max=1024, help="Number of threads.")]
Output = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder for the report and the numbers; by default nothing is written.",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout.", rich_help_panel=OUTPUT),
]


def reading(
    header: bool | None, sep: str | None, task: str | None, drop: str, drop_missing: bool
) -> dict[str, Any]:
    """The arguments of :func:`shoal.data.read_csv` that are not its defaults."""
    columns = tuple(name.strip() for name in drop.split(",") if name.strip())
    arguments = {
        "header": header,
        "sep": "\t" if sep in ("tab", "\\t") else sep,
        "task": task,
        "drop": columns or None,
        "drop_missing": drop_missing or None,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def left_out(context: typer.Context, names: str, reason: str) -> None:
    """Refuse options that make no sense beside others.

    Args:
        context: The context of the command.
        names: The names of the arguments, separated by blanks.
        reason: The end of the message, such as ``"without --data"``.
    """
    for name in names.split():
        source = context.get_parameter_source(name)  # none for one of another command
        if source is not None and source.name == "COMMANDLINE":
            flag = f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}"
            raise ValueError(f"{flag} must be left out {reason}")


def make_architecture(activation: str, recurrent_variance: float, input_variance: float) -> "DEQ":
    """The DEQ of the options."""
    import shoal
    from shoal.activations.names import parse_activation
    from shoal.core import checks

    phi = parse_activation(activation, argument="--activation")
    if phi.lipschitz == 0:
        raise ValueError(f"--activation must not be constant, got {activation!r}")
    return shoal.DEQ(
        phi,
        checks.real("--recurrent-variance", recurrent_variance, at_least=0),
        checks.real("--input-variance", input_variance, above=0),
    )
