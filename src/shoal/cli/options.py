"""Options that commands share."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

from shoal.cli.logs import state

__all__ = ["Debug", "Device", "Dtype", "Json", "Output", "Verbose", "check_folder"]


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


def check_folder(path: Path | None) -> Path | None:
    """Return a folder that can be made or written to, before anything is computed for it."""
    if path is None:
        return None
    there = path.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise typer.BadParameter(
            f"must be a folder that can be written to, got {str(path)!r}: "
            f"{str(there)!r} is {'not writable' if there.is_dir() else 'a file'}."
        )
    return path


class Dtype(StrEnum):
    """The dtypes of kernels."""

    float32 = "float32"
    float64 = "float64"

    @property
    def torch(self) -> torch.dtype:
        """As torch calls it."""
        return torch.float32 if self is Dtype.float32 else torch.float64


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
Output = Annotated[Path, typer.Option(callback=check_folder, help="The folder to write into.")]
