"""CSV files of samples and targets."""

import csv
import io
import os
import re
import reprlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.checks import as_path, flag, items, shown
from shoal.data.arrays import MOST_CLASSES, damaged, make_dataset, read_bytes
from shoal.data.dataset import Dataset

_SEPARATORS = ",;\t| "  # a blank only where no other splits the rows
_TRIED = 20  # rows from which the separator is found
_MISSING = frozenset(("", "na", "n/a", "nan", "null", "?", "inf", "-inf", "#n/a"))
_DATE = re.compile(r"\d{4}-\d{1,2}(-\d{1,2})?([T ].*)?|\d{1,2}([./-])\d{1,2}\3\d{2,4}.*|\d+:\d+.*")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)?")


def read_csv(
    path: str | os.PathLike[str],
    *,
    label: str | int | None = None,
    header: bool | None = None,
    sep: str | None = None,
    task: Literal["classification", "regression"] | None = None,
    drop: Iterable[str | int] = (),
    drop_missing: bool = False,
    dtype: torch.dtype | None = None,
) -> Dataset:
    r"""Read samples and targets from a CSV file, plain or gzipped, in UTF-8 or UTF-16.

    Columns of numbers are kept. A column of text with at most 20 different values becomes one
    column of zeros and ones for each value (a single one for two values). Dates, free text, and
    columns that mix numbers and text are refused by name. ``notes`` of the result lists every
    decision.

    Args:
        path: File with one sample per row.
        label: Name of the target column, or its index (negative indices count from the end; an
            index may be text); ``None`` if there is no target.
        header: Whether the first row contains column names. By default it does if none of its
            cells is a number, or one is ``label``, which must not be a number; any other first row
            with numbers is an error that asks.
        sep: Character between cells; by default the one that splits the first rows alike.
        task: ``"classification"`` or ``"regression"``. By default text, and at most 20 whole
            numbers that occur 5 times or more each, are classes; other numbers are real targets.
        drop: Names or indices of columns to leave out.
        drop_missing: Whether to leave out rows with missing values, which are an error otherwise.
        dtype: Floating-point dtype of the samples; PyTorch's default dtype by default.

    Returns:
        The dataset. ``classes`` are the distinct labels, sorted (numbers by size), and ``y`` their
        indices.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file cannot be read in one way only; the message names the remedy.

    Example:
        >>> import pathlib, tempfile
        >>> from shoal import data
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "flowers.csv"
        ...     _ = path.write_text("length;color;kind\n5.1;red;iris\n4.9;blue;rose\n")
        ...     flowers = data.read_csv(path, label="kind")
        >>> flowers.x, flowers.classes
        (tensor([[5.1000, 1.0000],
                [4.9000, 0.0000]]), ('iris', 'rose'))
    """
    if isinstance(label, bool) or not isinstance(label, str | int | None):
        raise TypeError(f"label must be the name or the index of a column, got {label!r}")
    if header is not None:
        flag("header", header)
    if sep is not None and not (isinstance(sep, str) and len(sep) == 1):
        raise ValueError(f"sep must be one character, got {shown(sep)}")
    flag("drop_missing", drop_missing)
    file = as_path("path", path)
    text = _decoded(file)
    separator = _separator(text) if sep is None else sep
    rows, lines = _rows(file, text, separator)
    named = _has_header(file, rows, label) if header is None else header
    width, unnamed = len(rows[0]), named and rows[0][0] == ""
    names = [str(place) for place in range(width)]
    if named:
        names = [name or f"column {place}" for place, name in enumerate(rows[0])]
        rows, lines = rows[1:], lines[1:]
    if not rows:
        raise damaged(file, "at least one sample", "a header alone")
    target = None if label is None else _place(file, names, label, named)
    left_out = {_place(file, names, one, named) for one in items("drop", drop)} - {target}
    word = {",": "comma", "\t": "tab", " ": "space"}.get(separator, repr(separator))
    notes = [f"Separator: {word}; {'a' if named else 'no'} header."]
    columns = {
        place: _Column(file, names[place], np.array(cells, object), np.array(lines))
        for place, cells in enumerate(zip(*rows, strict=True))
        if place not in left_out
    }
    if separator != ",":
        for place, column in columns.items():
            if column.has_decimal_commas():
                cells = [cell.replace(",", ".") for cell in column.cells]
                columns[place] = replace(column, cells=np.array(cells, object))
                notes.append(f"Column {column.name!r} has decimal commas.")
    if unnamed and 0 in columns and target != 0 and columns[0].numbers_rows():
        notes.append("The first column has no name and numbers the rows; it is left out.")
        del columns[0]
    missing = np.logical_or.reduce([column.missing for column in columns.values()])
    if missing.any():
        labels = None if target is None else columns[target]
        _check_missing(list(columns.values()), missing, labels, drop_missing)
        notes.append(f"{missing.sum()} of {len(rows)} rows have missing values and are left out.")
        columns = {place: column.take(~missing) for place, column in columns.items()}
    y = None if target is None else columns.pop(target)
    if not columns:
        raise damaged(file, f"columns besides the label, separated by {separator!r}", "none")
    parts, titles = [], list[str]()
    for column in columns.values():
        part, note = column.features()
        parts.append(part)
        titles += [column.name] * part.shape[1]
        notes += note
    return make_dataset(
        np.hstack(parts),
        None if y is None else y.target(task),
        name=file.name.removesuffix(".gz").removesuffix(".csv"),
        source=str(file),
        label="" if y is None else y.name,
        task=task,
        columns=tuple(titles),
        notes=notes,
        dtype=dtype,
    )


