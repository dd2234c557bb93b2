"""SVHN, the cropped digits, from the official MATLAB files."""

import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.data.dataset import Dataset
from shoal.data.files import damaged, read_content
from shoal.data.folders import Files, find
from shoal.data.matlab import read_matlab
from shoal.data.official import check_official
from shoal.data.pixels import image_dataset

__all__ = ["read_svhn"]

_FILES = Files("SVHN", ("svhn", "SVHN"), "http://ufldl.stanford.edu/housenumbers/")
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
    try:
        arrays = read_matlab(content)
    except ValueError as error:
        raise damaged(path, "an intact MATLAB file of version 5", str(error)) from error
    for name in ("X", "y"):
        if name not in arrays:
            found = ", ".join(sorted(arrays)) or "none"
            raise damaged(path, f"an array {name!r}", f"the arrays {found}")
    x, y = arrays["X"], arrays["y"]
    shape = x.shape
    if len(shape) != 4 or shape[:3] != (32, 32, 3) or shape[3] < 1 or x.kind != "uint8":
        raise damaged(path, "X of 32×32×3×n unsigned bytes", f"{x.kind} of shape {shape}")
    if y.shape not in {(shape[3], 1), (1, shape[3])}:
        raise damaged(path, f"{shape[3]} labels in y", f"the shape {y.shape}")
    if y.kind not in {"uint8", "double"} or x.values is None or y.values is None:
        raise damaged(path, "numbers in y", y.kind)
    if x.values.dtype != np.uint8:
        raise damaged(path, "unsigned bytes in X", str(x.values.dtype))
    labels = y.values.reshape(-1)
    wrong = np.flatnonzero(~np.isin(labels, np.arange(1, 11)))
    if len(wrong):
        first = int(wrong[0])
        raise damaged(path, "labels in 1..10", f"label {labels[first]} of sample {first}")
    return x.values, (labels % 10).astype(np.uint8)
