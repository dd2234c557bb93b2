"""The data of a command: a named dataset or a file, centered and scaled."""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal import data
from shoal.app.options import READING
from shoal.data import Dataset

NAMES = ("digits", "mnist", "fashion-mnist", "cifar-10")
_ENDINGS = (".csv", ".csv.gz", ".npy", ".npz")
_SMALL = 0.1  # share of the largest range below which a column hardly counts
_MANY = 0.25  # share of such columns that suggests arbitrary units


@dataclass(frozen=True, eq=False, repr=False)
class PreparedData(Dataset):
    """Samples as vectors, and their preparation.

    Attributes:
        seed: The seed that draws fewer samples; without one, the first are taken.
        rows: Indices of the samples in the loaded data, if not all of it was taken.
        total: Number of samples in the loaded data.
        standardized: Whether the columns were given a mean of zero and a variance of one.
    """

    seed: int | None = None
    rows: tuple[int, ...] | None = None
    total: int = 0
    standardized: bool = False

    def document(self) -> dict[str, Any]:
        """The data in plain values, for JSON."""
        return {
            "name": self.name,
            "samples": len(self),
            "features": self.x.shape[1],
            "dtype": str(self.x.dtype).removeprefix("torch."),
            "standardized": self.standardized,
            "seed": self.seed,
            "rows": self.rows,
            "notes": list(self.notes),
        }

    def folds(self, count: int) -> Tensor:
        """The fold of each sample, from 0; folds are stratified by class."""
        folds = torch.empty(len(self), dtype=torch.long)
        folds[_order(self, self.seed or 0)] = torch.arange(len(self)) % count
        return folds.to(self.x.device)

    def drawn(self, most: int | None = None) -> Tensor:
        """Indices of some samples, stratified by class, in the order of drawing."""
        return _order(self, self.seed)[:most].to(self.x.device)


def load_inputs(
    source: str,
    *,
    label: str | None = None,
    reading: Mapping[str, Any] | None = None,
    n: int | None = None,
    most: int | None = None,
    seed: int | None = None,
    prepared: bool = True,
    standardize: bool | None = None,
    dtype: torch.dtype = torch.float64,
) -> PreparedData:
    """Load inputs, center them, and scale them to a mean squared norm of one.

    Columns of a table on very different scales, such as lengths and prices, are standardized
    before, with a sentence in ``notes``. The pixels of named datasets have one scale.

    ``most`` is the number of samples without ``n``. A seed draws them, of each class its share; it
    is 0 by default for a file, which may be sorted. Without a seed, the first samples are taken.
    ``reading`` has options of :func:`~shoal.data.read_csv`, by name.
    """
    try:
        raw = _read(source, label, reading or {})
    except ValueError as error:
        raise ValueError(_in_options(str(error))) from None
    if len(raw.classes) == 1:
        raise ValueError(
            f"labels of {raw.name} must have two classes or more, got {raw.classes[0]!r} alone: "
            "choose another column with --label"
        )
    count, x, notes = len(raw), raw.x, [_in_options(note) for note in raw.notes]
    if n is not None and not 2 <= n <= count:
        raise ValueError(f"-n must be between 2 and {count} for {raw.name}, got {n}")
    if source not in NAMES:
        seed = seed or 0
    rows = _order(raw, seed)[: most if n is None else n].sort().values
    if len(rows) < count and seed is None:
        notes.append(f"The first {len(rows)} of {count} samples.")
    elif len(rows) < count:
        shares = ", of each class its share" if raw.classes else ""
        notes.append(f"{len(rows)} of {count} samples, drawn with seed {seed}{shares}.")
    if source not in NAMES and (copies := len(rows) - len(x[rows].unique(dim=0))):
        notes.append(f"Copies of other samples, which flatter every score: {copies}.")
    standardized = False
    if prepared and (source not in NAMES or standardize is not None):
        standardized, about_columns = _scaled(x, standardize)  # by all samples
        notes += about_columns
    if standardized:
        largest = x.abs().amax(0).clamp(min=torch.finfo(x.dtype).tiny)
        x = data.standardize(replace(raw, x=x / largest)).x  # so that no square overflows
    x = _normalized(raw.name, x[rows]) if prepared else x[rows]
    y = None if raw.y is None else raw.y[rows].to(None if raw.classes else dtype)
    return replace(
        raw,
        x=x.to(dtype),
        y=y,
        seed=seed,
        rows=tuple(rows.tolist()) if len(rows) < count else None,
        total=count,
        standardized=standardized,
        notes=tuple(notes),
    )


