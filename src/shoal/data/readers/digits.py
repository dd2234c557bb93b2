"""Handwritten digits that come with scikit-learn: data for a start, without any file."""

import os

import numpy as np

from shoal.data.dataset import Dataset
from shoal.data.readers.arrays import image_dataset
from shoal.data.readers.registry import reads

_TRAIN = 1437  # of 1,797: four fifths, in the order in which they come


@reads("digits", splits=("train", "test", "all"))
def read_digits(split: str, folder: str | os.PathLike[str] | None) -> Dataset:  # noqa: ARG001
    """The digits; see :func:`shoal.data.load`.

    Example:
        >>> from shoal import data
        >>> data.load("digits", split="all")
        Dataset('digits', 1797 samples of shape 1×8×8, float32, 10 classes)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn, which is not installed: pip install scikit-learn, "
            "or shoal with its extra 'cli'"
        ) from error
    bunch = load_digits()
    part = {"all": slice(None), "train": slice(_TRAIN), "test": slice(_TRAIN, None)}[split]
    return image_dataset(
        np.asarray(bunch.images[part], dtype=np.uint8)[:, None],
        np.asarray(bunch.target[part], dtype=np.uint8),
        name="digits",
        classes=tuple("0123456789"),
        source=f"sklearn.datasets.load_digits, {split}",
        white=16.0,
    )