@dataclass(frozen=True, eq=False)
class _Column:
    """The cells of a column, and the lines that they stand in."""

    file: Path
    name: str
    cells: NDArray[Any]
    lines: NDArray[Any]

    @cached_property
    def values(self) -> NDArray[Any]:
        """The numbers; NaN where a cell is none."""
        return _numbers(self.cells)

    @cached_property
    def missing(self) -> NDArray[Any]:
        """Whether each cell is empty, or stands for a missing value."""
        if np.isfinite(self.values).all():
            return np.zeros(len(self.cells), bool)
        return np.array([cell.lower() in _MISSING for cell in self.cells])

    def take(self, rows: NDArray[Any]) -> "_Column":
        """Some rows."""
        return replace(self, cells=self.cells[rows], lines=self.lines[rows])

    def has_decimal_commas(self) -> bool:
        """Whether its numbers are written like 1,5."""
        return any("," in cell for cell in self.cells) and all(
            _DECIMAL_COMMA.fullmatch(cell) or cell.lower() in _MISSING for cell in self.cells
        )

    def numbers_rows(self) -> bool:
        """Whether it counts from 0 or 1."""
        return bool((np.diff(self.values) == 1).all()) and self.values[0] in (0, 1)

    def features(self) -> tuple[NDArray[Any], list[str]]:
        """The columns of numbers that stand for it, and sentences about them."""
        is_text = ~np.isfinite(self.values)
        if not is_text.any():
            return self.values[:, None], []
        first = int(is_text.argmax())
        if not is_text.all():
            raise self._refusal("numbers and text such as", first)
        if all(_DATE.fullmatch(cell) for cell in self.cells[:_TRIED]):
            raise self._refusal("dates or times, such as", first)
        distinct = sorted(set(self.cells))
        if len(distinct) > MOST_CLASSES:
            raise self._refusal(f"{len(distinct)} different texts, such as", 0)
        kept = distinct[1:] if len(distinct) == 2 else distinct
        words = f"{', '.join(map(shown, distinct[:3]))}{', ...' if len(distinct) > 3 else ''}"
        words = f"Column {self.name!r} is text with {len(distinct)} values ({words}), one-hot."
        return np.stack([(self.cells == value).astype(float) for value in kept], 1), [words]

    def target(self, task: str | None) -> NDArray[Any]:
        """The target, as numbers or as text."""
        is_text = ~np.isfinite(self.values)
        if not is_text.any():
            return self.values
        if task == "regression" or (self.values[~is_text] % 1 != 0).any():
            got = self.place(int(is_text.argmax()))
            raise damaged(self.file, f"numbers in the target column {self.name!r}", got)
        return self.cells.astype(str)

    def _refusal(self, words: str, row: int) -> ValueError:
        return ValueError(
            f"{self.file}: column {self.name!r} holds {words} {self.place(row)}: make it numbers, "
            f"or leave it out with drop={self.name!r}"
        )

    def place(self, row: int) -> str:
        """A cell and its line, in words."""
        return f"{reprlib.repr(self.cells[row])} in line {self.lines[row]}"


def _decoded(path: Path) -> str:
    content = read_bytes(path)
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise damaged(path, "text in UTF-8", f"{error}; save it as 'CSV UTF-8'") from None
    if "\0" in text:
        raise damaged(path, "text in UTF-8", "zero bytes; save it as 'CSV UTF-8'")
    return text


