"""What a command leaves in a folder: all of it, or nothing."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from shoal.core.files import json_text, write_together
from shoal.pages.figures import Figure, figure_writers


def save_results(
    folder: Path,
    *,
    pages: Mapping[str, str] | None = None,
    documents: Mapping[str, Any] | None = None,
    figures: Mapping[str, Figure] | None = None,
    others: Mapping[str, Callable[[Path], object]] | None = None,
) -> list[Path]:
    """Write pages, documents and figures into a folder, which is made if it is not there.

    Args:
        folder: Where to.
        pages: The texts of files by their names.
        documents: Plain values that become JSON, by the names of their files.
        figures: Figures by their names, to which ``.png`` and ``.svg`` are added.
        others: What else writes a file at the path that it is given, by the name of the file.

    Returns:
        The files. After an error there are none, and what was there before is as it was.
    """
    texts = {**(pages or {}), **{n: json_text(d) for n, d in (documents or {}).items()}}
    writers: dict[str, Callable[[Path], object]] = {n: _text(t) for n, t in texts.items()}
    for name, figure in (figures or {}).items():
        writers |= figure_writers(figure, name)
    return write_together(folder, {**writers, **(others or {})})


def forget_parts(files: Iterable[Path]) -> None:
    """Remove what an interrupted command left beside these files, which are complete."""
    for part in {file.with_stem("partial") for file in files} - set(files):
        part.unlink(missing_ok=True)


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, encoding="utf-8", newline="\n")
