"""Datasets of numbers in one's own files."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.data.dataset import Dataset, resolve_dtype

__all__ = ["indexed_classes", "table_dataset"]


def indexed_classes(labels: NDArray[np.generic]) -> tuple[Tensor, tuple[str, ...]]:
    """Class indices and class names, sorted, of labels that are integers or text."""
    names, indices = np.unique(labels, return_inverse=True)
    return torch.from_numpy(indices.astype(np.int64)), tuple(str(name) for name in names.tolist())


def table_dataset(
    features: NDArray[np.generic],
    labels: NDArray[np.generic],
    *,
    name: str,
    source: str,
    dtype: torch.dtype | None,
) -> Dataset:
    """A dataset of checked arrays.

    Bytes become numbers in [0, 1]; other numbers are kept. Rows of shape (channels, height, width)
    or (height, width) are images. Integer and text labels are classes, real ones targets.
    """
    kind = resolve_dtype(dtype)
    x = _converted(features, kind, source)
    if features.dtype == np.uint8:
        x = x / 255
    if x.ndim == 3:
        x = x[:, None]
    image_shape = (x.shape[1], x.shape[2], x.shape[3]) if x.ndim == 4 else None
    if labels.dtype.kind == "f":
        y = _converted(labels, kind, source)
        return Dataset(x, y, name, image_shape=image_shape, source=source)
    y, classes = indexed_classes(labels)
    return Dataset(x, y, name, classes=classes, image_shape=image_shape, source=source)


def _converted(values: NDArray[np.generic], dtype: torch.dtype, source: str) -> Tensor:
    """Finite numbers in another dtype, in which they must be finite too."""
    wide = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
    result = wide.to(dtype)
    outside = (~result.isfinite()).nonzero()
    if len(outside):
        place = tuple(outside[0].tolist())
        name = str(dtype).removeprefix("torch.")
        raise ValueError(
            f"{source}: expected numbers that are finite in {name}, got {float(wide[place])} at "
            f"{place}; dtype=torch.float64 has a wider range"
        )
    return result
