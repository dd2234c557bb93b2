"""Images that networks are trained on: whole sets with one-hot targets, pairs of classes."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from shoal import data


class Samples(NamedTuple):
    """Images and their classes.

    Attributes:
        x: The images, rows of norm 1.
        y: The targets, one-hot.
        labels: The classes' indices.
    """

    x: Tensor
    y: Tensor
    labels: Tensor


@lru_cache(maxsize=8)
def image_samples(
    dataset: str,
    split: str,
    count: int | None,
    dtype: torch.dtype,
    device: torch.device,
    *,
    center: bool = False,
) -> Samples:
    """The first ``count`` images of a dataset, or all; kept, since every point needs them.

    Args:
        dataset: A name that :func:`shoal.data.load` knows.
        split: ``"train"`` or ``"test"``.
        count: How many images, from the beginning.
        dtype: Of images and targets.
        device: Where they are.
        center: Subtract the mean of these images before they are scaled.

    Raises:
        FileNotFoundError: If a file is missing; says which, whence and whither.
        ValueError: If there are fewer images.
    """
    found = data.load(dataset, split=split, raw=True).pipe(data.flatten)
    if count is not None and count > len(found):
        raise ValueError(f"{dataset} must have {count} images to {split} with, it has {len(found)}")
    found = data.scale_pixels(found.take(slice(count)), dtype=torch.float64)
    found = (found.pipe(data.center) if center else found).pipe(data.unit_norm)
    labels = found.labels.long().to(device)
    targets = torch.nn.functional.one_hot(labels, len(found.classes or ()) or -1)
    return Samples(found.x.to(device, dtype), targets.to(dtype), labels)


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
    found = data.load(dataset, split=split, raw=True).pipe(data.select_classes, 0, 1)
    found = found.pipe(data.subsample, count // 2, seed=seed)  # before bytes become numbers
    return found.pipe(data.scale_pixels, dtype=dtype).pipe(data.signed_labels)
