"""Data of one's own in NumPy's formats."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.checks import as_path, shown
from shoal.data.dataset import Dataset
from shoal.data.files import damaged
from shoal.data.numpy_sizes import check_size
from shoal.data.tables import table_dataset

__all__ = ["read_numpy"]

_PAIRS = tuple((x, y) for x in ("X", "x", "features") for y in ("y", "labels"))


def read_numpy(
    path: str | os.PathLike[str],
    labels: str | os.PathLike[str] | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> Dataset:
    """Read samples and labels from an ``.npz`` file, or from two ``.npy`` files.

    Args:
        path: An ``.npz`` file with arrays ``X`` (or ``x``, or ``features``) and ``y`` (or
            ``labels``), or an ``.npy`` file with the samples. The first axis counts the samples;
            (n, d) are vectors, (n, height, width) and (n, channels, height, width) images. Unsigned
            bytes become numbers in [0, 1]; other numbers are kept.
        labels: The ``.npy`` file with the labels, if ``path`` is one: integers, truth values or
            text for classes, real numbers for targets.
        dtype: Of the samples; PyTorch's default dtype by default.

    Returns:
        The dataset. ``classes`` are the labels that occur, sorted, and ``y`` their indices.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file is damaged, lacks an array, or holds objects (they are not unpickled),
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
    if file.suffix == ".npz":
        if labels is not None:
            raise ValueError(f"labels must be None for an .npz file, got {shown(labels)}")
        origins = (file, file)
        arrays = _pair(file)
    elif file.suffix == ".npy":
        if labels is None:
            raise ValueError(f"labels must be the .npy file with the labels of {file}, got None")
        origins = (file, as_path("labels", labels))
        arrays = (_loaded(origins[0]), _loaded(origins[1]))
    else:
        raise ValueError(f"path must end in .npz or .npy, got {str(file)!r}")
    _check_features(origins[0], arrays[0])
    _check_labels(origins[1], arrays[1], len(arrays[0]))
    source = ", ".join(dict.fromkeys(map(str, origins)))
    return table_dataset(*arrays, name=file.stem, source=source, dtype=dtype)


def _loaded(path: Path, *names: str) -> Any:
    """The array in an ``.npy`` file, or a dictionary of those in an ``.npz`` file."""
    try:
        with path.open("rb") as file:
            check_size(file)
            value = np.load(file, allow_pickle=False)
            if isinstance(value, np.ndarray):
                return value
            return {name: value[name] if name in names else None for name in value.files}
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # a damaged file can fail in any way
        reason = str(error) or type(error).__name__
        raise damaged(path, "intact NumPy arrays of numbers", reason) from error


def _pair(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    arrays = _loaded(path, *{name for pair in _PAIRS for name in pair})
    if not isinstance(arrays, dict):
        raise damaged(path, "an .npz archive", "a single array")
    for first, second in _PAIRS:
        if first in arrays and second in arrays:
            return arrays[first], arrays[second]
    wanted = "arrays X (or x, or features) and y (or labels)"
    raise damaged(path, wanted, ", ".join(sorted(arrays)) or "none")


def _check_features(path: Path, array: NDArray[Any]) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "uif":
        raise damaged(path, "samples that are real numbers", f"dtype {getattr(array, 'dtype', '')}")
    if array.ndim not in (2, 3, 4) or array.size == 0:
        raise damaged(path, "samples (n, d), (n, h, w) or (n, c, h, w)", f"shape {array.shape}")
    _check_finite(path, "samples", array)


def _check_labels(path: Path, array: NDArray[Any], samples: int) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "buifU":
        raise damaged(path, "labels: numbers or text", f"dtype {getattr(array, 'dtype', '')}")
    if array.shape != (samples,):
        raise damaged(path, f"{samples} labels, one per sample", f"shape {array.shape}")
    if array.dtype.kind != "U":
        _check_finite(path, "labels", array)


def _check_finite(path: Path, what: str, array: NDArray[Any]) -> None:
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        place = tuple(bad[0].tolist())
        raise damaged(path, f"finite {what}", f"{array[place]} at {place}")
