"""The data of a command: a named dataset or a file, centered and scaled."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from shoal import data
from shoal.data import Dataset

NAMES = ("digits", "mnist", "fashion-mnist", "cifar-10")
_ENDINGS = (".csv", ".csv.gz", ".npy", ".npz")
_SMALL = 0.1  # of the largest range: a column that hardly counts
_MANY = 0.25  # of the columns that hardly count: the scales are those of units, not of importance


@dataclass(frozen=True, eq=False, repr=False)
class Inputs(Dataset):
    """Samples as vectors, and how they were taken.

    Attributes:
        seed: What draws fewer samples from these; without one, the first are taken.
        rows: Where the samples are in what was loaded, if not all of it was taken.
        standardized: Whether the columns were given a mean of zero and a variance of one.
        notes: Sentences on what was done to the data.
    """

    seed: int | None = None
    rows: tuple[int, ...] | None = None
    standardized: bool = False
    notes: tuple[str, ...] = ()

    def drawn(self, most: int | None = None) -> Tensor:
        """Indices of some samples, of each class its share, in the order of drawing."""
        return _order(self, self.seed)[:most].to(self.x.device)


def load_inputs(
    source: str,
    *,
    label: str | None = None,
    n: int | None = None,
    most: int | None = None,
    seed: int | None = None,
    prepared: bool = True,
    standardize: bool | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | None = None,
) -> Inputs:
    """Load inputs, center them, and scale them to a mean squared norm of one.

    The columns of a table may be lengths and prices: where many of them hardly count beside the
    largest, they are standardized before, and ``notes`` of what is returned says so. The pixels of
    named datasets have one scale.

    ``most`` says how many samples are taken where ``n`` does not. A seed draws them, of each class
    its share; it is 0 by default for a file, which may be sorted. Of a named dataset the first are
    taken without one.
    """
    raw = _read(source, label)
    if len(raw.classes) == 1:
        raise ValueError(f"labels of {raw.name} must have two classes or more, got one")
    if source not in NAMES:
        standardize = _scales(raw.x).differ if standardize is None else standardize
        seed = seed or 0
    if n is not None and not 2 <= n <= len(raw):
        raise ValueError(f"-n must be between 2 and {len(raw)} for {raw.name}, got {n}")
    rows = _order(raw, seed)[: most if n is None else n].sort().values
    notes = [*_sampling(raw, len(rows), seed)]
    x = raw.x
    if prepared and standardize is not None:  # by all samples, not by those that are taken
        notes += _scaling(_scales(x), standardize)
        if standardize:
            largest = x.abs().amax(0).clamp(min=torch.finfo(x.dtype).tiny)
            x = data.standardize(replace(raw, x=x / largest)).x  # so that no square overflows
    x = _normalized(raw.name, x[rows]) if prepared else x[rows]
    y = None if raw.y is None else raw.y[rows].to(device, None if raw.classes else dtype)
    return replace(
        raw,
        x=x.to(device, dtype),
        y=y,
        seed=seed,
        rows=tuple(rows.tolist()) if len(rows) < len(raw) else None,
        standardized=prepared and bool(standardize),
        notes=tuple(notes),
    )


def _read(source: str, label: str | None) -> Inputs:
    """All samples as vectors, in float64."""
    if source in NAMES:
        if label is not None:
            raise ValueError(f"--label must be left out with {source}, got {label!r}")
        split = "all" if source == "digits" else "train"
        found, name = data.load(source, split=split, dtype=torch.float64), None
    elif source.endswith(_ENDINGS):
        if not os.path.isfile(source):  # no folder, no device, no pipe that would be waited for
            raise ValueError(f"DATA must be a file that exists, got {source!r}")
        found, name = _file(source, label), Path(source).name
    else:
        known = ", ".join(NAMES)
        raise ValueError(
            f"DATA must be one of {known}, or a file that ends in {', '.join(_ENDINGS)}, "
            f"got {source!r}"
        )
    if len(found) < 2:
        raise ValueError(f"DATA must have at least two rows, got one in {source!r}")
    kept = {field.name: getattr(found, field.name) for field in fields(Dataset)}
    return Inputs(**kept | {"x": found.x.flatten(1), "name": name or found.name})


def _file(source: str, label: str | None) -> Dataset:
    if source.endswith((".npy", ".npz")):
        if label is not None and not (source.endswith(".npy") and label.endswith(".npy")):
            raise ValueError(
                f"--label must name an .npy file beside an .npy file, got {label!r} for {source!r}"
            )
        return data.read_numpy(source, label, dtype=torch.float64)
    column = int(label) if label is not None and label.removeprefix("-").isdecimal() else label
    try:
        return data.read_csv(source, label=column, dtype=torch.float64)
    except ValueError as error:
        hint = "" if label is not None else "; --label COLUMN says where the labels are"
        raise ValueError(f"{error}{hint}") from None


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


class _Scales(NamedTuple):
    """How many columns have a range below a tenth of the largest, are not constant, and are."""

    small: int
    columns: int
    constant: int

    @property
    def differ(self) -> bool:
        """Whether so many columns hardly count that the scales must be those of units."""
        return self.small >= _MANY * self.columns > 0


def _scales(x: Tensor) -> _Scales:
    """Compare ranges and not standard deviations: what is rare is not on another scale."""
    ranges = x.amax(0) / 2 - x.amin(0) / 2  # halves, which do not overflow
    positive = ranges[ranges > 0]
    small = int((positive < _SMALL * positive.max()).sum()) if len(positive) else 0
    return _Scales(small, len(positive), len(ranges) - len(positive))


def _sampling(raw: Inputs, taken: int, seed: int | None) -> Iterator[str]:
    """Which samples were taken, in words, if not all."""
    count = len(raw)
    if taken < count and seed is None:
        yield f"The first {taken} of {count} samples."
    elif taken < count:
        shares = ", of each class its share" if raw.classes else ""
        yield f"{taken} of {count} samples, drawn with seed {seed}{shares}."


def _scaling(found: _Scales, standardize: bool) -> Iterator[str]:
    """What was done to the columns, in words."""
    words = f"{found.small} of {found.columns} columns have a range below a tenth of the largest"
    if standardize:
        reason = f": {words}" if found.differ else ""
        yield f"The columns are standardized{reason} (--no-standardize keeps them)."
    elif found.small:
        yield f"{words} (--standardize)."
    if found.constant:
        verb = "is" if found.constant == 1 else "are"
        yield f"{found.constant} of {found.columns + found.constant} columns {verb} constant."


def _normalized(name: str, x: Tensor) -> Tensor:
    """Inputs with a mean of zero and a mean squared norm of one."""
    x = x / x.abs().max().clamp(min=torch.finfo(x.dtype).tiny)  # so that no square overflows
    x = x - x.mean(dim=0)
    size = x.square().sum(dim=1).mean().sqrt()
    if size == 0:
        raise ValueError(f"{name} must have samples that differ")
    return x / size
