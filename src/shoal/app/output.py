"""Output of commands: tables, a JSON document, pages, figures, progress."""

import io
import os
import platform
import shlex
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal import __version__
from shoal.core.figures import Figure, empty_figure, require_matplotlib, style
from shoal.core.files import json_text, write_json, write_text, write_whole

if TYPE_CHECKING:
    from jinja2 import Template

    from shoal.app.sections import Findings
    from shoal.core.words import Part, Row

_INTERVAL = 4.0  # seconds between lines of progress in a pipe
_MARKS = {None: ("  ", ""), True: ("✓ ", "green"), False: ("✗ ", "red")}


def note(text: str) -> None:
    """Print a line on stderr."""
    typer.echo(" ".join(text.split()), err=True)


def console() -> Console:
    """The console of stdout, which shows text as it is, at least 100 columns wide in a pipe."""
    stdout = Console(highlight=False, markup=False, emoji=False)
    if not stdout.is_terminal:
        stdout.width = max(100, stdout.width)
    return stdout


def say(text: str, style: str = "") -> None:
    """Print a line on stdout, however long it is."""
    console().print(Text(text, style), soft_wrap=True)


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show progress on stderr; the function that is returned changes the words.

    On a terminal the words are replaced. In a pipe, a line is printed every few seconds.
    """
    shown = Console(stderr=True)
    if shown.is_terminal:
        with shown.status(text) as status:
            yield status.update
        return
    words, begin, stop = [text], time.monotonic(), threading.Event()

    def report() -> None:
        while not stop.wait(_INTERVAL):
            note(f"{words[0]} ({time.monotonic() - begin:.0f} s)")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield lambda changed: words.__setitem__(0, changed)
    finally:
        stop.set()
        thread.join()


def command_line() -> str:
    """The command line, for a shell."""
    return shlex.join(["shoal", *sys.argv[1:]])


class RowTable(Table):
    """A table of quantities, values and meanings.

    Args:
        title: The title, above it.
    """

    def __init__(self, title: str) -> None:
        super().__init__(title=Text(title), title_justify="left")
        self.add_column("", no_wrap=True)
        for name in ("value", "meaning"):
            self.add_column(name, overflow="fold")

    def add_rows(self, rows: "Iterable[Row]") -> None:
        """Add rows, with a mark at those of a checklist."""
        for row in rows:
            self.add_row(
                Text.assemble(_MARKS[row.holds], row.quantity), Text(row.value), Text(row.meaning)
            )

    def add_part(self, title: str, rows: "Iterable[Row]") -> None:
        """Add rows below a title."""
        self.add_section()
        self.add_row(Text(title, "bold"), "", "")
        self.add_rows(rows)


def show_rows(title: str, rows: "Iterable[Row]") -> None:
    """Print a table of rows."""
    table = RowTable(title)
    table.add_rows(rows)
    console().print(table)


def prepare(folder: Path | None) -> None:
    """Make the folder of ``--output``, before anything is computed for it.

    Raises:
        ImportError: If a package that makes pages and figures is not installed.
        OSError: If the folder cannot be made or written to.
    """
    if folder is not None:
        template("page.html")
        require_matplotlib()
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"--output must be a folder that can be written to, got {folder}")


def save(folder: Path, contents: Mapping[str, Any]) -> list[Path]:
    """Write files into a folder, each as a whole: an error leaves old files unchanged.

    Args:
        folder: The folder.
        contents: By name: a text, plain values that become JSON, or a figure, to whose name
            ``.png`` and ``.svg`` are added.
    """
    files: list[Path] = []
    for name, value in contents.items():
        if "." in name:
            (write_text if isinstance(value, str) else write_json)(folder / name, value)
            files.append(folder / name)
            continue
        for kind in ("png", "svg"):
            files.append(folder / f"{name}.{kind}")
            write_whole(files[-1], partial(Path.write_bytes, data=image_bytes(value, kind)))
    return files


def conclude(record: Any, show: Callable[[], None], files: Sequence[Path], *, json: bool) -> None:
    """Print the result: as one JSON document, or by ``show`` with the names of the files."""
    if json:
        typer.echo(json_text(record), nl=False)
        return
    show()
    if files:
        say(f"Written: {', '.join(map(str, files))}")
    else:
        note("--output FOLDER saves the report, the figures and the numbers.")


def template(name: str) -> "Template":
    """One of the templates beside this file."""
    if find_spec("jinja2") is None:
        raise ImportError("reports need Jinja2, which is not here: pip install 'shoal-deq[plots]'")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("shoal.app"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def render_page(
    title: str,
    lead: str,
    parts: "Sequence[tuple[str, str, Findings | Part]]",
    *,
    device: torch.device | str = "cpu",
    command: str | None = None,
    notes: Sequence[str] = (),
    verdict: str = "",
    criterion: str = "",
    theory: Sequence[str] = (),
) -> str:
    """An HTML page that refers to nothing outside of itself.

    Args:
        title: The title.
        lead: A line below it.
        parts: Name, title and contents of each part.
        device: The device of the computation.
        command: The command that makes the page; by default the command line.
        notes: Sentences below the lead.
        verdict: The answer.
        criterion: What the marks of sections mean.
        theory: Names of the parts that stand below, as theory.
    """
    return template("page.html").render(
        title=title,
        lead=lead,
        notes=notes,
        verdict=verdict,
        criterion=criterion,
        theory=theory,
        sections=[_context(*part) for part in parts],
        command=command_line() if command is None else command,
        versions=versions(),
        machine=_machine(torch.device(device)),
    )


def _context(name: str, title: str, part: "Findings | Part") -> dict[str, Any]:
    """The values of a part for the template."""
    plot = None
    if part.panel is not None:
        with style():
            plot = empty_figure(4.7, 3.4)  # so small that its text is as large as that of a page
            part.panel(plot.subplots())
    return {
        "name": name,
        "title": title,
        "rows": [row for row in part.rows if row.holds is None],
        "checks": [row for row in part.rows if row.holds is not None],
        "notes": part.notes,
        "error": getattr(part, "error", None),
        "check": getattr(part, "check", ""),
        "holds": getattr(part, "holds", None),
        "plot": None if plot is None else _link(plot),
        "figure": None if part.figure is None else _link(part.figure),
    }


def _link(figure: Figure) -> str:
    """A figure as a data URL."""
    return f"data:image/svg+xml;base64,{b64encode(image_bytes(figure, 'svg')).decode()}"


def image_bytes(figure: Figure, kind: str) -> bytes:
    """A figure as ``"png"`` or ``"svg"``; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with style():
        options: dict[str, Any] = {"dpi": 160} if kind == "png" else {"metadata": {"Date": None}}
        figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()


def versions() -> dict[str, str]:
    """The versions of the packages that the numbers depend on."""
    packages = [name for name in ("torch", "numpy", "scipy", "matplotlib") if find_spec(name)]
    base = {"shoal": __version__, "python": platform.python_version()}
    return base | {name: version(name) for name in packages}


def _machine(device: torch.device) -> str:
    """The machine, in a few words."""
    words = [platform.system(), platform.machine(), f"{os.cpu_count()} cores"]
    if device.type == "cuda":
        words.append(torch.cuda.get_device_name(device))
    return ", ".join(words)
