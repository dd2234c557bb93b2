"""Datasets of numbers in one's own files."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.data.dataset import Dataset

__all__ = ["table_dataset"]


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
