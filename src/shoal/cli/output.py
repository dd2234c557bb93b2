"""What commands show: tables for people, one document for machines, progress for the patient."""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
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
from rich.table import Table
from rich.text import Text

from shoal.cli.errors import note
from shoal.cli.logs import PlainConsole, state
from shoal.core.files import json_text
from shoal.pages.findings import Row

_MARKS = {None: ("  ", ""), True: ("✓ ", "green"), False: ("✗ ", "red")}
_CONTRADICTED = ("! ", "yellow")  # by the data


def console() -> Console:
    """The console of stdout; wide enough for tables where it is not a terminal.

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


def meaning_table(title: str) -> Table:
    """An empty table of quantities, their values and what they mean."""
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("value", "meaning"):
        table.add_column(name, overflow="fold")
    return table


def add_rows(table: Table, rows: Iterable[Row]) -> None:
    """Add rows, with a mark at those of a checklist."""
    for row in rows:
        mark = _CONTRADICTED if row.contradicted else _MARKS[row.holds]
        table.add_row(Text.assemble(mark, row.quantity), row.value, row.meaning)


def tell_files(files: Sequence[Path], hint: str) -> None:
    """Say which files were written, or how to get some."""
    if files:
        console().print(f"Written: {', '.join(map(str, files))}", soft_wrap=True)
    else:
        note(hint)


def conclude(
    record: Any,
    show: Callable[[], None],
    output: Path | None,
    write: Callable[[Path], Sequence[Path]],
    *,
    saves: str,
    files: Sequence[Path] = (),
) -> None:
    """Write what was found, then print it: as one document for machines, or for people.

    Args:
        record: What was found, as plain values.
        show: Prints it for people.
        output: The folder of ``--output``, if there is one.
        write: Writes it into that folder, and returns the files.
        saves: How to get files, where there are none.
        files: Those that were written before.
    """
    files = [*files, *(() if output is None else write(output))]
    if state.json:
        emit(record)
    else:
        show()
        tell_files(files, saves)


@contextmanager
def progress(*, silent: bool = False) -> Iterator[Progress]:
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
        disable=silent or state.json or not errors.is_terminal,
    )
    with bar:
        yield bar


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show that something is being done that cannot say how far it is."""
    with progress() as bar:
        bar.add_task(text, total=None)
        yield
