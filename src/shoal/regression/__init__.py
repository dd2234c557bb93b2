"""Regression with the kernels of infinitely wide networks, for many samples."""

from shoal.regression.cholesky import CholeskyFactor
from shoal.regression.kernel_regression import kernel_regression
from shoal.regression.methods import Cholesky, ConjugateGradients
from shoal.regression.preconditioners import (
    CombinedPreconditioner,
    Diagonal,
    DiagonalPreconditioner,
    EquivalentPreconditioner,
    LowRank,
    Nystrom,
    Preconditioner,
)
from shoal.regression.result import Estimate, KernelRegression, Report
from shoal.regression.solver import Progress

__all__ = [
    "Cholesky",
    "CholeskyFactor",
    "CombinedPreconditioner",
    "ConjugateGradients",
    "Diagonal",
    "DiagonalPreconditioner",
    "EquivalentPreconditioner",
    "Estimate",
    "KernelRegression",
    "LowRank",
    "Nystrom",
    "Preconditioner",
    "Progress",
    "Report",
    "kernel_regression",
]
