"""Data of one's own in CSV files."""

import csv
import io
import math
import os
import re
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.data.dataset import Dataset
from shoal.data.files import damaged, read_content
from shoal.data.tables import table_dataset

__all__ = ["read_columns", "read_csv"]

_Row = tuple[int, list[str]]  # the number of its last line, and its cells


def read_csv(
    path: str | os.PathLike[str],
    *,
    label: str | int,
    header: bool | None = None,
    regression: bool = False,
    delimiter: str = ",",
    dtype: torch.dtype | None = None,
) -> Dataset:
    r"""Read samples and labels from a CSV file, plain or gzipped, in UTF-8.

    Args:
        path: The file: one sample per row, numbers in all columns but that of the labels.
        label: The column of the labels: its name, or its index (negative ones count from the end).
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
    if isinstance(label, bool) or not isinstance(label, str | int):
        raise TypeError(f"label must be the name or the index of a column, got {label!r}")
    file = Path(path)
    rows = _rows(file, delimiter)
    if len(rows[0][1]) < 2:
        wanted = f"a column of labels and at least one of features, separated by {delimiter!r}"
        raise damaged(file, wanted, "a single column")
    has_header = _has_header(rows[0][1], label) if header is None else header
    column = _column(file, rows[0][1], label, has_header)
    names = [row[column] for _, row in rows]
    if header is None and not has_header and not _is_number(names[0]) and _all_integral(names[1:]):
        raise ValueError(f"{file}: the first row may be a header: say header=True or header=False")
    samples = rows[1:] if has_header else rows
    if not samples:
        raise damaged(file, "at least one sample", "a header alone")
    features = _numbers(file, samples, [i for i in range(len(rows[0][1])) if i != column])
    labels = _labels(file, samples, column, regression=regression)
    name = file.name.removesuffix(".gz").removesuffix(".csv")
    return table_dataset(features, labels, name=name, source=str(file), dtype=dtype)


def read_columns(
    path: Path, *, without: str | int | None = None, delimiter: str = ","
) -> NDArray[np.float64]:
    """The numbers in all columns of a CSV file but one, as a matrix.

    Args:
        path: The file, as for :func:`read_csv`.
        without: The name or the index of a column to leave out.
        delimiter: The character between cells.

    Raises:
        ValueError: As for :func:`read_csv`.
    """
    rows = _rows(path, delimiter)
    first = rows[0][1]
    has_header = _has_header(first, without)
    column = None if without is None else _column(path, first, without, has_header)
    samples = rows[1:] if has_header else rows
    if not samples:
        raise damaged(path, "at least one sample", "a header alone")
    if len(first) == 1 and not _is_number(samples[0][1][0]):
        raise damaged(path, f"columns separated by {delimiter!r}", "a single one, not of numbers")
    return _numbers(path, samples, [i for i in range(len(first)) if i != column])


def _rows(path: Path, delimiter: str) -> list[_Row]:
    """The rows that are not empty, all of the same length."""
    try:
        text = read_content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise damaged(path, "text in UTF-8", str(error)) from error
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except csv.Error as error:
        raise damaged(path, "CSV", f"{error} in line {reader.line_num}") from error
    if not rows:
        raise damaged(path, "at least one row", "empty lines alone")
    width = len(rows[0][1])
    for line, row in rows:
        if len(row) != width:
            raise damaged(path, f"{width} cells in each row", f"{len(row)} in line {line}")
    return rows


def _has_header(first: list[str], label: str | int | None) -> bool:
    return isinstance(label, str) or not any(_is_number(cell) for cell in first)


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
    if not _is_number(cell) or not math.isfinite(float(cell)):
        raise damaged(path, "finite numbers", f"{cell!r} in line {line}, column {column}")
    return float(cell)


def _numbers(path: Path, rows: list[_Row], columns: list[int]) -> NDArray[np.float64]:
    return np.array([[_number(path, line, i, row[i]) for i in columns] for line, row in rows])


def _labels(path: Path, rows: list[_Row], column: int, *, regression: bool) -> NDArray[np.generic]:
    if regression:
        return _numbers(path, rows, [column])[:, 0]
    cells = [row[column] for _, row in rows]
    if _all_integral(cells):
        return np.array([int(cell) for cell in cells])
    for line, row in rows:
        cell = row[column]
        if not cell or cell.lower() == "nan":
            raise damaged(path, "a label in each row", f"{cell!r} in line {line}")
        if _is_number(cell) and not _integral(cell):
            raise damaged(
                path,
                "integers or names as labels (say regression=True for real numbers)",
                f"{cell!r} in line {line}",
            )
    return np.array(cells)