def _separator(text: str) -> str:
    """The character that splits the first rows into the most cells, as many in each."""
    start = text.lstrip()[:100_000]
    best, most = ",", 1
    for separator in _SEPARATORS:
        reader = csv.reader(io.StringIO(start, newline=""), delimiter=separator,
                            skipinitialspace=True)  # fmt: skip
        rows = [row for row, _ in zip(filter(None, reader), range(_TRIED), strict=False)]
        widths = {len(row) for row in rows[:-1] or rows}  # the last may be cut off
        if separator == " " and most > 1:
            break
        if len(widths) == 1 and (width := widths.pop()) > most:
            best, most = separator, width
    if most == 1:  # rows of different lengths: the error will say which
        best = max(_SEPARATORS[:-1], key=Counter(start.partition("\n")[0]).__getitem__)
    return best


def _rows(path: Path, text: str, separator: str) -> tuple[list[list[str]], list[int]]:
    """The stripped cells of each row that is not empty, and the number of its last line."""
    rows, lines = list[list[str]](), list[int]()
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True
    )
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if rows and len(cells) != len(rows[0]):
                got = f"{len(cells)} in line {reader.line_num}: mend that line, or line {lines[0]}"
                expected = f"{len(rows[0])} cell{'s' * (len(rows[0]) != 1)} in each row"
                raise damaged(path, f"{expected} (separator {separator!r})", got)
            rows.append(cells)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise damaged(path, "CSV", f"{error} in line {reader.line_num}") from None
    if not rows:
        raise damaged(path, "at least one row", "empty lines alone")
    return rows, lines


def _has_header(path: Path, rows: list[list[str]], label: str | int | None) -> bool:
    """Whether the first row has names; an error where that is a guess."""
    first = rows[0]
    if isinstance(label, str) and label in first and not _number_like(label):
        return True
    named = not any(_number_like(cell) for cell in first)
    if named and (len(rows) < 2 or any(_number_like(cell) for row in rows[1:3] for cell in row)):
        return True
    cells = ", ".join(map(reprlib.repr, first[:4])) + (", ..." if len(first) > 4 else "")
    raise ValueError(
        f"{path}: the first row ({cells}) may be names or a sample: say header=True or header=False"
    )


def _number_like(cell: str) -> bool:
    """Whether a cell is a number, or says that one is missing."""
    missing = cell != "" and cell.lower() in _MISSING
    return missing or bool(np.isfinite(_numbers([cell.replace(",", ".")])[0]))


def _place(path: Path, names: list[str], column: str | int, header: bool) -> int:
    """The index of a column, by name or by index."""
    if isinstance(column, str) and header and names.count(column) == 1:
        return names.index(column)
    if isinstance(column, str) and not re.fullmatch(r"-?\d+", column):
        if not header:
            raise ValueError(f"{path}: without a header columns have indices, got {column!r}")
        listed = ", ".join(map(reprlib.repr, names[:20]))
        raise damaged(path, f"one column named {column!r}", f"the columns {listed}")
    if not -len(names) <= int(column) < len(names):
        raise damaged(path, f"a column with index {column}", f"{len(names)} columns")
    return int(column) % len(names)


def _numbers(cells: Iterable[str]) -> NDArray[Any]:
    """The numbers in cells; NaN for others."""

    def number(cell: str) -> float:
        try:
            return np.nan if "_" in cell else float(cell)  # Python allows 1_000
        except ValueError:
            return np.nan

    return np.array([number(cell) for cell in cells])


def _check_missing(
    columns: list[_Column], missing: NDArray[Any], target: _Column | None, drop_missing: bool
) -> None:
    """Refuse missing values, unless their rows are to be left out and others remain."""
    worst = max(columns, key=lambda column: int(column.missing.sum()))
    file, remedy = worst.file, f"drop={worst.name!r}"
    if target is not None and target.missing.all():
        raise ValueError(f"{file}: the target column {target.name!r} is empty")
    if worst.missing.all():
        raise ValueError(f"{file}: column {worst.name!r} is empty; leave it out with {remedy}")
    if not drop_missing:
        first = worst.place(int(worst.missing.argmax()))
        raise ValueError(
            f"{file}: {missing.sum()} of {len(missing)} rows have missing values, most in column "
            f"{worst.name!r} ({first}): leave the rows out with drop_missing=True, "
            f"{'' if worst is target else f'the column with {remedy}, '}or fill them in"
        )
    if missing.all():
        raise ValueError(
            f"{file}: every row has a missing value; leave out columns, the emptiest with {remedy}"
        )
