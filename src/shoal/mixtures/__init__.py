"""Gaussian mixtures in high dimension: their values, samples, and estimates from data."""

from shoal.mixtures.covariances import (
    Covariance,
    DiagonalCovariance,
    FullCovariance,
    LowRankCovariance,
    ScalarCovariance,
)
from shoal.mixtures.estimation import estimate
from shoal.mixtures.labels import class_indices
from shoal.mixtures.mixture import GaussianMixture
from shoal.mixtures.statistics import Estimate, MixtureStatistics

__all__ = [
    "Covariance",
    "DiagonalCovariance",
    "Estimate",
    "FullCovariance",
    "GaussianMixture",
    "LowRankCovariance",
    "MixtureStatistics",
    "ScalarCovariance",
    "class_indices",
    "estimate",
]
