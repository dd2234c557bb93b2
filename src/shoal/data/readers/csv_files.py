"""Data of one's own in CSV files."""

import csv
import io
import itertools
import math
import os
import re
import reprlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.checks import as_path, flag, shown
from shoal.data.dataset import Dataset
from shoal.data.files import damaged, read_content
from shoal.data.readers.arrays import table_dataset
from shoal.data.readers.registry import reads_files
from shoal.data.transforms.images import scale_pixels


def read_csv(
    path: str | os.PathLike[str],
    *,
    label: str | int | None = None,
    header: bool | None = None,
    regression: bool = False,
    delimiter: str = ",",
    dtype: torch.dtype | None = None,
) -> Dataset:
    r"""Read samples and labels from a CSV file, plain or gzipped, in UTF-8.

    Args:
        path: The file: one sample per row, numbers in all columns but that of the labels.
        label: The column of the labels: its name, or its index (negative ones count from the end);
            without it there are none.
        header: Whether the first row holds the names of the columns. By default it does if
            ``label`` is a name or no cell of it is a number.
        regression: Whether labels are real numbers; otherwise each distinct label is a class.
        delimiter: The character between cells.
        dtype: Of the samples; PyTorch's default dtype by default.

    Returns:
        The dataset. ``classes`` are the labels that occur, sorted (integers by size), and ``y``
        their indices.

    Raises:
        FileNotFoundError: If the file does not exist.
        TypeError: If ``label`` is neither a name nor an index.
        ValueError: If rows have different lengths, a cell is empty, no number, NaN or infinite, the
            column does not exist, or the first row may or may not be a header.

    Example:
        >>> import pathlib, tempfile
        >>> from shoal import data
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "flowers.csv"
        ...     _ = path.write_text("length,width,kind\n5.1,3.5,iris\n4.9,3.0,rose\n")
        ...     flowers = data.read_csv(path, label="kind")
        >>> flowers.x, flowers.classes
        (tensor([[5.1000, 3.5000],
                [4.9000, 3.0000]]), ('iris', 'rose'))
    """
    if isinstance(label, bool) or not isinstance(label, str | int | None):
        raise TypeError(f"label must be the name or the index of a column, got {label!r}")
    if header is not None:
        flag("header", header)
    flag("regression", regression)
    file = as_path("path", path)
    found = _dataset(file, delimiter, label, header, regression=regression)
    return scale_pixels(found, dtype=dtype)


@reads_files(".csv", ".csv.gz")
def read_csv_table(path: Path, label: str | None) -> Dataset:
    """The inputs with classes, or else with real targets, in the column that is named."""
    column = int(label) if label is not None and re.fullmatch("-?[0-9]+", label) else label
    try:
        return _dataset(path, ",", column, None, regression=False)
    except ValueError as error:
        if label is None:
            hint = "; --label COLUMN says where the labels are, by name or index"
            raise ValueError(f"{error}{hint if ', column' in str(error) else ''}") from None
        try:
            return _dataset(path, ",", column, None, regression=True)
        except ValueError as other:  # which knows the cell that is no number
            raise (other if "regression=True" in str(error) else error) from None


def _dataset(
    file: Path,
    delimiter: str,
    label: str | int | None,
    header: bool | None,
    *,
    regression: bool,
) -> Dataset:
    table = _read(file, delimiter, label, header)
    if not table.features.shape[1]:
        wanted = f"a column of labels and at least one of features, separated by {delimiter!r}"
        raise damaged(file, wanted, "a single column")
    labels = None if label is None else _labels(file, table, regression=regression)
    name = file.name.removesuffix(".gz").removesuffix(".csv")
    return table_dataset(table.features, labels, name=name, source=str(file))


class _Table(NamedTuple):
    """A file without its header: numbers, and one column as it is.

    Attributes:
        features: The numbers.
        column: The index of the other column.
        cells: What stands there.
        lines: Where, by the numbers of lines.
    """

    features: NDArray[np.float64]
    column: int | None
    cells: list[str]
    lines: "array[int]"


