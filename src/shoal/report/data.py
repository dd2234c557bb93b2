"""The data that an analysis looks at."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal import data
from shoal.core.checks import as_path, device_of, flag, float_dtype, instance
from shoal.data.csv_files import read_columns, read_csv
from shoal.data.numpy_sizes import check_size
from shoal.data.tables import indexed_classes
from shoal.report.preparation import Scales, drawn_order, normalized, scales, standardized

__all__ = ["FILES", "NAMES", "Data", "load_data"]

NAMES = ("digits", "mnist", "fashion-mnist", "cifar-10", "svhn")  # of ``shoal.data.load``
FILES = (".npy", ".npz", ".csv", ".csv.gz")
_INPUTS, _LABELS = ("X", "x", "features"), ("y", "labels")  # in an .npz file


@dataclass(frozen=True)
class Data:
    """Inputs, their labels, and where they come from.

    Attributes:
        name: What they are.
        x: The inputs, of shape (n, p).
        y: Class indices, or real targets in the dtype of ``x``, of shape (n,), where there are any.
        classes: The names of the classes; empty if there are none.
        seed: What draws fewer samples from these; without one, the first are taken.
        rows: Where the samples are in what was loaded, if not all of it was taken.
        standardized: Whether the columns were given a mean of zero and a variance of one.
        notes: Sentences on what was done to the data.
    """

    name: str
    x: Tensor
    y: Tensor | None = None
    classes: tuple[str, ...] = ()
    seed: int | None = None
    rows: tuple[int, ...] | None = None
    standardized: bool = False
    notes: tuple[str, ...] = ()

    def drawn(self, most: int | None = None) -> Tensor:
        """Indices of some samples, of each class its share, in the order in which they are drawn.

        Args:
            most: How many; all by default, and where there are fewer.
        """
        classes = self.y if self.classes else None
        return drawn_order(len(self.x), classes, self.seed)[:most].to(self.x.device)

    def targets(self, outputs: int | None = None) -> Tensor:
        """What a network learns, of shape (n, outputs), in the dtype of the inputs.

        Two classes become -1 and 1, more of them rows with a 1 at the place of the class. Real
        targets are taken as they are.

        Args:
            outputs: How many outputs the network has, where that is known: two for two classes
                make rows of them too.

        Raises:
            ValueError: If there are no labels, or they need another number of outputs.
        """
        if self.y is None:
            raise ValueError(
                f"{self.name} must have labels: --label COLUMN of a CSV file, --label FILE.npy for "
                "an .npy file, or an array y in an .npz file"
            )
        count = len(self.classes)
        if not count:
            found = self.y[:, None]
        elif count == 2 and outputs != 2:
            found = (2 * self.y[:, None] - 1).to(self.x.dtype)
        else:
            found = torch.nn.functional.one_hot(self.y, count).to(self.x.dtype)
        if outputs not in (None, found.shape[1]):
            raise ValueError(
                f"the network must have {found.shape[1]} outputs for the labels of {self.name}, "
                f"got {outputs}"
            )
        return found


class _Raw(NamedTuple):
    """What was read: inputs, labels, the names of classes."""

    x: Tensor
    y: Tensor | None
    classes: tuple[str, ...]


def load_data(
    source: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    label: str | None = None,
    n: int | None = None,
    most: int | None = None,
    prepared: bool = True,
    standardize: bool | None = None,
    seed: int | None = None,
) -> Data:
    """Load inputs, center them, and scale them to a mean squared norm of one.

    The columns of a table may be lengths and prices: where many of them hardly count beside the
    largest, they are standardized before, and ``notes`` of what is returned says so. The pixels of
    named datasets have one scale.

    Args:
        source: One of ``NAMES``, such as ``"digits"``, for :func:`shoal.data.load`, or a file: a
            matrix of shape (n, p) as ``.npy`` or as an array ``X`` in an ``.npz``, or a CSV file.
        dtype: Of the inputs.
        device: Where they go.
        label: Where the labels are: a column of a CSV file, by name or by index, or an ``.npy``
            file beside one. An ``.npz`` file has them in ``y`` (or ``labels``), if anywhere.
        n: How many samples to take; all by default.
        most: How many to take at most where ``n`` does not say.
        prepared: Whether to center and scale them.
        standardize: Whether to give all columns the same variance; by default those of a file, if
            they are on very different scales.
        seed: What draws the samples, of each class its share, where not all are taken; 0 by default
            for a file, which may be sorted. Of a named dataset, which is mixed, the first are
            taken unless there is a seed.

    Raises:
        FileNotFoundError: If the files of a dataset are not there.
        ImportError: If what reads the data is not installed.
        ValueError: If there is no such data, or it is not a matrix of finite numbers.
    """
    flag("prepared", prepared)
    if standardize is not None:
        flag("standardize", standardize)
    as_path("source", instance("source", source, str))
    dtype, device = float_dtype("dtype", dtype), device_of("device", device)
    _check_label(source, label)
    if source in NAMES:
        name, raw = source, _named(source)
    elif source.endswith(FILES):
        name, raw = Path(source).name, _from_file(Path(source), label)
        standardize = scales(raw.x).differ if standardize is None else standardize
        seed = seed or 0
    else:
        raise ValueError(
            f"DATA must be one of {', '.join(NAMES)}, or a file that ends in {', '.join(FILES)}, "
            f"got {source!r}"
        )
    if n is not None and not 2 <= n <= len(raw.x):
        raise ValueError(f"-n must be between 2 and {len(raw.x)} for {name}, got {n}")
    order = drawn_order(len(raw.x), raw.y if raw.classes else None, seed)
    rows = order[: most if n is None else n].sort().values
    x, notes = raw.x, _sampling(raw, len(rows), seed)
    if prepared:
        notes += _scaling(scales(x), standardize)
        x = normalized(name, (standardized(x) if standardize else x)[rows])
    else:
        x = x[rows]
    y = raw.y
    if y is not None:
        y = y[rows].to(device=device, dtype=None if raw.classes else dtype)
    return Data(
        name,
        x.to(dtype=dtype, device=device),
        y,
        raw.classes,
        seed=seed,
        rows=tuple(rows.tolist()) if len(rows) < len(raw.x) else None,
        standardized=prepared and bool(standardize),
        notes=notes,
    )


def _sampling(raw: _Raw, taken: int, seed: int | None) -> tuple[str, ...]:
    """Which samples were taken, in words, if not all."""
    count = len(raw.x)
    if taken == count:
        return ()
    if seed is None:
        return (f"The first {taken} of {count} samples.",)
    shares = ", of each class its share" if raw.classes else ""
    return (f"{taken} of {count} samples, drawn with seed {seed}{shares}.",)


def _scaling(found: Scales, standardize: bool | None) -> tuple[str, ...]:
    """What was done to the columns, in words; ``None`` is for those whose scales are one."""
    notes = []
    if standardize:
        reason = f": {found.words}" if found.differ else ""
        notes.append(f"The columns are standardized{reason} (--no-standardize keeps them).")
    elif standardize is not None and found.small:
        notes.append(f"{found.words[0].upper()}{found.words[1:]} (--standardize).")
    if found.constant and standardize is not None:
        notes.append(f"{found.constant} of {found.columns + found.constant} columns are constant.")
    return tuple(notes)


def _check_label(source: str, label: str | None) -> None:
    if label is None or source.endswith((".csv", ".csv.gz")):
        return
    if source.endswith(".npy") and label.endswith(".npy"):
        return
    raise ValueError(
        "--label must name a column of a CSV file, or an .npy file beside one, "
        f"got {label!r} for {source}"
    )


def _named(name: str) -> _Raw:
    """All digits, or the training samples of another dataset, as vectors."""
    split = "all" if name == "digits" else "train"
    found = data.load(name, split=split, dtype=torch.float64)
    return _Raw(found.x.flatten(1), found.y, found.classes)


def _from_file(path: Path, label: str | None) -> _Raw:
    """The inputs in a file, checked, and their labels."""
    _check_file("DATA", path)
    if path.suffix in (".csv", ".gz"):
        return _from_csv(path, label)
    raw, labels = _from_numpy("DATA", path)
    x = _matrix(path, raw)
    if label is not None:
        _check_file("--label", Path(label))
        labels = _from_numpy("--label", Path(label))[0]
    return _Raw(x, *_labels(path if label is None else Path(label), labels, len(x)))


def _check_file(argument: str, path: Path) -> None:
    if not os.path.isfile(path):  # is_file fails for names that are too long
        what = "the folder " if os.path.isdir(path) else ""
        raise ValueError(f"{argument} must be a file that exists, got {what}{str(path)!r}")


def _matrix(path: Path, raw: Any) -> Tensor:
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
    return torch.as_tensor(matrix)


def _labels(path: Path, raw: Any, samples: int) -> tuple[Tensor | None, tuple[str, ...]]:
    """Integers, truth values and text are classes, real numbers are targets."""
    if raw is None:
        return None, ()
    kind = raw.dtype.kind
    if (
        raw.shape != (samples,)
        or kind not in "buifU"
        or (kind == "f" and not np.isfinite(raw).all())
    ):
        raise ValueError(
            f"labels must be {samples} finite numbers or names, one for each sample, "
            f"got shape {raw.shape} and dtype {raw.dtype} in {path.name}"
        )
    if kind == "f":
        return torch.as_tensor(raw.astype(np.float64)), ()
    return indexed_classes(raw)


def _from_csv(path: Path, label: str | None) -> _Raw:
    """The inputs, and the labels in a column."""
    try:
        found = (read_columns(path), None, ()) if label is None else _labeled(path, label)
    except ValueError as error:
        hint = ""
        if label is None and ", column" in str(error):  # perhaps a label that is no number
            hint = "; --label COLUMN says where the labels are, by name or index"
        raise ValueError(f"DATA must be a CSV file of numbers: {error}{hint}") from None
    x, *labels = found
    return _Raw(_matrix(path, x), *labels)


def _labeled(path: Path, label: str) -> tuple[Any, Tensor | None, tuple[str, ...]]:
    """The inputs with classes, or else with real targets."""
    column = int(label) if re.fullmatch("-?[0-9]+", label) else label
    try:
        found = read_csv(path, label=column, dtype=torch.float64)
    except ValueError as error:
        try:
            found = read_csv(path, label=column, regression=True, dtype=torch.float64)
        except ValueError:
            raise error from None
    return found.x.numpy(), found.y, found.classes


def _from_numpy(argument: str, path: Path) -> tuple[Any, Any]:
    """The array of an ``.npy`` file, or those of inputs and labels in an ``.npz`` file."""
    kind = path.suffix
    try:
        with path.open("rb") as file:
            check_size(file)
            if kind == ".npy":
                return np.lib.format.read_array(file, allow_pickle=False), None  # no archive
            archive = np.load(file, allow_pickle=False)
            names = list(archive.files)
            chosen = next((name for name in _INPUTS if name in names), None)
            if chosen is not None:
                labels = next((name for name in _LABELS if name in names), None)
                return archive[chosen], None if labels is None else archive[labels]
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(
            f"{argument} must be a {kind} file of numbers, got {path.name}: {error}"
        ) from None
    raise ValueError(
        "DATA must have an array named X, x or features, "
        f"got {path.name} with {', '.join(names) or 'none'}"
    )
