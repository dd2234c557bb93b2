"""Images of the classes 0 and 1, as many of each: the data of Ling 2023 and Gao 2022."""

import torch

from shoal import data

__all__ = ["image_pair"]


def image_pair(
    dataset: str, split: str, count: int, *, seed: int, dtype: torch.dtype = torch.float32
) -> data.Dataset:
    """Random images of the classes 0 and 1, with the labels -1 and +1.

    Args:
        dataset: A name that :func:`shoal.data.load` knows.
        split: ``"train"`` or ``"test"``.
        count: How many images, half of each class.
        seed: Of the choice.
        dtype: Of images and labels.

    Raises:
        FileNotFoundError: If a file is missing; says which, whence and whither.
        ValueError: If a class has too few images.
    """
    found = data.load(dataset, split=split, dtype=dtype)
    found = found.pipe(data.select_classes, 0, 1).pipe(data.subsample, count // 2, seed=seed)
    return found.pipe(data.signed_labels)
