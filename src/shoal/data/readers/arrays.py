"""Datasets of what readers have read: the bytes of images, and tables of numbers."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.data.dataset import Dataset
from shoal.data.files import damaged


def check_byte_labels(path: Path, labels: NDArray[np.uint8], classes: int) -> None:
    """Check that labels are below ``classes``, or say which one is not."""
    wrong = np.flatnonzero(labels >= classes)
    if len(wrong):
        first = int(wrong[0])
        raise damaged(
            path, f"labels in 0..{classes - 1}", f"label {int(labels[first])} of sample {first}"
        )


def image_dataset(
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    *,
    name: str,
    classes: tuple[str, ...],
    source: str,
    white: float = 255.0,
) -> Dataset:
    """A dataset of the bytes of images of shape (n, channels, height, width)."""
    channels, height, width = images.shape[1:]
    return Dataset(
        torch.from_numpy(images.copy()),  # a tensor must own its memory, and may be written to
        torch.from_numpy(labels.astype(np.int64)),
        name,
        classes=classes,
        image_shape=(channels, height, width),
        source=source,
        white=white,
    )


def table_dataset(
    features: NDArray[np.generic], labels: NDArray[np.generic] | None, *, name: str, source: str
) -> Dataset:
    """A dataset of checked arrays: bytes as they are, other numbers in float64.

    Rows of shape (channels, height, width) or (height, width) are images. Integers, truth values
    and text as labels are classes, which are sorted; real numbers are targets.
    """
    kind = np.uint8 if features.dtype == np.uint8 else np.float64
    x = torch.from_numpy(np.array(features, dtype=kind, order="C"))
    if x.ndim == 3:
        x = x[:, None]
    image_shape = (x.shape[1], x.shape[2], x.shape[3]) if x.ndim == 4 else None
    y: Tensor | None = None
    classes: tuple[str, ...] = ()
    if labels is not None and labels.dtype.kind == "f":
        y = torch.from_numpy(np.array(labels, dtype=np.float64))
    elif labels is not None:
        found, indices = np.unique(labels, return_inverse=True)
        y = torch.from_numpy(indices.astype(np.int64))
        classes = tuple(str(entry) for entry in found.tolist())
    return Dataset(x, y, name, classes=classes, image_shape=image_shape, source=source)
