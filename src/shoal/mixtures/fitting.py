"""Sample covariances in the forms that a mixture can hold."""

import math

import torch
from torch import Tensor

from shoal.core.checks import integer
from shoal.mixtures.covariances import (
    Covariance,
    DiagonalCovariance,
    FullCovariance,
    LowRankCovariance,
    ScalarCovariance,
)

__all__ = ["FORMS", "sample_covariance"]

FORMS = ("scalar", "diagonal", "full", "low-rank")


def sample_covariance(centered: Tensor, scale: float, form: str, rank: int | None) -> Covariance:
    """The covariance of samples, or the part of it that has this form.

    Args:
        centered: At least two samples in rows, less their mean.
        scale: What to multiply the covariance with.
        form: One of ``FORMS``.
        rank: For ``"low-rank"`` alone: how many principal components to keep, with the variances
            of the coordinates that they leave as the diagonal; all of them by default.
    """
    count, dimension = centered.shape
    factor = scale / (count - 1)
    if form == "scalar":
        return ScalarCovariance(factor * float(centered.square().sum()) / dimension, dimension)
    if form == "diagonal":
        return DiagonalCovariance(factor * centered.square().sum(0))
    if form == "full":
        return FullCovariance(factor * (centered.T @ centered))
    return _low_rank(math.sqrt(factor) * centered, rank)


def _low_rank(centered: Tensor, rank: int | None) -> LowRankCovariance:
    if rank is None:
        return LowRankCovariance(centered.T)
    most = min(centered.shape)
    if integer("rank", rank, at_least=1) > most:
        raise ValueError(
            f"rank must be <= {most}, the smaller of samples and dimension, got {rank}"
        )
    _, values, rows = torch.linalg.svd(centered, full_matrices=False)
    factor = (values[:rank, None] * rows[:rank]).T
    rest = centered.square().sum(0) - factor.square().sum(1)
    return LowRankCovariance(factor, rest.clamp_min(0.0))
