"""Sample covariances in the forms that a mixture can hold."""

import torch
from torch import Tensor

from shoal.checks import integer
from shoal.mixtures.covariances import (
    Covariance,
    DiagonalCovariance,
    FullCovariance,
    LowRankCovariance,
    ScalarCovariance,
)

__all__ = ["FORMS", "sample_covariance"]

FORMS = ("scalar", "diagonal", "full", "low-rank")


def sample_covariance(samples: Tensor, form: str, rank: int | None) -> Covariance:
    """The covariance of the rows, or the part of it that has this form.

    Args:
        samples: At least two, in rows.
        form: One of ``FORMS``.
        rank: For ``"low-rank"`` alone: how many principal components to keep, with the variances
            of the coordinates that they leave as the diagonal; all of them by default.
    """
    centered = (samples - samples.mean(0)) / (len(samples) - 1) ** 0.5
    if form == "scalar":
        return ScalarCovariance(
            float(centered.square().sum()) / centered.shape[1], centered.shape[1]
        )
    if form == "diagonal":
        return DiagonalCovariance(centered.square().sum(0))
    if form == "full":
        return FullCovariance(centered.T @ centered)
    return _low_rank(centered, rank)


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
