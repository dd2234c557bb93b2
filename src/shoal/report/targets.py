"""What the networks of an analysis learn."""

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.data import Dataset
from shoal.report.section import NothingToSayError

__all__ = ["Targets", "learnable", "on_sphere"]


class Targets(NamedTuple):
    """Targets of shape (n, outputs), and what they are in words."""

    values: Tensor
    words: str


def learnable(data: Dataset) -> Targets:
    """Classes; real targets without their mean and size; or, without labels, the main direction.

    Args:
        data: The data.
    """
    if data.y is not None and data.classes:
        return Targets(data.targets(), f"{len(data.classes)} classes")
    if data.y is not None:
        return Targets(_standard(data.targets()), "real targets, standardized")
    direction = torch.linalg.svd(data.x, full_matrices=False).Vh[0]
    direction = direction * direction[direction.abs().argmax()].sign()  # SVD leaves it open
    return Targets(_standard(data.x @ direction[:, None]), "no labels: the first principal axis")


def on_sphere(data: Dataset, most: int, least: int = 1) -> tuple[Tensor, Targets]:
    """Drawn samples, scaled to norm one, with targets; without direction they are left out.

    Args:
        data: The data.
        most: How many samples at most.
        least: How many at least.

    Raises:
        NothingToSayError: If there are fewer, or their targets are constant.
    """
    values, words = learnable(data)
    order = data.drawn()
    there = order[data.x[order].norm(dim=1) > 0][:most]
    if len(there) < least:
        raise NothingToSayError(f"needs {least} samples or more")
    if not bool(values[there].any()):
        raise NothingToSayError("the targets are constant")
    x = torch.nn.functional.normalize(data.x[there].double())
    return x, Targets(values[there].double(), words)


def _standard(values: Tensor) -> Tensor:
    centered = values - values.mean()
    size = centered.square().mean().sqrt()
    return centered / size if size > 0 else centered
