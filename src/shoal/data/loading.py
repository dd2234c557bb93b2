"""Load a dataset: by its name, or from a file and prepared for an analysis."""

import os
from dataclasses import replace
from pathlib import Path

import torch

from shoal.core.checks import as_path, device_of, flag, float_dtype, instance, one_of
from shoal.data.dataset import Dataset, drawn_order
from shoal.data.readers.registry import file_readers, named_readers
from shoal.data.transforms.images import scale_pixels
from shoal.data.transforms.tables import Scales, normalized, scales, standardized


def load(
    name: str = "digits",
    *,
    split: str = "train",
    folder: str | os.PathLike[str] | None = None,
    raw: bool = False,
    dtype: torch.dtype | None = None,
) -> Dataset:
    """Load a well-known dataset from its official files, or the digits, which need none.

    Files are looked for in ``folder``, or, if it is not given, in the folder that the environment
    variable ``SHOAL_DATA`` names and then in the user's cache folder; in each, below the usual
    subfolder and directly. Nothing is ever downloaded. A file is checked as a whole: a damaged one
    is an error, a sound one that is not the official one gives an ``UnofficialDataWarning``; where
    to parse it might do harm (pickles, MATLAB files), it is an error too, and nothing is parsed.

    Args:
        name: ``"digits"`` (of scikit-learn), ``"mnist"``, ``"fashion-mnist"``, ``"cifar-10"`` or
            ``"svhn"``.
        split: ``"train"`` or ``"test"``; for the digits, which nobody has split, the first 1,437
            or the other 360, or ``"all"``.
        folder: Where to look, instead of the user's folders.
        raw: Whether to return the bytes of the file instead of numbers in [0, 1], which
            :func:`scale_pixels` makes of them, perhaps of a few that were chosen.
        dtype: Of the samples, unless raw; PyTorch's default dtype by default.

    Returns:
        Images of shape (n, channels, height, width) and their class indices.

    Raises:
        FileNotFoundError: If a file is missing; says which, whence and whither.
        ImportError: If the digits are wanted and scikit-learn is not installed.
        TypeError: If ``dtype`` is no floating-point dtype or ``raw`` no truth value.
        ValueError: If ``name`` or ``split`` is unknown, or a file is damaged.
    """
    flag("raw", raw)
    readers = named_readers()
    if isinstance(name, str) and name not in readers and name.endswith(tuple(file_readers())):
        reader = "read_csv" if ".csv" in name else "read_numpy"
        raise ValueError(
            f"name must be the name of a dataset, got {name!r}; for a file use shoal.data.{reader}"
        )
    one_of("name", name, tuple(readers))
    one_of("split", split, readers[name].splits)
    found = readers[name].read(split, folder)
    return found if raw else scale_pixels(found, dtype=dtype)


def sources() -> str:
    """What :func:`load_data` knows, in words."""
    return (
        f"one of {', '.join(named_readers())}, or a file that ends in {', '.join(file_readers())}"
    )


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
) -> Dataset:
    """Load inputs, center them, and scale them to a mean squared norm of one.

    The columns of a table may be lengths and prices: where many of them hardly count beside the
    largest, they are standardized before, and ``notes`` of what is returned says so. The pixels of
    named datasets have one scale.

    Args:
        source: A name that :func:`load` knows, such as ``"digits"``, or a file: a
            matrix of shape (n, p), or images, as ``.npy`` or as an array ``X`` in an ``.npz``, or
            a CSV file.
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
    as_path("DATA", instance("source", source, str))
    dtype, device = float_dtype("dtype", dtype), device_of("device", device)
    raw = _read(source, label)
    if source not in named_readers():
        standardize = scales(raw.x).differ if standardize is None else standardize
        seed = seed or 0
    if n is not None and not 2 <= n <= len(raw):
        raise ValueError(f"-n must be between 2 and {len(raw)} for {raw.name}, got {n}")
    order = drawn_order(len(raw), raw.y if raw.classes else None, seed)
    rows = order[: most if n is None else n].sort().values
    notes = _sampling(raw, len(rows), seed)
    if prepared and standardize is not None:  # by all samples, not by those that are taken
        raw = scale_pixels(raw, dtype=torch.float64)
        notes += _scaling(scales(raw.x), standardize)
        raw = replace(raw, x=standardized(raw.x)) if standardize else raw
    taken = scale_pixels(raw.take(rows), dtype=torch.float64)  # of large sets only these
    x = normalized(raw.name, taken.x) if prepared else taken.x
    y = None if taken.y is None else taken.y.to(device, None if raw.classes else dtype)
    return replace(
        taken,
        x=x.to(device, dtype),
        y=y,
        seed=seed,
        rows=tuple(rows.tolist()) if len(rows) < len(raw) else None,
        standardized=prepared and bool(standardize),
        notes=notes,
    )


def _read(source: str, label: str | None) -> Dataset:
    """All samples as vectors; pixels are bytes still."""
    named, files = named_readers(), file_readers()
    ending = next((end for end in sorted(files, key=len, reverse=True) if source.endswith(end)), "")
    if source not in named and not ending:
        raise ValueError(f"DATA must be {sources()}, got {source!r}")
    _check_label(source, ending, label)
    if source in named:
        reader = named[source]
        found = reader.read("all" if "all" in reader.splits else "train", None)
        return replace(found, x=found.x.flatten(1))
    path = Path(source)
    check_file("DATA", path)
    try:
        found = files[ending](path, label)
    except ValueError as error:
        argument = "--label" if label and str(error).startswith(f"{Path(label)}: ") else "DATA"
        raise ValueError(f"{argument} must be a {ending} file of numbers: {error}") from None
    if len(found) < 2:
        raise ValueError(
            f"DATA must have at least two rows, got {path.name} of shape {tuple(found.x.shape)}"
        )
    return replace(found, x=found.x.flatten(1).double(), name=path.name)


def _sampling(raw: Dataset, taken: int, seed: int | None) -> tuple[str, ...]:
    """Which samples were taken, in words, if not all."""
    count = len(raw.x)
    if taken == count:
        return ()
    if seed is None:
        return (f"The first {taken} of {count} samples.",)
    shares = ", of each class its share" if raw.classes else ""
    return (f"{taken} of {count} samples, drawn with seed {seed}{shares}.",)


def _scaling(found: Scales, standardize: bool) -> tuple[str, ...]:
    """What was done to the columns, in words."""
    notes = []
    if standardize:
        reason = f": {found.words}" if found.differ else ""
        notes.append(f"The columns are standardized{reason} (--no-standardize keeps them).")
    elif found.small:
        notes.append(f"{found.words[0].upper()}{found.words[1:]} (--standardize).")
    if found.constant:
        verb = "is" if found.constant == 1 else "are"
        every = found.columns + found.constant
        notes.append(f"{found.constant} of {every} columns {verb} constant.")
    return tuple(notes)


def _check_label(source: str, ending: str, label: str | None) -> None:
    if label is None:
        return
    if ending == ".npy" and label.endswith(".npy"):
        check_file("--label", Path(label))
    elif ending in ("", ".npy", ".npz"):
        raise ValueError(
            "--label must name a column of a CSV file, or an .npy file beside one, "
            f"got {label!r} for {source}"
        )


def check_file(argument: str, path: Path) -> None:
    """Check that there is a file: no folder, no device, no pipe that would be waited for.

    Args:
        argument: What it was given for.
        path: Where it is.
    """
    if not os.path.isfile(path):  # is_file fails for names that are too long
        what = "the folder " if os.path.isdir(path) else ""
        raise ValueError(f"{argument} must be a file that exists, got {what}{str(path)!r}")
