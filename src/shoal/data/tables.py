"""CSV and NumPy files of samples and labels."""

import csv
import gzip
import io
import itertools
import math
import os
import re
import reprlib
import zipfile
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.checks import as_path, flag, shown
from shoal.data.dataset import Dataset

_LARGEST = 2**31  # bytes of a file, decompressed
_SAMPLES, _LABELS = ("X", "x", "features"), ("y", "labels")  # names of arrays in an .npz file


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
        path: File with one sample per row, and numbers in all columns except the labels.
        label: Column of the labels: its name, or its index (negative indices count from the end);
            ``None`` if there are no labels.
        header: Whether the first row contains column names. By default it does if ``label`` is a
            name or no cell of the row is a number.
        regression: Whether integer labels are real targets. By default integers and text are
            classes; labels with decimals are always real targets.
        delimiter: Character between cells.
        dtype: Floating-point dtype of the samples; PyTorch's default dtype by default.

    Returns:
        The dataset. ``classes`` are the distinct labels, sorted (integers by size), and ``y`` their
        indices.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If rows have different lengths, a cell is empty, not a number, NaN or infinite,
            the column does not exist, or the first row may or may not be a header.

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
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise ValueError(f"delimiter must be one character, got {shown(delimiter)}")
    file = as_path("path", path)
    rows = _rows(file, delimiter)
    line, first = next(rows)
    no_number = all(math.isnan(_number(cell)) and cell.lower() != "nan" for cell in first)
    has_header = (isinstance(label, str) or no_number) if header is None else header
    column = None if label is None else _column(file, first, label, has_header)
    if len(first) == 1 and column is not None:
        raise damaged(file, f"several columns, separated by {delimiter!r}", "a single column")
    numbers, cells = array("d"), list[tuple[str, int]]()
    for number, row in rows if has_header else itertools.chain([(line, first)], rows):
        for index, cell in enumerate(row):
            if index == column:
                cells.append((cell, number))
            elif math.isfinite(value := _number(cell)):
                numbers.append(value)
            else:
                raise damaged(file, "finite numbers", _shown(cell, number, index))
    if not numbers:
        raise damaged(file, "at least one sample", "a header alone")
    labels = None if column is None else _labels(file, column, cells, regression=regression)
    guessed = header is None and not has_header and len(cells) > 1
    if guessed and math.isnan(_number(cells[0][0])) and all(_is_integer(c) for c, _ in cells[1:]):
        raise ValueError(f"{file}: the first row may be a header: say header=True or header=False")
    x = np.array(numbers).reshape(-1, len(first) - (column is not None))
    name = file.name.removesuffix(".gz").removesuffix(".csv")
    return _dataset(x, labels, name, str(file), dtype)


