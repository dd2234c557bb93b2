"""Preprocessings of images: pixels as numbers, colors and size."""

from dataclasses import replace

import torch
from torch import Tensor

from shoal.core.checks import integer, room
from shoal.data.dataset import Dataset, check_dataset, float_samples, resolve_dtype

# The weights of red, green and blue in the luma of ITU-R BT.601, as image libraries use them.
_LUMA = (0.299, 0.587, 0.114)


def scale_pixels(dataset: Dataset, *, dtype: torch.dtype | None = None) -> Dataset:
    """Turn the bytes of raw images into numbers in [0, 1]; other numbers only get the dtype.

    Large sets are loaded raw, and scaled when few samples have been chosen from them.

    Args:
        dataset: Of any samples.
        dtype: PyTorch's default dtype by default.

    Raises:
        ValueError: If a number is not finite in that dtype.

    Example:
        >>> import torch
        >>> from shoal import data
        >>> digits = data.load("digits", raw=True)
        >>> few = data.scale_pixels(digits.take(torch.tensor([0, 5])))
        >>> few, float(few.x.max())
        (Dataset('digits', 2 samples of shape 1×8×8, float32, 10 classes), 1.0)
    """
    kind, x = resolve_dtype(dtype), check_dataset(dataset).x
    if x.dtype == torch.uint8:
        found = x.to(kind).div_(dataset.white)
    else:
        found = _converted(dataset, x, kind)
    y = dataset.y
    if y is not None and y.dtype.is_floating_point:
        y = _converted(dataset, y, kind)
    return replace(dataset, x=found, y=y)


def _converted(dataset: Dataset, values: Tensor, dtype: torch.dtype) -> Tensor:
    """Finite numbers in another dtype, in which they must be finite too."""
    found = values.to(dtype)
    outside = (~found.isfinite()).nonzero()
    if len(outside):
        place = tuple(outside[0].tolist())
        name = str(dtype).removeprefix("torch.")
        raise ValueError(
            f"{dataset.source or dataset.name}: expected numbers that are finite in {name}, got "
            f"{float(values[place])} at {place}; dtype=torch.float64 has a wider range"
        )
    return found


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
