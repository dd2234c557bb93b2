"""Tables of quantities with what they mean, and where results were written."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from shoal.cli.errors import note
from shoal.cli.output import console
from shoal.pages.findings import Row

__all__ = ["add_rows", "meaning_table", "tell_files"]

_MARKS = {None: ("  ", ""), True: ("✓ ", "green"), False: ("✗ ", "red")}
_CONTRADICTED = ("! ", "yellow")  # by the data


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
