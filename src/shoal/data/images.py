"""Preprocessings of images: colors and size."""

from dataclasses import replace

import torch
from torch import Tensor

from shoal.core.checks import integer, room
from shoal.data.dataset import Dataset, check_dataset, float_samples

__all__ = ["resize", "to_gray"]

# The weights of red, green and blue in the luma of ITU-R BT.601, as image libraries use them.
_LUMA = (0.299, 0.587, 0.114)


def to_gray(dataset: Dataset) -> Dataset:
    """Turn color images into gray ones, by the luma of ITU-R BT.601; gray ones stay.

    Args:
        dataset: Of images with one or three channels, flattened or not.

    Raises:
        TypeError: If the samples are raw integers.
        ValueError: If the samples are no such images.

    Example:
        >>> import torch
        >>> from shoal import data
        >>> red = torch.tensor([1.0, 0.0, 0.0])[None, :, None, None]
        >>> image = data.Dataset(red, torch.zeros(1), "red", image_shape=(3, 1, 1))
        >>> round(data.to_gray(image).x.item(), 3)
        0.299
    """
    images = _images(dataset)
    channels, height, width = images.shape[1:]
    if channels == 1:
        return dataset
    if channels != len(_LUMA):
        raise ValueError(f"dataset must have images of 1 or 3 channels, got {channels}")
    weights = torch.tensor(_LUMA, dtype=images.dtype, device=images.device)
    gray = torch.einsum("nchw,c->nhw", images, weights)[:, None]
    return _replaced(dataset, gray, (1, height, width))


def resize(dataset: Dataset, height: int, width: int) -> Dataset:
    """Resize images, by bilinear interpolation that averages where it shrinks (antialiasing).

    Args:
        dataset: Of images, flattened or not.
        height: In pixels.
        width: In pixels.

    Raises:
        TypeError: If the samples are raw integers.
        ValueError: If the samples are no images.

    Example:
        >>> import torch
        >>> from shoal import data
        >>> x = torch.tensor([[[[0.0, 1.0], [1.0, 2.0]]]])
        >>> image = data.Dataset(x, torch.zeros(1), "slope", image_shape=(1, 2, 2))
        >>> data.resize(image, 1, 1).x.item()
        1.0
    """
    images = _images(dataset)
    size = (integer("height", height, at_least=1), integer("width", width, at_least=1))
    if images.shape[2:] == size:
        return dataset
    room("height or width", len(images), images.shape[1], *size)
    half = images.dtype.itemsize < 4  # which torch does not interpolate on CPUs
    resized = torch.nn.functional.interpolate(
        images.float() if half else images,
        size=size,
        mode="bilinear",
        align_corners=False,
        antialias=True,
    )
    return _replaced(dataset, resized.to(images.dtype), (images.shape[1], *size))


def _images(dataset: Dataset) -> Tensor:
    """The samples as (n, channels, height, width)."""
    check_dataset(dataset)
    if dataset.image_shape is None:
        raise ValueError(f"dataset must be of images, got {dataset.name!r} without an image_shape")
    return float_samples(dataset).reshape(-1, *dataset.image_shape)


def _replaced(dataset: Dataset, images: Tensor, shape: tuple[int, int, int]) -> Dataset:
    """The dataset with other images, flattened if it was."""
    x = images if dataset.x.ndim == 4 else images.flatten(1)
    return replace(dataset, x=x, image_shape=shape)
