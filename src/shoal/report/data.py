"""The data that an analysis looks at."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal import data
from shoal.data.csv_files import read_columns
from shoal.data.numpy_sizes import check_size

__all__ = ["FILES", "NAMES", "Data", "load_data"]

NAMES = ("digits", "mnist", "fashion-mnist", "cifar-10", "svhn")  # of ``shoal.data.load``
FILES = (".npy", ".npz", ".csv", ".csv.gz")
_ARRAYS = ("X", "x", "features")  # the inputs in an .npz file, as ``shoal.data.read_numpy`` has it


@dataclass(frozen=True)
class Data:
    """Inputs and where they come from.

    Attributes:
        name: What they are.
        x: The inputs, of shape (n, p).
    """

    name: str
    x: Tensor


def load_data(
    source: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    label: str | None = None,
    n: int | None = None,
    most: int | None = None,
    prepared: bool = True,
) -> Data:
    """Load inputs, center them, and scale them to a mean squared norm of one.

    Args:
        source: One of ``NAMES``, such as ``"digits"``, for :func:`shoal.data.load`, or a file: a
            matrix of shape (n, p) as ``.npy`` or as an array ``X`` in an ``.npz``, or a CSV file.
        dtype: Of the inputs.
        device: Where they go.
        label: A column of a CSV file that is no input, by name or by index.
        n: How many of the first samples to take; all by default.
        most: How many to take at most where ``n`` does not say.
        prepared: Whether to center and scale them.

    Raises:
        FileNotFoundError: If the files of a dataset are not there.
        ImportError: If what reads the data is not installed.
        ValueError: If there is no such data, or it is not a matrix of finite numbers.
    """
    if label is not None and not source.endswith((".csv", ".csv.gz")):
        raise ValueError(f"--label must name a column of a CSV file, got {label!r} for {source}")
    if source in NAMES:
        name, raw = source, _named(source)
    elif source.endswith(FILES):
        name, raw = Path(source).name, torch.as_tensor(_matrix(Path(source), label))
    else:
        raise ValueError(
            f"DATA must be one of {', '.join(NAMES)}, or a file that ends in {', '.join(FILES)}, "
            f"got {source!r}"
        )
    if n is not None and not 2 <= n <= len(raw):
        raise ValueError(f"-n must be between 2 and {len(raw)} for {name}, got {n}")
    x = raw[: most if n is None else n]
    if not prepared:
        return Data(name, x.to(dtype=dtype, device=device))
    largest = x.abs().max() if x.numel() else torch.zeros(())
    x = x / largest if largest > 0 else x  # so that no square overflows
    x = x - x.mean(dim=0)
    size = x.square().sum(dim=1).mean().sqrt()
    if size == 0:
        raise ValueError(f"{name} must have samples that differ")
    return Data(name, (x / size).to(dtype=dtype, device=device))


def _named(name: str) -> Tensor:
    """All digits, or the training samples of another dataset, as vectors."""
    split = "all" if name == "digits" else "train"
    return data.load(name, split=split, dtype=torch.float64).x.flatten(1)


def _matrix(path: Path, label: str | None) -> Any:
    """The inputs in a file, checked."""
    if not path.is_file():
        raise ValueError(f"DATA must be a file that exists, got {str(path)!r}")
    raw = _from_csv(path, label) if path.suffix in (".csv", ".gz") else _from_numpy(path)
    if raw.ndim != 2 or len(raw) < 2 or not raw.shape[1] or raw.dtype.kind not in "fiu":
        raise ValueError(
            "DATA must be a matrix (n, p) of real numbers with at least two rows, "
            f"got {path.name} of shape {raw.shape} and dtype {raw.dtype}"
        )
    matrix = raw.astype(np.float64)
    outside = np.argwhere(~np.isfinite(matrix))
    if len(outside):
        place = tuple(outside[0].tolist())
        raise ValueError(f"DATA must be finite, got {raw[place]} at {place} of {path.name}")
    return matrix


def _from_csv(path: Path, label: str | None) -> Any:
    """All columns but that of the labels."""
    column = int(label) if label and re.fullmatch("-?[0-9]+", label) else label
    try:
        return read_columns(path, without=column)
    except ValueError as error:
        hint = "; --label COLUMN leaves out a column, by name or index" if label is None else ""
        raise ValueError(f"DATA must be a CSV file of numbers: {error}{hint}") from None


def _from_numpy(path: Path) -> Any:
    """The array of an ``.npy`` file, or that of the inputs in an ``.npz`` file."""
    kind = path.suffix
    try:
        with path.open("rb") as file:
            check_size(file)
            if kind == ".npy":
                return np.lib.format.read_array(file, allow_pickle=False)  # no archive
            archive = np.load(file, allow_pickle=False)
            names = list(archive.files)
            chosen = next((name for name in _ARRAYS if name in names), None)
            if chosen is not None:
                return archive[chosen]
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(
            f"DATA must be a {kind} file of numbers, got {path.name}: {error}"
        ) from None
    raise ValueError(
        f"DATA must have an array named {', '.join(_ARRAYS[:-1])} or {_ARRAYS[-1]}, "
        f"got {path.name} with {', '.join(names) or 'none'}"
    )
