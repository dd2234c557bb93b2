"""What commands show and write: tables for people, a document for machines, files, progress."""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.core.files import json_text, write_json, write_text, write_whole

if TYPE_CHECKING:
    from shoal.diagnosis.words import Row

_MARKS = {None: ("  ", ""), True: ("✓ ", "green"), False: ("✗ ", "red")}
_CONTRADICTED = ("! ", "yellow")  # by the data


def console() -> Console:
    """The console of stdout, wide enough for tables where it is not a terminal.

    Text is shown as it is, brackets and colons in the names of files too; ``Text`` has styles.
    """
    found = Console(highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = max(100, found.width)
    return found


def note(text: str) -> None:
    """A line on stderr."""
    typer.echo(" ".join(text.split()), err=True)


def say(text: str, style: str = "") -> None:
    """A line on stdout, as long as it is."""
    console().print(Text(text, style), soft_wrap=True)


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal that something is being done; what is returned changes the words."""
    with Console(stderr=True).status(text) as status:
        yield status.update


def command_line() -> str:
    """What was typed, for a shell."""
    return shlex.join(["shoal", *sys.argv[1:]])


def meaning_table(title: str) -> Table:
    """An empty table of quantities, their values and what they mean."""
    table = Table(title=Text(title), title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("value", "meaning"):
        table.add_column(name, overflow="fold")
    return table


def show_rows(title: str, rows: "Iterable[Row]") -> None:
    """Print a table of rows."""
    table = meaning_table(title)
    add_rows(table, rows)
    console().print(table)


def add_rows(table: Table, rows: "Iterable[Row]") -> None:
    """Add rows, with a mark at those of a checklist."""
    for row in rows:
        mark = _CONTRADICTED if row.contradicted else _MARKS[row.holds]
        table.add_row(Text.assemble(mark, row.quantity), Text(row.value), Text(row.meaning))


def prepare(folder: Path | None) -> None:
    """Make the folder of ``--output``, before anything is computed for it.

    Raises:
        ImportError: If what makes pages and figures is not installed.
        OSError: If the folder cannot be made or written to.
    """
    if folder is not None:
        from shoal.app.pages import template
        from shoal.core.figures import require_matplotlib

        template("page.html")
        require_matplotlib()
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass


def save(folder: Path, contents: Mapping[str, Any]) -> list[Path]:
    """Write files into a folder, each as a whole: an error leaves what was there.

    Args:
        folder: Where to.
        contents: By name: a text, plain values that become JSON, or a figure, to whose name
            ``.png`` and ``.svg`` are added.
    """
    files: list[Path] = []
    for name, value in contents.items():
        if "." in name:
            (write_text if isinstance(value, str) else write_json)(folder / name, value)
            files.append(folder / name)
        else:
            from shoal.app.figures import image_of

            for kind in ("png", "svg"):
                file = folder / f"{name}.{kind}"
                write_whole(file, partial(Path.write_bytes, data=image_of(value, kind)))
                files.append(file)
    return files


def conclude(record: Any, show: Callable[[], None], files: Sequence[Path], *, json: bool) -> None:
    """Print what was found: as one document for machines, or for people with the files."""
    if json:
        typer.echo(json_text(record), nl=False)
        return
    show()
    if files:
        say(f"Written: {', '.join(map(str, files))}")
    else:
        note("--output FOLDER saves the report, the figures and the numbers.")
