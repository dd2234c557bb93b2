"""Regression with the kernels of infinitely wide networks, for many samples."""

from shoal.regression.cholesky import Cholesky
from shoal.regression.preconditioners import Diagonal, LowRank
from shoal.regression.result import Estimate, KernelRegression, Report
from shoal.regression.solver import Progress
from shoal.regression.verb import kernel_regression

__all__ = [
    "Cholesky",
    "Diagonal",
    "Estimate",
    "KernelRegression",
    "LowRank",
    "Progress",
    "Report",
    "kernel_regression",
]
