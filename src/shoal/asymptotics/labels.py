"""Labels of samples, as indices of classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.checks import host_array, items, unmasked

Class = int | str
Labels = Tensor | NDArray[Any] | Sequence[int] | Sequence[str]


def classes_of(labels: Labels, name: str = "labels") -> tuple[Class, ...]:
    """The classes that occur, in order, of labels that messages call by a name.

    Example:
        >>> classes_of(["whale", "krill", "whale"])
        ('krill', 'whale')
    """
    return tuple(np.unique(_array(labels, name)).tolist())


def class_indices(
    labels: Labels, classes: Sequence[Class], *, samples: int | None = None
) -> Tensor:
    """The place of each label among ``classes``.

    Args:
        labels: Integers or strings.
        classes: Different ones, all of the labels among them.
        samples: Required number of labels, if known.

    Raises:
        TypeError: If labels are neither integers nor strings.
        ValueError: If a label is not among the classes, or there are too few or too many.

    Example:
        >>> class_indices([8, 6, 6], classes=(6, 8))
        tensor([1, 0, 0])
    """
    array = _array(labels, "labels")
    places = {name: place for place, name in enumerate(items("classes", classes))}
    names, inverse = np.unique(array, return_inverse=True)
    unknown = [name for name in names.tolist() if name not in places]
    if unknown:
        listed = ", ".join(map(repr, classes))
        raise ValueError(f"labels must be among the classes {listed}, got {unknown[0]!r}")
    if samples not in (None, len(array)):
        raise ValueError(
            f"labels must be as many as samples, got {len(array)} for {samples} samples"
        )
    return torch.tensor([places[name] for name in names.tolist()])[torch.from_numpy(inverse)]


def _array(labels: object, name: str) -> NDArray[Any]:
    unmasked(name, labels)
    try:
        array = host_array(name, labels) if isinstance(labels, Tensor) else np.asarray(labels)
    except ValueError:
        raise ValueError(f"{name} must have shape (samples,), got a ragged sequence") from None
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must have shape (samples,), got {array.shape}")
    if array.dtype.kind == "O" and all(isinstance(item, str) for item in array):
        return array.astype(str)  # as pandas and scikit-learn keep strings
    if array.dtype.kind not in "iuU":
        raise TypeError(f"{name} must be integers or strings, got dtype {array.dtype}")
    # NumPy makes strings of integers that stand next to strings
    if array.dtype.kind == "U" and not isinstance(labels, np.ndarray):
        other = [item for item in labels if not isinstance(item, str)]  # type: ignore[attr-defined]
        if other:
            raise TypeError(f"{name} must be integers or strings, not both, got {other[0]!r}")
    return array
