"""Kernels in high dimension: Gaussian mixtures, equivalents, and their limiting spectra."""

from shoal.asymptotics.centering import centered
from shoal.asymptotics.coefficients import Coefficients, KernelCoefficients, coefficients
from shoal.asymptotics.covariances import Covariance, DiagonalCovariance, FullCovariance
from shoal.asymptotics.equivalent import Equivalent, Errors, SampleStatistics, equivalent
from shoal.asymptotics.estimation import MixtureStatistics
from shoal.asymptotics.labels import class_indices
from shoal.asymptotics.law import Law
from shoal.asymptotics.mixture import GaussianMixture
from shoal.asymptotics.operator import Basis, CrossOperator, CrossOperators, EquivalentOperator
from shoal.asymptotics.spectrum import Atom, Spectra, Spectrum, spectrum
from shoal.asymptotics.spikes import Spike, Transition

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
    "FullCovariance",
    "GaussianMixture",
    "KernelCoefficients",
    "Law",
    "MixtureStatistics",
    "SampleStatistics",
    "Spectra",
    "Spectrum",
    "Spike",
    "Transition",
    "centered",
    "class_indices",
    "coefficients",
    "equivalent",
    "spectrum",
]
