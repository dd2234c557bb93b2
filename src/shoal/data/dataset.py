"""What all readers and samplers return: samples with their labels."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

from shoal.core.checks import check_layout, check_values, float_dtype, instance, items, size

__all__ = ["Dataset", "check_dataset", "class_labels", "float_samples", "resolve_dtype"]

_Options = ParamSpec("_Options")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Samples, their labels, and what is known of them.

    Attributes:
        x: The samples, one per row: images as (n, channels, height, width), or vectors (n, d).
        y: Class indices, int64 of shape (n,), into ``classes``; or floating-point targets, of shape
            (n,) or (n, k).
        name: What the data are called.
        classes: The name of each class; empty if the targets are no classes.
        image_shape: (channels, height, width) if the samples are images, flattened or not.
        source: The files that the data came from, or how they were made.

    Raises:
        TypeError: If ``x`` or ``y`` is no tensor of a dtype that it may have.
        ValueError: If the fields contradict each other.

    Example:
        >>> import torch
        >>> from shoal.data import Dataset
        >>> Dataset(torch.eye(3), torch.tensor([0, 1, 1]), "toy", classes=("cat", "dog"))
        Dataset('toy', 3 samples of shape 3, float32, 2 classes)
    """

    x: Tensor
    y: Tensor
    name: str
    classes: tuple[str, ...] = ()
    image_shape: tuple[int, int, int] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        instance("name", self.name, str)
        instance("source", self.source, str)
        items("classes", self.classes)
        _check_samples(self.x, self.image_shape)
        _check_targets(self.y, len(self.x), len(self.classes))

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.x.shape[1:]))
        dtype = str(self.x.dtype).removeprefix("torch.")
        targets = f"{len(self.classes)} classes" if self.classes else "real targets"
        return f"Dataset({self.name!r}, {len(self)} samples of shape {shape}, {dtype}, {targets})"

    def pipe(
        self,
        function: "Callable[Concatenate[Dataset, _Options], Dataset]",
        *args: _Options.args,
        **options: _Options.kwargs,
    ) -> "Dataset":
        """Apply a preprocessing: ``d.pipe(f, a, b=c)`` is ``f(d, a, b=c)``, and reads in order.

        Args:
            function: Takes a dataset first, and returns one.
            *args: Its other arguments.
            **options: Its options.

        Example:
            >>> from shoal import data
            >>> pair = data.two_gaussians(40, 16, seed=0)
            >>> pair.pipe(data.subsample, 5, seed=1).pipe(data.unit_norm)
            Dataset('two Gaussians', 10 samples of shape 16, float32, 2 classes)
        """
        return function(self, *args, **options)


def _check_samples(x: object, image_shape: tuple[int, int, int] | None) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    check_layout("x", x)
    check_values("x", x)
    if x.dtype.is_complex or x.dtype == torch.bool:
        raise TypeError(f"x must hold real numbers, got dtype {x.dtype}")
    if x.ndim < 2 or x.numel() == 0:
        raise ValueError(f"x must be (n, ...) with at least one entry, got shape {tuple(x.shape)}")
    if image_shape is None:
        return
    shape = tuple(x.shape[1:])
    for length in items("image_shape", image_shape):
        size("image_shape", length)
    if len(image_shape) != 3 or shape not in {tuple(image_shape), (math.prod(image_shape),)}:
        raise ValueError(
            f"x must have samples of image_shape {tuple(image_shape)}, flattened or not, "
            f"got samples of shape {shape}"
        )


def _check_targets(y: object, samples: int, classes: int) -> None:
    if not isinstance(y, Tensor):
        raise TypeError(f"y must be a tensor, got {type(y).__name__}")
    check_layout("y", y)
    check_values("y", y)
    if y.dtype != torch.int64 and not y.dtype.is_floating_point:
        raise TypeError(f"y must be int64 or floating-point, got dtype {y.dtype}")
    if y.ndim not in (1, 2) or len(y) != samples:
        raise ValueError(f"y must have {samples} rows, one per sample, got shape {tuple(y.shape)}")
    if y.dtype != torch.int64:
        return
    low, high = int(y.min()), int(y.max())
    if y.ndim != 1 or low < 0 or high >= classes:
        raise ValueError(
            f"y must be one class index per sample, in 0..{classes - 1} for {classes} classes, "
            f"got {low}..{high} in shape {tuple(y.shape)}"
        )


def check_dataset(value: object) -> Dataset:
    """Return ``value`` if it is a dataset, or say what it is."""
    if not isinstance(value, Dataset):
        raise TypeError(f"dataset must be a shoal.data.Dataset, got {type(value).__name__}")
    return value


def class_labels(dataset: Dataset) -> Tensor:
    """The class indices of a dataset, or an error if its targets are no class indices."""
    check_dataset(dataset)
    if dataset.y.dtype != torch.int64:
        raise ValueError(
            f"dataset must have class indices as y, got {dataset.name!r} with real targets; "
            "select and draw by class before the labels become numbers"
        )
    return dataset.y


def float_samples(dataset: Dataset) -> Tensor:
    """The samples of a dataset, or an error if they are raw integers."""
    check_dataset(dataset)
    if not dataset.x.dtype.is_floating_point:
        raise TypeError(
            f"dataset must have floating-point samples, got {dataset.x.dtype} in {dataset.name!r}; "
            "load it without raw=True"
        )
    return dataset.x


def resolve_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of samples: ``dtype``, or PyTorch's default."""
    chosen = torch.get_default_dtype() if dtype is None else dtype
    return float_dtype("dtype", chosen)
