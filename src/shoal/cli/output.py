"""What commands show: tables for people, one document for machines, progress for the patient."""

import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment

from shoal.core.files import json_text, printable

__all__ = ["PlainConsole", "command_line", "console", "emit", "progress", "working"]


class PlainConsole(Console):
    """A console that shows names from files and headers, and does not do what they say."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What is shown, piece by piece."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


def console() -> Console:
    """Where tables go: stdout, at least wide enough for them where it is not a terminal.

    Text is shown as it is, brackets and colons in the names of files too; ``Text`` has styles.
    """
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    found = PlainConsole(**plain)
    return found if found.is_terminal else PlainConsole(width=max(100, found.width), **plain)


def command_line() -> str:
    """What was typed, for a shell."""
    return shlex.join(["shoal", *sys.argv[1:]])


def emit(document: Any) -> None:
    """Print the document of ``--json``."""
    typer.echo(json_text(document), nl=False)


@contextmanager
def progress(*, quiet: bool) -> Iterator[Progress]:
    """Progress with the time left, on stderr if that is a terminal, and gone at the end."""
    errors = PlainConsole(stderr=True)
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
