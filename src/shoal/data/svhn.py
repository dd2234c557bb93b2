"""SVHN, the cropped digits, from the official MATLAB files."""

import io
import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.data.dataset import Dataset
from shoal.data.files import damaged, read_content
from shoal.data.folders import Files, find
from shoal.data.official import check_official
from shoal.data.pixels import image_dataset

__all__ = ["read_svhn"]

_FILES = Files("SVHN", ("svhn", "SVHN"), "http://ufldl.stanford.edu/housenumbers/")
_INTACT = "an intact MATLAB file of version 5"
_HEADER = 128  # bytes
_COMPRESSED = 15  # the type of an element that is compressed
_DIGESTS = {
    "train": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
    "test": "md5:eb5a983be6a315427106f1b164d9cef3",
}


def read_svhn(
    split: str, folder: str | os.PathLike[str] | None, *, raw: bool, dtype: torch.dtype | None
) -> Dataset:
    """SVHN; see :func:`shoal.data.load`. The label 10, by which the files mean 0, becomes 0."""
    (path,) = find(_FILES, [(f"{split}_32x32.mat",)], folder)
    content = read_content(path)
    images, labels = _arrays(path, content)
    check_official(path, content, _DIGESTS[split])
    return image_dataset(
        images.transpose(3, 2, 0, 1),  # height, width, channels, n -> n, channels, height, width
        labels,
        name="svhn",
        classes=tuple("0123456789"),
        source=str(path),
        raw=raw,
        dtype=dtype,
    )


def _arrays(path: Path, content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    from scipy.io import loadmat, whosmat  # here, because it takes long to import

    if content[:4] == b"\x89HDF":
        raise damaged(path, "a MATLAB file of version 5", "one of version 7.3 (HDF5)")
    _check_length(path, content)
    _check_shapes(
        path, {name: (shape, kind) for name, shape, kind in _parsed(path, whosmat, content)}
    )
    arrays = _parsed(path, partial(loadmat, variable_names=["X", "y"]), content)
    images, labels = np.asarray(arrays["X"]), np.asarray(arrays["y"]).reshape(-1)
    wrong = np.flatnonzero(~np.isin(labels, np.arange(1, 11)))
    if len(wrong):
        first = int(wrong[0])
        raise damaged(path, "labels in 1..10", f"label {labels[first]} of sample {first}")
    return images, (labels % 10).astype(np.uint8)


def _check_length(path: Path, content: bytes) -> None:
    """Follow the sizes of the elements to the end, which a file that is cut off does not have."""
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if order is None:
        raise damaged(path, _INTACT, "no MATLAB header")
    position = _HEADER
    while position < len(content):
        if position + 8 > len(content):
            raise damaged(path, _INTACT, f"{len(content)} bytes, which end within an element")
        kind, size = struct.unpack_from(f"{order}2I", content, position)
        position += 8 + size + (0 if kind == _COMPRESSED else -size % 8)
    if position > len(content):
        raise damaged(path, f"{_INTACT}, at least {position} bytes", f"{len(content)} bytes")


def _parsed(path: Path, parser: Callable[[io.BytesIO], Any], content: bytes) -> Any:
    try:
        return parser(io.BytesIO(content))
    except Exception as error:  # a damaged file can fail in any way
        reason = str(error) or type(error).__name__
        raise damaged(path, _INTACT, reason) from error


def _check_shapes(path: Path, shapes: dict[str, tuple[tuple[int, ...], str]]) -> None:
    """Check what the file says it holds, before it is unpacked."""
    for name in ("X", "y"):
        if name not in shapes:
            found = ", ".join(sorted(shapes)) or "none"
            raise damaged(path, f"an array {name!r}", f"the arrays {found}")
    (shape, kind), (label_shape, label_kind) = shapes["X"], shapes["y"]
    if len(shape) != 4 or shape[:3] != (32, 32, 3) or shape[3] < 1 or kind != "uint8":
        raise damaged(path, "X of 32×32×3×n unsigned bytes", f"{kind} of shape {shape}")
    if label_shape not in {(shape[3], 1), (1, shape[3])}:
        raise damaged(path, f"{shape[3]} labels in y", f"the shape {label_shape}")
    if label_kind not in {"uint8", "double"}:
        raise damaged(path, "numbers in y", label_kind)
