"""Options that commands share."""

import os
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import torch
import typer

from shoal.activations.names import activation_names
from shoal.cli.logs import state
from shoal.core import checks
from shoal.pages.figures import require_matplotlib
from shoal.pages.html import require_jinja

_MOST = max(64, 4 * (os.cpu_count() or 1))  # processes and threads; more only stop the machine


def _set_verbose(count: int) -> int:
    if count:
        state.verbose = max(state.verbose, count)
        state.apply()
    return count


def _set_debug(on: bool) -> bool:
    if on:
        state.debug = True
        state.apply()
    return on


def _check_count(parameter: typer.CallbackParam, value: int) -> int:
    """Check a number of processes or threads."""
    option = flag(str(parameter.name))
    checks.integer(option, value, at_least=1)
    if value > _MOST:
        raise ValueError(f"{option} must be <= {_MOST} on this machine, got {value}")
    return value


def left_out(names: str, reason: str) -> None:
    """Check that some options were not typed, and say why they must not be.

    Args:
        names: The names of their arguments, separated by blanks.
        reason: When they make no sense, such as ``"without --data"``.
    """
    for name in names.split():
        if name in state.typed:
            value = state.typed[name]
            got = "" if isinstance(value, bool) else f", got {str(value)!r}"
            raise ValueError(f"{flag(name)} must be left out {reason}{got}")


def flag(name: str) -> str:
    """What is typed for an argument.

    Example:
        >>> flag("input_variance"), flag("n")
        ('--input-variance', '-n')
    """
    return f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}"


def check_folder(path: Path, option: str = "--output") -> None:
    """Check that a folder can be made and written to, before anything is computed for it.

    It is tried, since permissions do not tell all; nothing is left behind.

    Args:
        path: The folder.
        option: Which option it comes from.

    Raises:
        typer.BadParameter: If it cannot.
    """
    places = [path.absolute(), *path.absolute().parents]
    absent = [place for place in places if not os.path.lexists(place)]  # unlike exists, never fails
    made: list[Path] = []
    try:
        for place in reversed(absent):
            place.mkdir()
            made.append(place)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        there = places[len(absent)]
        reason = "is a file" if there.is_file() else f"cannot be written to ({error.strerror})"
        raise typer.BadParameter(
            f"must be a folder that can be written to, got {str(path)!r}: {str(there)!r} {reason}",
            param_hint=option,
        ) from None
    finally:
        for place in reversed(made):
            place.rmdir()


def check_output(folder: Path | None) -> None:
    """Check that a report can be made and written, if one is wanted, before anything is computed.

    Raises:
        ImportError: If what makes pages and figures is not installed.
        typer.BadParameter: If the folder cannot be written to.
    """
    if folder is not None:
        require_matplotlib()
        require_jinja()
        check_folder(folder)


def _folder(text: str | Path) -> Path:
    """The path of a folder; an empty one would silently be the current folder."""
    if not str(text):
        raise typer.BadParameter("must name a folder, got ''; the current one is '.'.")
    return Path(text)


class Dtype(StrEnum):
    """The dtypes of kernels."""

    float32 = "float32"
    float64 = "float64"

    @property
    def torch(self) -> torch.dtype:
        """The dtype as torch knows it."""
        return torch.float32 if self is Dtype.float32 else torch.float64


# Options that several commands have, by the names of their arguments: what typer is told of them.
SHARED: dict[str, dict[str, Any]] = {
    "activation": {
        "help": f"φ: {activation_names()}; with numbers after a colon where it takes some: "
        "leakyrelu:0.1, hermite:0,1,0.5."
    },
    "recurrent_variance": {"help": "σ_a², of the recurrent weights, at least 0."},
    "input_variance": {"help": "σ_b², of the input weights, above 0."},
    "label": {
        "metavar": "COLUMN",
        "help": "The labels: a column of a CSV file, by name or by index from 0, or an .npy file.",
    },
    "standardize": {
        "help": "Give all columns a mean of 0 and a variance of 1; by default if those of a file "
        "are on very different scales."
    },
    "trust": {"help": "FILE is a whole module, pickled. Runs whatever code is in it."},
    "reference": {
        "metavar": "WEIGHTS",
        "help": "Those before training, to compare tangent kernels.",
    },
    "device": {"help": "auto (the GPU where there is one), cpu, cuda or cuda:N."},
    "threads": {"callback": _check_count, "help": "How many threads compute."},
    "jobs": {"callback": _check_count, "help": "How many processes compute points."},
    "output": {
        "parser": _folder,
        "metavar": "FOLDER",
        "help": "A folder for the report and the numbers, which is made; by default nothing is "
        "written.",
    },
}
# Those that all commands have.
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")
]
Verbose = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        callback=_set_verbose,
        show_default=False,
        help="Say more; twice, much more.",
    ),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", callback=_set_debug, is_eager=True, help="Show tracebacks of errors."),
]
