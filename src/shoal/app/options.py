"""Options that commands share.

Modules of commands import torch when a command runs, so that ``--help`` is there at once.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

    from shoal import DEQ

NETWORK, DATA, OUTPUT = "Network", "Data", "Output"

DATA_HELP = (
    "digits, mnist, fashion-mnist, cifar-10 (their official files, below the folder that the "
    "environment variable SHOAL_DATA names), or a file. .npy: a matrix (n, p) of numbers, or "
    "images. .npz: the array X, perhaps labels y. .csv, .csv.gz: a row for each sample, perhaps "
    "a header. Labels that are integers or names are classes, real numbers are targets."
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
        help="Labels: a column of a CSV file, by name or by index from 0, or an .npy file.",
        rich_help_panel=DATA,
    ),
]
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
Reference = Annotated[
    Path | None,
    typer.Option(metavar="WEIGHTS", help="Weights before training, to compare tangent kernels."),
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


def left_out(context: typer.Context, names: str, reason: str) -> None:
    """Refuse options that make no sense beside others.

    Args:
        context: The context of the command.
        names: The names of the arguments, separated by blanks.
        reason: The end of the message, such as ``"without --data"``.
    """
    for name in names.split():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}"
            raise ValueError(f"{flag} must be left out {reason}")


def architecture_of(activation: str, recurrent_variance: float, input_variance: float) -> "DEQ":
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


def device_named(name: str) -> "torch.device":
    """The device by its name; ``"auto"`` is the GPU if there is one."""
    import torch

    from shoal.core import checks

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = checks.device_of("--device", name, "auto, cpu, cuda or cuda:N")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device must be auto, cpu, cuda or cuda:N, got {name!r}")
    return device
