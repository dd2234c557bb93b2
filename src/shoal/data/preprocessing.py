"""Preprocessing steps: functions of a dataset that return a dataset."""

from dataclasses import replace

import torch
from torch import Tensor

from shoal.core.checks import instance, integer, seeded
from shoal.data.dataset import Dataset


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


def select_classes(dataset: Dataset, *classes: int | str) -> Dataset:
    """Keep the samples of some classes, renumbered 0, 1, ... in the given order.

    Args:
        dataset: Dataset with class labels.
        *classes: Indices or names of classes, all different, each with at least one sample.

    Example:
        >>> from shoal import data
        >>> data.select_classes(data.load("digits"), 6, 8).classes
        ('6', '8')
    """
    labels, names = _class_labels(dataset), dataset.classes
    chosen = [names.index(c) if c in names else c for c in classes]
    indices = [integer("classes", c, at_least=0) for c in chosen if not isinstance(c, str)]
    if not chosen or len(set(indices)) < len(chosen) or max(indices) >= len(names):
        raise ValueError(
            f"classes must be one or more different names among {', '.join(map(repr, names))}, "
            f"or indices in 0..{len(names) - 1}, got {classes}"
        )
    position = torch.full((len(names),), -1, device=labels.device)
    for place, index in enumerate(indices):
        position[index] = place
        if not bool((labels == index).any()):
            raise ValueError(f"{dataset.name!r} has no samples of class {names[index]!r}")
    y = position[labels]
    kept = y >= 0
    return replace(dataset, x=dataset.x[kept], y=y[kept], classes=tuple(names[i] for i in indices))


def subsample(dataset: Dataset, n_per_class: int, *, seed: int) -> Dataset:
    """Draw the same number of samples from each class, without replacement, in their order.

    Args:
        dataset: Dataset with class labels.
        n_per_class: Number of samples from each class, at most the size of the smallest.
        seed: Seed of the draw.
    """
    labels = _class_labels(dataset).cpu()
    integer("n_per_class", n_per_class, at_least=1)
    generator, drawn = seeded("seed", seed), []
    for index, name in enumerate(dataset.classes):
        members = torch.nonzero(labels == index)[:, 0]
        if len(members) < n_per_class:
            raise ValueError(
                f"n_per_class must be <= {len(members)}, the size of class {name!r} of "
                f"{dataset.name!r}, got {n_per_class}"
            )
        order = torch.randperm(len(members), generator=generator, device="cpu")
        drawn.append(members[order[:n_per_class]])
    return dataset.take(torch.cat(drawn).sort().values.to(dataset.x.device))


def _class_labels(dataset: Dataset) -> Tensor:
    if instance("dataset", dataset, Dataset).labels.dtype != torch.int64:
        raise ValueError(
            f"dataset must have class indices as y, got {dataset.name!r} with real targets; "
            "select and draw by class before the labels become numbers"
        )
    return dataset.labels


def _float_samples(dataset: Dataset) -> Tensor:
    x = instance("dataset", dataset, Dataset).x
    if not x.dtype.is_floating_point:
        raise TypeError(
            f"dataset must have floating-point samples, got {x.dtype} in {dataset.name!r}; "
            "load it without raw=True, or use as_floats"
        )
    return x