def _read(path: Path, delimiter: str, label: str | int | None, header: bool | None) -> _Table:
    """Read a file row by row: of numbers the values are kept, not the text, which is far larger."""
    rows = _rows(path, delimiter)
    head = next(rows)
    first = head[1]
    named = isinstance(label, str) or not any(map(_is_number, first))
    has_header = named if header is None else header
    column = None if label is None else _column(path, first, label, has_header)
    columns = [index for index in range(len(first)) if index != column]
    numbers, lines = array("d"), array("q")
    cells: list[str] = []
    same: dict[str, str] = {}  # each text once
    for line, row in rows if has_header else itertools.chain([head], rows):
        if len(first) == 1 and column is None and not lines and not _is_number(row[0]):
            raise damaged(
                path, f"columns separated by {delimiter!r}", "a single one, not of numbers"
            )
        lines.append(line)
        if column is not None:
            cells.append(same.setdefault(row[column], row[column]))
        numbers.extend(_number(path, line, index, row[index]) for index in columns)
    if not lines:
        raise damaged(path, "at least one sample", "a header alone")
    unclear = header is None and not has_header and column is not None
    if unclear and not _is_number(cells[0]) and _all_integral(cells[1:]):
        raise ValueError(f"{path}: the first row may be a header: say header=True or header=False")
    features = np.array(numbers).reshape(len(lines), len(columns))
    return _Table(features, column, cells, lines)


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, all of the same length, with the numbers of their last lines."""
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise ValueError(f"delimiter must be one character, got {shown(delimiter)}")
    text = io.TextIOWrapper(io.BytesIO(read_content(path)), encoding="utf-8-sig", newline="")
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    width = None
    try:
        for row in reader:
            if not row:
                continue
            width = len(row) if width is None else width
            if len(row) != width:
                got = f"{len(row)} in line {reader.line_num}"
                raise damaged(path, f"{width} cell{'s' * (width != 1)} in each row", got)
            yield reader.line_num, [cell.strip() for cell in row]
    except UnicodeDecodeError as error:
        raise damaged(path, "text in UTF-8", str(error)) from error
    except csv.Error as error:
        raise damaged(path, "CSV", f"{error} in line {reader.line_num}") from error
    if width is None:
        raise damaged(path, "at least one row", "empty lines alone")


def _column(path: Path, first: list[str], label: str | int, header: bool) -> int:
    if isinstance(label, int):
        if not -len(first) <= label < len(first):
            raise damaged(path, f"a column {label}", f"{len(first)} columns")
        return label % len(first)
    if not header:
        raise ValueError(f"label must be an index if there is no header, got {label!r}")
    if first.count(label) != 1:
        raise damaged(path, f"one column named {label!r}", f"the columns {', '.join(first)}")
    return first.index(label)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # which Python allows between digits


def _integral(cell: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9]+", cell) is not None


def _all_integral(cells: list[str]) -> bool:
    return bool(cells) and all(map(_integral, cells))


def _number(path: Path, line: int, column: int, cell: str) -> float:
    value = float(cell) if _is_number(cell) else math.nan
    if not math.isfinite(value):
        place = f"line {line}, column {column}"
        raise damaged(path, "finite numbers", f"{reprlib.repr(cell)} in {place}")
    return value


def _labels(path: Path, table: _Table, *, regression: bool) -> NDArray[np.generic]:
    places = zip(table.lines, table.cells, strict=True)
    if regression:
        column = table.column or 0
        return np.array([_number(path, line, column, cell) for line, cell in places])
    if _all_integral(table.cells):
        return np.array([int(cell) for cell in table.cells])
    for line, cell in places:
        if not cell or cell.lower() == "nan":
            raise damaged(path, "a label in each row", f"{cell!r} in line {line}")
        if _is_number(cell) and not _integral(cell):
            raise damaged(
                path,
                "integers or names as labels (say regression=True for real numbers)",
                f"{cell!r} in line {line}",
            )
    return np.array(table.cells, dtype=object)  # in an array of text all are as long as the longest
