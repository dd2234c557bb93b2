"""The value that all readers return: samples, with labels if there are any."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.checks import check_layout, check_values, float_dtype, instance, items


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Samples, their labels, and their description.

    Attributes:
        x: Samples, one per row: images of shape (n, channels, height, width), or vectors (n, d).
        y: Class indices into ``classes``, int64 of shape (n,); or floating-point targets of shape
            (n,) or (n, k); ``None`` without labels.
        name: Name of the dataset.
        classes: Names of the classes; empty for floating-point targets.
        source: Files that the data came from, or a description of how they were made.
        white: Value of a white pixel, if the samples are the bytes of images.
        columns: Name of the table's column that each feature of a vector stands for; empty if
            there is no table.
        notes: Sentences on decisions made in reading the data.

    Raises:
        TypeError: If ``x`` or ``y`` is not a tensor of a supported dtype.
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
    source: str = ""
    white: float = 255.0
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        instance("name", self.name, str)
        instance("source", self.source, str)
        items("classes", self.classes)
        _check_samples(self.x)
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
        """``y``, or a ``ValueError`` if there are no labels."""
        if self.y is None:
            raise ValueError(f"{self.name} must have labels, and has none")
        return self.y

    def take(self, rows: Tensor | slice) -> "Dataset":
        """Return the samples of some rows, with their labels.

        Args:
            rows: Indices of the samples.
        """
        return replace(self, x=self.x[rows], y=None if self.y is None else self.y[rows])

    def targets(self, outputs: int | None = None) -> Tensor:
        """Return the targets of a network, of shape (n, outputs), in the dtype of the samples.

        Two classes become -1 and 1, more classes one-hot rows; real targets are unchanged.

        Args:
            outputs: Number of outputs of the network, if known; with 2, two classes become one-hot
                rows. Another number than the labels need is a ``ValueError``.
        """
        labels, count = self.labels, len(self.classes)
        if not count:
            targets = labels[:, None] if labels.ndim == 1 else labels
        elif count == 2 and outputs != 2:
            targets = (2 * labels[:, None] - 1).to(self.x.dtype)
        else:
            targets = torch.nn.functional.one_hot(labels, count).to(self.x.dtype)
        if outputs not in (None, targets.shape[1]):
            raise ValueError(
                f"the network must have {targets.shape[1]} outputs for the labels of {self.name}, "
                f"got {outputs}"
            )
        return targets

    def as_floats(self, dtype: torch.dtype | None = None) -> "Dataset":
        """Return samples and real targets in a dtype; bytes become numbers in [0, 1].

        Args:
            dtype: Floating-point dtype, in which all numbers must be finite; PyTorch's default
                dtype by default.
        """
        kind = float_dtype("dtype", torch.get_default_dtype() if dtype is None else dtype)
        x = self.x.to(kind)
        x = x.div_(self.white) if self.x.dtype == torch.uint8 else x
        y = self.y if self.y is None or self.y.dtype == torch.int64 else self.y.to(kind)
        for values, converted in ((self.x, x), (self.y, y)):
            if values is None or converted is None or bool(converted.isfinite().all()):
                continue
            place = tuple((~converted.isfinite()).nonzero()[0].tolist())
            raise ValueError(
                f"{self.source or self.name}: expected numbers that are finite in {kind}, got "
                f"{float(values[place])} at {place}; dtype=torch.float64 has a wider range"
            )
        return replace(self, x=x, y=y)


def standardize(dataset: Dataset, *, like: Dataset | None = None) -> Dataset:
    """Give each feature mean zero and variance one; constant features become zero.

    Args:
        dataset: Dataset with floating-point samples.
        like: Dataset whose means and variances are used instead: the training data, if ``dataset``
            is the test data.

    Example:
        >>> import torch
        >>> from shoal import data
        >>> data.standardize(data.Dataset(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))).x
        tensor([[-1.,  0.],
                [ 1.,  0.]])
    """
    x = _float_samples(dataset)
    reference = x if like is None else _float_samples(like).to(x)
    if reference.shape[1:] != x.shape[1:]:
        shapes = f"{tuple(x.shape[1:])}, got {tuple(reference.shape[1:])}"
        raise ValueError(f"like must have samples of shape {shapes}")
    varies = reference.amin(0) < reference.amax(0)
    deviation = torch.where(varies, reference.std(0, correction=0), 1)
    x = torch.where(varies, (x - reference.mean(0)) / deviation, 0)
    return replace(dataset, x=x)


def _float_samples(dataset: Dataset) -> Tensor:
    x = instance("dataset", dataset, Dataset).x
    if not x.dtype.is_floating_point:
        raise TypeError(
            f"dataset must have floating-point samples, got {x.dtype} in {dataset.name!r}; "
            "load it without raw=True, or use as_floats"
        )
    return x


def _check_samples(x: Tensor) -> None:
    _check_tensor("x", x)
    if x.dtype.is_complex or x.dtype == torch.bool:
        raise TypeError(f"x must hold real numbers, got dtype {x.dtype}")
    if x.ndim < 2 or x.numel() == 0:
        raise ValueError(f"x must be (n, ...) with at least one entry, got shape {tuple(x.shape)}")


def _check_targets(y: Tensor, samples: int, classes: int) -> None:
    _check_tensor("y", y)
    if y.dtype != torch.int64 and not y.dtype.is_floating_point:
        raise TypeError(f"y must be int64 or floating-point, got dtype {y.dtype}")
    if y.ndim not in (1, 2) or len(y) != samples:
        raise ValueError(f"y must have {samples} rows, one per sample, got shape {tuple(y.shape)}")
    if y.dtype == torch.int64 and (y.ndim != 1 or int(y.min()) < 0 or int(y.max()) >= classes):
        raise ValueError(
            f"y must be one class index per sample, in 0..{classes - 1} for {classes} classes, "
            f"got {int(y.min())}..{int(y.max())} in shape {tuple(y.shape)}"
        )


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    check_layout(name, value)
    check_values(name, value)
