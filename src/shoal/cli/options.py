"""Options that commands share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import torch
import typer

from shoal.activations.names import activation_names
from shoal.cli.logs import state
from shoal.core import checks
from shoal.pages.figures import require_matplotlib
from shoal.pages.html import require_jinja

__all__ = [
    "Activation",
    "Debug",
    "Device",
    "Dtype",
    "InputVariance",
    "Json",
    "Label",
    "Output",
    "RecurrentVariance",
    "Reference",
    "Save",
    "Standardize",
    "Threads",
    "Trust",
    "Verbose",
    "check_count",
    "check_folder",
    "check_output",
    "limited",
]

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


def check_count(option: str, value: int) -> None:
    """Check a number of processes or threads."""
    checks.integer(option, value, at_least=1)
    if value > _MOST:
        raise ValueError(f"{option} must be <= {_MOST} on this machine, got {value}")


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Compute with so many threads; more than one wait for each other in small problems."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
        """As torch calls it."""
        return torch.float32 if self is Dtype.float32 else torch.float64


Activation = Annotated[
    str,
    typer.Option(
        help=f"φ: {activation_names()}; with numbers after a colon where it takes some: "
        "leakyrelu:0.1, hermite:0,1,0.5."
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="The labels: a column of a CSV file, by name or by index from 0, or an .npy file.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="FILE is a whole module, pickled. Runs whatever code is in it."),
]
Reference = Annotated[
    Path | None,
    typer.Option(metavar="WEIGHTS", help="Those before training, to compare tangent kernels."),
]
RecurrentVariance = Annotated[
    float, typer.Option(help="σ_a², of the recurrent weights, at least 0.")
]
InputVariance = Annotated[float, typer.Option(help="σ_b², of the input weights, above 0.")]
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
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")
]
Device = Annotated[
    str, typer.Option(help="auto (the GPU where there is one), cpu, cuda or cuda:N.")
]
Standardize = Annotated[
    bool | None,
    typer.Option(
        "--standardize/--no-standardize",
        help="Give all columns a mean of 0 and a variance of 1.",
        show_default="if those of a file are on very different scales",
    ),
]
Threads = Annotated[int, typer.Option(help="How many threads compute.")]
Output = Annotated[
    Path,
    typer.Option(parser=_folder, metavar="FOLDER", help="The folder to write into; it is made."),
]
Save = Annotated[
    Path | None,
    typer.Option(
        parser=_folder,
        metavar="FOLDER",
        help="A folder for the report and the numbers; it is made.",
        show_default="nothing is written",
    ),
]
