"""What all readers and samplers return: samples, with their labels if they have any."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

from shoal.core.checks import check_layout, check_values, float_dtype, instance, items, seeded, size

_Options = ParamSpec("_Options")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Samples, their labels, and what is known of them.

    Attributes:
        x: The samples, one per row: images as (n, channels, height, width), or vectors (n, d).
        y: Class indices, int64 of shape (n,), into ``classes``; or floating-point targets, of shape
            (n,) or (n, k); ``None`` if there are no labels.
        name: What the data are called.
        classes: The name of each class; empty if the targets are no classes.
        image_shape: (channels, height, width) if the samples are images, flattened or not.
        source: The files that the data came from, or how they were made.
        white: The value of a white pixel, if the samples are the bytes of images.
        seed: What draws fewer samples from these; without one, the first are taken.
        rows: Where the samples are in what was loaded, if not all of it was taken.
        standardized: Whether the columns were given a mean of zero and a variance of one.
        notes: Sentences on what was done to the data.

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
    y: Tensor | None = None
    name: str = "data"
    classes: tuple[str, ...] = ()
    image_shape: tuple[int, int, int] | None = None
    source: str = ""
    white: float = 255.0
    seed: int | None = None
    rows: tuple[int, ...] | None = None
    standardized: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        instance("name", self.name, str)
        instance("source", self.source, str)
        items("classes", self.classes)
        _check_samples(self.x, self.image_shape)
        if self.y is not None:
            _check_targets(self.y, len(self.x), len(self.classes))
        elif self.classes:
            raise ValueError(f"y must be class indices if there are classes, got {self.classes}")

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.x.shape[1:]))
        dtype = str(self.x.dtype).removeprefix("torch.")
        targets = f"{len(self.classes)} classes" if self.classes else "real targets"
        targets = "no labels" if self.y is None else targets
        return f"Dataset({self.name!r}, {len(self)} samples of shape {shape}, {dtype}, {targets})"

    @property
    def labels(self) -> Tensor:
        """``y``, which must be there."""
        if self.y is None:
            raise ValueError(f"{self.name} must have labels, and has none")
        return self.y

    def take(self, rows: Tensor | slice) -> "Dataset":
        """Some of the samples, with their labels.

        Args:
            rows: Their indices.
        """
        return replace(self, x=self.x[rows], y=None if self.y is None else self.y[rows])

    def drawn(self, most: int | None = None) -> Tensor:
        """Indices of some samples, of each class its share, in the order in which they are drawn.

        Args:
            most: How many; all by default, and where there are fewer.
        """
        classes = self.y if self.classes else None
        return drawn_order(len(self), classes, self.seed)[:most].to(self.x.device)

    def targets(self, outputs: int | None = None) -> Tensor:
        """What a network learns, of shape (n, outputs), in the dtype of the samples.

        Two classes become -1 and 1, more of them rows with a 1 at the place of the class. Real
        targets are taken as they are.

        Args:
            outputs: How many outputs the network has, where that is known: two for two classes
                make rows of them too.

        Raises:
            ValueError: If there are no labels, or they need another number of outputs.
        """
        labels, count = self.labels, len(self.classes)
        if not count:
            found = labels[:, None] if labels.ndim == 1 else labels
        elif count == 2 and outputs != 2:
            found = (2 * labels[:, None] - 1).to(self.x.dtype)
        else:
            found = torch.nn.functional.one_hot(labels, count).to(self.x.dtype)
        if outputs not in (None, found.shape[1]):
            raise ValueError(
                f"the network must have {found.shape[1]} outputs for the labels of {self.name}, "
                f"got {outputs}"
            )
        return found

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


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    check_layout(name, value)
    check_values(name, value)


def _check_samples(x: Tensor, image_shape: tuple[int, int, int] | None) -> None:
    _check_tensor("x", x)
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


def _check_targets(y: Tensor, samples: int, classes: int) -> None:
    _check_tensor("y", y)
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
    if dataset.labels.dtype != torch.int64:
        raise ValueError(
            f"dataset must have class indices as y, got {dataset.name!r} with real targets; "
            "select and draw by class before the labels become numbers"
        )
    return dataset.labels


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


def drawn_order(samples: int, classes: Tensor | None, seed: int | None) -> Tensor:
    """An order of samples in which the first ones, however many, have the classes in their shares.

    Args:
        samples: How many there are.
        classes: Class indices, of shape (samples,), where there are any.
        seed: Of the draws; without one, the samples are in the order in which they come.
    """
    if seed is None:
        return torch.arange(samples, device="cpu")
    generator = seeded("seed", seed)
    order = torch.randperm(samples, generator=generator, device="cpu")
    if classes is None:
        return order
    jitter = torch.rand(samples, generator=generator, dtype=torch.float64, device="cpu")
    place = torch.empty_like(jitter)  # within the class, from zero to one
    classes = classes.cpu()[order]
    for index in classes.unique():
        members = (classes == index).nonzero()[:, 0]
        ranks = torch.arange(len(members)).to(jitter)
        place[members] = (ranks + jitter[members]) / len(members)
    return order[place.argsort(stable=True)]
