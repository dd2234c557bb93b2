"""Preprocessings of labels: which classes, how many samples, and as which numbers."""

from dataclasses import replace

import torch
from torch import Tensor

from shoal.core.checks import integer, seeded
from shoal.data.dataset import Dataset, check_dataset, class_labels


def select_classes(dataset: Dataset, *classes: int | str) -> Dataset:
    """Keep the samples of some classes, which are then counted 0, 1, ... in the order given.

    Args:
        dataset: With class labels.
        *classes: Indices or names of classes.

    Raises:
        TypeError: If a class is neither an index nor a name.
        ValueError: If no class is given, one twice, or one that does not exist or has no samples.

    Example:
        >>> from shoal import data
        >>> pair = data.two_gaussians(4, 16, seed=0)
        >>> data.select_classes(pair, "2").classes
        ('2',)
    """
    labels = class_labels(dataset)
    chosen = [_class_index(dataset, item) for item in classes]
    if not chosen or len(set(chosen)) != len(chosen):
        raise ValueError(f"classes must be one or more different classes, got {classes}")
    position = torch.full((len(dataset.classes),), -1, device=labels.device)
    for place, index in enumerate(chosen):
        position[index] = place
        if not bool((labels == index).any()):
            raise ValueError(f"{dataset.name!r} has no samples of class {dataset.classes[index]!r}")
    y = position[labels]
    kept = y >= 0
    names = tuple(dataset.classes[index] for index in chosen)
    return replace(dataset, x=dataset.x[kept], y=y[kept], classes=names)


def _class_index(dataset: Dataset, item: object) -> int:
    names = dataset.classes
    if isinstance(item, str):
        if item not in names:
            raise ValueError(f"classes must be among {', '.join(map(repr, names))}, got {item!r}")
        return names.index(item)
    index = integer("classes", item, at_least=0)
    if index >= len(names):
        raise ValueError(f"classes must be names or indices in 0..{len(names) - 1}, got {index}")
    return index


def subsample(dataset: Dataset, n_per_class: int, *, seed: int) -> Dataset:
    """Draw the same number of samples from each class, without replacement, in their order.

    Args:
        dataset: With class labels.
        n_per_class: How many from each class.
        seed: The same seed draws the same samples.

    Raises:
        ValueError: If a class has fewer.

    Example:
        >>> from shoal import data
        >>> len(data.subsample(data.two_gaussians(100, 16, seed=0), 10, seed=1))
        20
    """
    labels = class_labels(dataset).cpu()
    integer("n_per_class", n_per_class, at_least=1)
    generator, drawn = seeded("seed", seed), []
    for index, name in enumerate(dataset.classes):
        members = torch.nonzero(labels == index)[:, 0]
        if len(members) < n_per_class:
            raise ValueError(
                f"n_per_class must be <= {len(members)}, the size of class {name!r} of "
                f"{dataset.name!r}, got {n_per_class}"
            )
        drawn.append(
            members[torch.randperm(len(members), generator=generator, device="cpu")[:n_per_class]]
        )
    return dataset.take(torch.cat(drawn).sort().values.to(dataset.x.device))


def signed_labels(dataset: Dataset) -> Dataset:
    """Replace the two classes by the targets -1 and +1.

    Args:
        dataset: With labels of two classes.

    Raises:
        ValueError: If there are more classes, or fewer.

    Example:
        >>> from shoal import data
        >>> data.signed_labels(data.two_gaussians(4, 16, seed=0)).y
        tensor([-1., -1.,  1.,  1.])
    """
    labels = class_labels(dataset)
    if len(dataset.classes) != 2:
        raise ValueError(
            f"dataset must have two classes, got {len(dataset.classes)} in {dataset.name!r}; "
            "choose them by select_classes"
        )
    return replace(dataset, y=(2 * labels - 1).to(_target_dtype(dataset.x)))


def one_hot(dataset: Dataset) -> Dataset:
    """Replace labels by rows with a 1 at the place of the class.

    Args:
        dataset: With class labels.

    Example:
        >>> from shoal import data
        >>> data.one_hot(data.two_gaussians(2, 16, seed=0)).y
        tensor([[1., 0.],
                [0., 1.]])
    """
    labels = class_labels(check_dataset(dataset))
    identity = torch.eye(len(dataset.classes), dtype=_target_dtype(dataset.x), device=labels.device)
    return replace(dataset, y=identity[labels])


def _target_dtype(x: Tensor) -> torch.dtype:
    return x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
