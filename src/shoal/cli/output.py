"""What commands show: tables for people, one document for machines, progress for the patient."""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["command_line", "console", "emit", "progress", "working"]


def console() -> Console:
    """Where tables go: stdout, at least wide enough for them where it is not a terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=max(100, found.width))


def command_line() -> str:
    """What was typed, for a shell."""
    return shlex.join(["shoal", *sys.argv[1:]])


def emit(document: Any) -> None:
    """Print the document of ``--json``."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


@contextmanager
def progress(*, quiet: bool) -> Iterator[Progress]:
    """Progress with the time left, on stderr if that is a terminal, and gone at the end."""
    errors = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=quiet or not errors.is_terminal,
    )
    with bar:
        yield bar


@contextmanager
def working(text: str, *, quiet: bool) -> Iterator[None]:
    """Show that something is being done that cannot say how far it is."""
    with progress(quiet=quiet) as bar:
        bar.add_task(text, total=None)
        yield