def read_numpy(
    path: str | os.PathLike[str],
    labels: str | os.PathLike[str] | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> Dataset:
    """Read samples and labels from an ``.npz`` file, or from two ``.npy`` files.

    Args:
        path: An ``.npz`` file with an array ``X`` (or ``x``, or ``features``) and, if there are
            labels, ``y`` (or ``labels``); or an ``.npy`` file with the samples. The first axis
            counts the samples; (n, d) are vectors, (n, height, width) and (n, channels, height,
            width) images. Unsigned bytes become numbers in [0, 1]; other numbers are unchanged.
        labels: An ``.npy`` file with the labels, if ``path`` is one: integers, bools or text for
            classes, floating-point numbers for targets.
        dtype: Floating-point dtype of the samples; PyTorch's default dtype by default.

    Returns:
        The dataset. ``classes`` are the distinct labels, sorted, and ``y`` their indices.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file is damaged, lacks samples, contains pickled objects (they are never
            unpickled), anything but numbers, NaN or infinity; or if the lengths differ.
    """
    file = as_path("path", path)
    if file.suffix not in (".npz", ".npy"):
        raise ValueError(f"path must end in .npz or .npy, got {str(file)!r}")
    if file.suffix == ".npz" and labels is not None:
        raise ValueError(f"labels must be None for an .npz file, got {shown(str(labels))}")
    x, y = _arrays(file)
    where = file if labels is None else as_path("labels", labels)
    y = y if labels is None else _arrays(where)[0]
    if x.ndim not in (2, 3, 4) or x.size == 0:
        raise damaged(file, "samples (n, d), (n, h, w) or (n, c, h, w)", f"shape {x.shape}")
    _check_values(file, "samples: finite real numbers", x, "uif")
    if y is not None and y.shape != x.shape[:1]:
        raise damaged(where, f"{len(x)} labels, one per sample", f"shape {y.shape}")
    if y is not None:
        _check_values(where, "labels: finite numbers or text", y, "buifU")
    source = str(file) if labels is None else f"{file}, {where}"
    return _dataset(x[:, None] if x.ndim == 3 else x, y, file.stem, source, dtype)


def damaged(path: Path, expected: str, got: str) -> ValueError:
    """Return the error for a file with unexpected content."""
    return ValueError(f"{path}: expected {expected}, got {got}")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file that is neither empty nor too large, decompressed if .gz."""
    content, size = b"", path.stat().st_size
    try:
        if path.suffix == ".gz" and size:
            with gzip.open(path) as file:
                content = file.read(_LARGEST + 1)
            size = len(content)
        elif size <= _LARGEST:
            content = path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, "an intact gzip file", str(error)) from None
    if not size:
        raise damaged(path, "data", "an empty file")
    if size > _LARGEST:
        raise damaged(path, f"at most {_LARGEST} bytes", "more")
    return content


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line and the cells of each row that is not empty."""
    text = io.TextIOWrapper(io.BytesIO(read_bytes(path)), encoding="utf-8-sig", newline="")
    reader, width = csv.reader(text, delimiter=delimiter, strict=True), 0
    try:
        for row in filter(None, reader):
            width = width or len(row)
            if len(row) != width:
                got = f"{len(row)} in line {reader.line_num}"
                raise damaged(path, f"{width} cell{'s' * (width != 1)} in each row", got)
            yield reader.line_num, [cell.strip() for cell in row]
    except UnicodeDecodeError as error:
        raise damaged(path, "text in UTF-8", str(error)) from None
    except csv.Error as error:
        raise damaged(path, "CSV", f"{error} in line {reader.line_num}") from None
    if not width:
        raise damaged(path, "at least one row", "empty lines alone")


def _column(path: Path, first: list[str], label: str | int, header: bool) -> int:
    if isinstance(label, int):
        if not -len(first) <= label < len(first):
            raise damaged(path, f"a column for label={label}", f"{len(first)} columns")
        return label % len(first)
    if not header:
        raise ValueError(f"label must be an index if there is no header, got {label!r}")
    if first.count(label) != 1:
        names = ", ".join(map(reprlib.repr, first[:20]))
        raise damaged(path, f"one column for label={label!r}", f"the columns {names}")
    return first.index(label)


def _number(cell: str) -> float:
    """Return the number in a cell, or NaN."""
    try:
        return math.nan if "_" in cell else float(cell)  # Python allows 1_000
    except ValueError:
        return math.nan


def _is_integer(cell: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9]+", cell) is not None


def _labels(
    path: Path, column: int, cells: list[tuple[str, int]], *, regression: bool
) -> NDArray[Any]:
    """Return labels, each with its line, as integers, real numbers or text."""
    if all(_is_integer(cell) for cell, _ in cells) and not regression:
        return np.array([int(cell) for cell, _ in cells])
    values = [_number(cell) for cell, _ in cells]
    decimals = any(
        math.isfinite(value) and not _is_integer(cell)
        for value, (cell, _) in zip(values, cells, strict=True)
    )
    for value, (cell, line) in zip(values, cells, strict=True):
        if cell.lower() in ("", "nan"):
            raise damaged(path, "a label in each row", _shown(cell, line, column))
        if (regression or decimals) and not math.isfinite(value):
            raise damaged(path, "finite numbers as labels", _shown(cell, line, column))
    text = np.array([cell for cell, _ in cells], dtype=object)
    return np.array(values) if regression or decimals else text


def _shown(cell: str, line: int, column: int) -> str:
    return f"{reprlib.repr(cell)} in line {line}, column {column}"


def _arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the array in an .npy file, or samples and labels (if there) in an .npz file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if path.suffix == ".npz":
                with zipfile.ZipFile(file) as archive:
                    size = sum(member.file_size for member in archive.infolist())
                file.seek(0)
            found = np.load(file, allow_pickle=False) if size <= _LARGEST else {}
            if isinstance(found, np.ndarray):
                return found, None
            names = list(found)
            x, y = (
                next((found[name] for name in known if name in names), None)
                for known in (_SAMPLES, _LABELS)
            )
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # a damaged file can fail in any way
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise damaged(path, "intact NumPy arrays of numbers", reason) from None
    if size > _LARGEST:
        raise damaged(path, f"at most {_LARGEST} bytes", f"{size}")
    if x is None:
        raise damaged(path, "an array named X, x or features", ", ".join(names) or "none")
    return x, y


def _check_values(path: Path, expected: str, values: NDArray[Any], kinds: str) -> None:
    if values.dtype.kind not in kinds:
        raise damaged(path, expected, f"dtype {values.dtype}")
    bad = np.argwhere(~np.isfinite(values)) if values.dtype.kind == "f" else np.empty((0, 1))
    if len(bad):
        place = tuple(bad[0].tolist())
        raise damaged(path, expected, f"{values[place]} at {place}")


def _dataset(
    x: NDArray[Any], labels: NDArray[Any] | None, name: str, source: str, dtype: torch.dtype | None
) -> Dataset:
    """Return a dataset: real labels are targets, all others classes."""
    kind = np.uint8 if x.dtype == np.uint8 else np.float64
    samples = torch.from_numpy(np.array(x, dtype=kind, order="C"))
    y, classes = None, list[object]()
    if labels is not None and labels.dtype.kind == "f":
        y = torch.from_numpy(labels.astype(np.float64))
    elif labels is not None:
        distinct, indices = np.unique(labels, return_inverse=True)
        y, classes = torch.from_numpy(indices.astype(np.int64)), distinct.tolist()
    names = tuple(map(str, classes))
    return Dataset(samples, y, name, names, source).as_floats(dtype)
