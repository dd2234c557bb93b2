"""Datasets of official images, as the bytes in their files."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.data.dataset import Dataset
from shoal.data.files import damaged

__all__ = ["check_byte_labels", "image_dataset"]


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
