"""Kernels in high dimension: Gaussian mixtures, equivalents, and their limiting spectra."""

from shoal.asymptotics.centering import centered
from shoal.asymptotics.coefficients import Coefficients, KernelCoefficients, coefficients
from shoal.asymptotics.covariances import (
    Covariance,
    DiagonalCovariance,
    FullCovariance,
    LowRankCovariance,
    ScalarCovariance,
)
from shoal.asymptotics.equivalent import Equivalent, Errors, equivalent
from shoal.asymptotics.equivalent_operator import (
    Basis,
    CrossOperator,
    CrossOperators,
    EquivalentOperator,
)
from shoal.asymptotics.estimation import estimate
from shoal.asymptotics.labels import class_indices
from shoal.asymptotics.law import Law
from shoal.asymptotics.mixture import GaussianMixture
from shoal.asymptotics.mixture_statistics import Estimate, MixtureStatistics
from shoal.asymptotics.spectrum import Atom, Spectra, Spectrum, spectrum
from shoal.asymptotics.spikes import Spike, Transition
from shoal.asymptotics.statistics import SampleStatistics

__all__ = [
    "Atom",
    "Basis",
    "Coefficients",
    "Covariance",
    "CrossOperator",
    "CrossOperators",
    "DiagonalCovariance",
    "Equivalent",
    "EquivalentOperator",
    "Errors",
    "Estimate",
    "FullCovariance",
    "GaussianMixture",
    "KernelCoefficients",
    "Law",
    "LowRankCovariance",
    "MixtureStatistics",
    "SampleStatistics",
    "ScalarCovariance",
    "Spectra",
    "Spectrum",
    "Spike",
    "Transition",
    "centered",
    "class_indices",
    "coefficients",
    "equivalent",
    "estimate",
    "spectrum",
]
