"""NumPy files of samples and targets, and the decision that a target is classes."""

import gzip
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.checks import as_path, one_of, shown
from shoal.data.dataset import Dataset

MOST_CLASSES = 20
"""Largest number of values that are classes, or one-hot columns, without being asked for."""
_LEAST_SEEN = 5  # occurrences of each whole number that is a class
_LARGEST = 2**31  # bytes of a file, decompressed
_SAMPLES, _LABELS = ("X", "x", "features"), ("y", "labels")  # names of arrays in an .npz file


def read_numpy(
    path: str | os.PathLike[str],
    labels: str | os.PathLike[str] | None = None,
    *,
    task: Literal["classification", "regression"] | None = None,
    dtype: torch.dtype | None = None,
) -> Dataset:
    """Read samples and labels from an ``.npz`` file, or from two ``.npy`` files.

    Args:
        path: An ``.npz`` file with an array ``X`` (or ``x``, or ``features``) and, if there are
            labels, ``y`` (or ``labels``); or an ``.npy`` file with the samples. The first axis
            counts the samples; (n, d) are vectors, (n, height, width) and (n, channels, height,
            width) images. Unsigned bytes become numbers in [0, 1]; other numbers are unchanged.
        labels: An ``.npy`` file with the labels, if ``path`` is one: numbers, bools or text.
        task: ``"classification"`` or ``"regression"``; by default as for :func:`read_csv`.
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
    x = x[:, None] if x.ndim == 3 else x
    return make_dataset(x, y, name=file.stem, source=source, label="y", task=task, dtype=dtype)


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


def _arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the array in an .npy file, or samples and labels (if there) in an .npz file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if path.suffix == ".npz":
                with zipfile.ZipFile(file) as archive:
                    size = sum(member.file_size for member in archive.infolist())
                file.seek(0)
            loaded = np.load(file, allow_pickle=False) if size <= _LARGEST else {}
            if isinstance(loaded, np.ndarray):
                return loaded, None
            names = list(loaded)
            x, y = (
                next((loaded[name] for name in keys if name in names), None)
                for keys in (_SAMPLES, _LABELS)
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


def make_dataset(
    x: NDArray[Any],
    y: NDArray[Any] | None,
    *,
    name: str,
    source: str,
    label: str,
    task: str | None,
    columns: tuple[str, ...] = (),
    notes: Sequence[str] = (),
    dtype: torch.dtype | None,
) -> Dataset:
    """A dataset whose target is classes or real numbers, with a note on which.

    Args:
        x: Samples.
        y: Numbers, bools or text; ``None`` without a target.
        name: Name of the dataset.
        source: The file.
        label: Name of the target.
        task: ``"classification"``, ``"regression"``, or ``None`` to decide by the values.
        columns: Name of the table's column that each feature stands for.
        notes: Sentences on earlier decisions.
        dtype: Dtype of samples and real targets.
    """
    kind = np.uint8 if x.dtype == np.uint8 else np.float64
    samples = torch.from_numpy(np.array(x, dtype=kind, order="C"))
    targets, classes = None, list[str]()
    if y is not None:
        values, classes, note = _decided(y, label, task, source)
        targets, notes = torch.from_numpy(values), [*notes, note]
    return Dataset(
        samples, targets, name, tuple(classes), source, columns=columns, notes=tuple(notes)
    ).as_floats(dtype)


def _decided(
    y: NDArray[Any], label: str, task: str | None, source: str
) -> tuple[NDArray[Any], list[str], str]:
    """Targets as class indices or as numbers, the names of the classes, and a sentence."""
    if task is not None:
        one_of("task", task, ("classification", "regression"))
    distinct, indices, counts = np.unique(y, return_inverse=True, return_counts=True)
    count, rarest = len(distinct), int(counts.argmin())
    named = y.dtype.kind in "bU"
    whole = not named and bool((distinct == np.round(distinct)).all())
    names = [str(int(one)) if whole else str(one) for one in distinct.tolist()]
    few = whole and count <= MOST_CLASSES and int(counts[rarest]) >= _LEAST_SEEN
    is_class = named or few if task is None else task == "classification"
    if not is_class:
        if y.dtype.kind == "U":
            raise damaged(Path(source), "numbers for task='regression'", f"text in {label!r}")
        note = f"Target {label!r}: real numbers."
        if whole and task is None and count <= MOST_CLASSES:
            note = (
                f"Target {label!r}: real numbers, because {names[rarest]} occurs only "
                f"{counts[rarest]} times; task='classification' makes {count} classes of it."
            )
        return y.astype(np.float64), [], note
    if count > max(MOST_CLASSES, len(y) // 2):
        remedy = "" if y.dtype.kind == "U" else "; task='regression' keeps the numbers"
        values = f"{count} different values in {len(y)} rows{remedy}"
        raise damaged(Path(source), f"classes in {label!r}", values)
    note = f"Target {label!r}: {count} classes"
    note += "." if named or task else " (whole numbers; task='regression' keeps the numbers)."
    return indices.astype(np.int64), names, note