def _in_options(text: str) -> str:
    """A message of the library with options of the command line instead of Python's arguments."""

    def option(match: re.Match[str]) -> str:
        name, value = match[1].replace("_", "-"), match[2].strip("'")
        if value in ("True", "False"):
            return f"--{'no-' * (value == 'False')}{name}"
        return f"--{name} {shlex.quote(value)}"

    return re.sub(rf"\b({READING.replace(' ', '|')})=(True|False|'[^']*')", option, text)


def _read(source: str, label: str | None, reading: Mapping[str, Any]) -> PreparedData:
    """All samples as vectors, in float64."""
    if source in NAMES:
        if label is not None or reading:
            name = "label" if label is not None else next(iter(reading)).replace("_", "-")
            raise ValueError(f"--{name} must be left out with {source}")
        split = "all" if source == "digits" else "train"
        dataset, name = data.load(source, split=split, dtype=torch.float64), source
    elif source.endswith(_ENDINGS):
        if not os.path.isfile(source):  # no folder, no device, no pipe that would be waited for
            raise ValueError(f"DATA must be a file that exists, got {source!r}")
        dataset, name = _file(source, label, reading), Path(source).name
    else:
        raise ValueError(
            f"DATA must be one of {', '.join(NAMES)}, or a file that ends in "
            f"{', '.join(_ENDINGS)}, got {source!r}"
        )
    if len(dataset) < 2:
        raise ValueError(f"DATA must have at least two rows, got one in {source!r}")
    values = {field.name: getattr(dataset, field.name) for field in fields(Dataset)}
    if dataset.x.ndim == 2 and not dataset.columns:
        values["columns"] = tuple(map(str, range(dataset.x.shape[1])))
    return PreparedData(**values | {"x": dataset.x.flatten(1), "name": name})


def _file(source: str, label: str | None, reading: Mapping[str, Any]) -> Dataset:
    if source.endswith((".npy", ".npz")):
        if label is not None and not (source.endswith(".npy") and label.endswith(".npy")):
            raise ValueError(
                f"--label must name an .npy file beside an .npy file, got {label!r} for {source!r}"
            )
        if other := [name for name in reading if name != "task"]:
            raise ValueError(f"--{other[0].replace('_', '-')} must be left out with {source!r}")
        return data.read_numpy(source, label, dtype=torch.float64, **reading)
    return data.read_csv(source, label=label, dtype=torch.float64, **reading)


def _order(samples: Dataset, seed: int | None) -> Tensor:
    """An order in which the first samples, however many, have the classes in their shares."""
    if seed is None:
        return torch.arange(len(samples))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(samples), generator=generator)
    if samples.y is None or not samples.classes:
        return order
    jitter = torch.rand(len(samples), generator=generator, dtype=torch.float64)
    place = torch.empty_like(jitter)  # within the class, from zero to one
    classes = samples.y.cpu()[order]
    for index in classes.unique():
        members = (classes == index).nonzero()[:, 0]
        ranks = torch.arange(len(members)).to(jitter)
        place[members] = (ranks + jitter[members]) / len(members)
    return order[place.argsort(stable=True)]


def _scaled(x: Tensor, choice: bool | None) -> tuple[bool, list[str]]:
    """Whether to standardize the columns of a table, with sentences about them.

    Ranges are compared and not standard deviations: rare values are not on another scale.
    """
    ranges = x.amax(0) / 2 - x.amin(0) / 2  # halves, which do not overflow
    positive = ranges[ranges > 0]
    count, small = len(positive), int((positive < _SMALL * ranges.max()).sum())
    differ = small >= _MANY * count > 0
    standardize = differ if choice is None else choice
    words = f"{small} of {count} columns have a range below a tenth of the largest"
    notes = []
    if standardize:
        reason = f": {words}" if differ else ""
        notes.append(f"The columns are standardized{reason} (--no-standardize keeps them).")
    elif small:
        notes.append(f"{words} (--standardize).")
    if count < len(ranges):
        notes.append(f"{len(ranges) - count} of {len(ranges)} columns are constant.")
    return standardize, notes


def _normalized(name: str, x: Tensor) -> Tensor:
    """Inputs with a mean of zero and a mean squared norm of one."""
    x = x / x.abs().max().clamp(min=torch.finfo(x.dtype).tiny)  # so that no square overflows
    x = x - x.mean(dim=0)
    size = x.square().sum(dim=1).mean().sqrt()
    if size == 0 or (x == x[0]).all():  # the mean of constants is off by rounding
        raise ValueError(f"{name} must have samples that differ")
    return x / size
