"""Data of one's own in NumPy's formats."""

import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from shoal.core.checks import as_path, shown
from shoal.data.dataset import Dataset
from shoal.data.files import damaged, expansion_limit
from shoal.data.readers.arrays import table_dataset
from shoal.data.readers.registry import reads_files
from shoal.data.transforms.images import scale_pixels

_SAMPLES, _LABELS = ("X", "x", "features"), ("y", "labels")  # in an .npz file
_LARGEST = 2**35  # bytes that an archive may expand to


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
            width) images. Unsigned bytes become numbers in [0, 1]; other numbers are kept.
        labels: The ``.npy`` file with the labels, if ``path`` is one and has any: integers, truth
            values or text for classes, real numbers for targets.
        dtype: Of the samples; PyTorch's default dtype by default.

    Returns:
        The dataset. ``classes`` are the labels that occur, sorted, and ``y`` their indices.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file is damaged, lacks samples, or holds objects (they are not unpickled),
            anything but numbers, NaN or infinity; or if the lengths differ.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from shoal import data
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "points.npz"
        ...     np.savez(path, X=np.eye(3), y=["cat", "dog", "cat"])
        ...     points = data.read_numpy(path)
        >>> points.classes, points.y
        (('cat', 'dog'), tensor([0, 1, 0]))
    """
    file = as_path("path", path)
    beside = None if labels is None else as_path("labels", labels)
    return scale_pixels(_dataset(file, beside), dtype=dtype)


@reads_files(".npy", ".npz")
def read_numpy_table(path: Path, label: str | None) -> Dataset:
    """The inputs of a file, with the labels in it or in an ``.npy`` file beside it."""
    return _dataset(path, None if label is None else Path(label))


def _dataset(file: Path, labels: Path | None) -> Dataset:
    if file.suffix not in (".npz", ".npy"):
        raise ValueError(f"path must end in .npz or .npy, got {str(file)!r}")
    if file.suffix == ".npz" and labels is not None:
        raise ValueError(f"labels must be None for an .npz file, got {shown(str(labels))}")
    if file.suffix == ".npz":
        x, y = _members(file)
    else:
        x, y = _loaded(file), None if labels is None else _loaded(labels)
    _check_features(file, x)
    if y is not None:
        _check_labels(labels or file, y, len(x))
    source = str(file) if labels is None else f"{file}, {labels}"
    return table_dataset(x, y, name=file.stem, source=source)


def _loaded(path: Path, *names: str) -> Any:
    """The array in an ``.npy`` file, or a dictionary of those in an ``.npz`` file."""
    try:
        with path.open("rb") as file:
            _check_size(file)
            value = np.load(file, allow_pickle=False)
            if isinstance(value, np.ndarray):
                return value
            return {name: value[name] if name in names else None for name in value.files}
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # a damaged file can fail in any way
        reason = str(error) or type(error).__name__
        raise damaged(path, "intact NumPy arrays of numbers", reason) from error


def _members(path: Path) -> tuple[Any, Any]:
    """The samples of an archive, and its labels or ``None``."""
    arrays = _loaded(path, *_SAMPLES, *_LABELS)
    if not isinstance(arrays, dict):
        raise damaged(path, "an .npz archive", "a single array")
    x = next((name for name in _SAMPLES if name in arrays), None)
    if x is None:
        wanted = "an array named X, x or features"
        raise damaged(path, wanted, ", ".join(sorted(arrays)) or "none")
    return arrays[x], next((arrays[name] for name in _LABELS if name in arrays), None)


def _check_features(path: Path, array: NDArray[Any]) -> None:
    _check_kind(path, "samples that are real numbers", array, "uif")
    if array.ndim not in (2, 3, 4) or array.size == 0:
        raise damaged(path, "samples (n, d), (n, h, w) or (n, c, h, w)", f"shape {array.shape}")
    _check_finite(path, "samples", array)


def _check_labels(path: Path, array: NDArray[Any], samples: int) -> None:
    _check_kind(path, "labels: numbers or text", array, "buifU")
    if array.shape != (samples,):
        raise damaged(path, f"{samples} labels, one per sample", f"shape {array.shape}")
    if array.dtype.kind != "U":
        _check_finite(path, "labels", array)


def _check_kind(path: Path, wanted: str, array: object, kinds: str) -> None:
    if not isinstance(array, np.ndarray):
        raise damaged(path, wanted, type(array).__name__)
    if array.dtype.kind not in kinds:
        raise damaged(path, wanted, f"dtype {array.dtype}")


def _check_finite(path: Path, what: str, array: NDArray[Any]) -> None:
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        place = tuple(bad[0].tolist())
        raise damaged(path, f"finite {what}", f"{array[place]} at {place}")


def _check_size(file: IO[bytes]) -> None:
    """Check that the arrays of an ``.npy`` or ``.npz`` file are as large as their headers say.

    Args:
        file: The file, at its beginning, where it is left.

    Raises:
        ValueError: If a header claims more than there is, or an archive expands beyond all measure.
    """
    size = file.seek(0, 2)
    file.seek(0)
    kind = file.read(4)
    if kind == b"PK\3\4":
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            limit = min(_LARGEST, expansion_limit(size))
            if sum(member.file_size for member in members) > limit:
                raise ValueError(
                    f"an archive that expands from {size} to more than {limit} bytes; "
                    "np.savez writes one that does not"
                )
            for member in members:
                with archive.open(member) as stream:
                    _check_array(stream, member.file_size)
    elif kind in npy.MAGIC_PREFIX:
        file.seek(0)
        _check_array(file, size)
    elif kind != b"PK\5\6":  # an archive of nothing
        raise ValueError("a file of another kind")
    file.seek(0)


def _check_array(stream: IO[bytes], size: int) -> None:
    if stream.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
        return  # whoever reads it says so
    version = stream.read(2)
    read = {b"\1\0": npy.read_array_header_1_0, b"\2\0": npy.read_array_header_2_0}.get(version)
    if read is None:
        return
    shape, _, dtype = read(stream)
    wanted = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or (wanted > size and not dtype.hasobject):
        raise ValueError(f"an array of shape {shape}, {wanted} bytes, in a file of {size} bytes")
