"""Regression with the kernels of infinitely wide networks, for many samples."""

from shoal.learning.regression.kernel_regression import kernel_regression
from shoal.learning.regression.preconditioners import (
    CombinedPreconditioner,
    DiagonalPreconditioner,
    EquivalentPreconditioner,
    Nystrom,
    Preconditioner,
)
from shoal.learning.regression.result import Estimate, KernelRegression, LeaveOneOut, Report
from shoal.learning.regression.ridge_path import RidgePath, ridge_path
from shoal.learning.regression.selection import Selection, select
from shoal.learning.regression.solver import Cholesky, ConjugateGradients, Progress
from shoal.numerics import CholeskyFactor, Columns, Diagonal

__all__ = [
    "Cholesky",
    "CholeskyFactor",
    "Columns",
    "CombinedPreconditioner",
    "ConjugateGradients",
    "Diagonal",
    "DiagonalPreconditioner",
    "EquivalentPreconditioner",
    "Estimate",
    "KernelRegression",
    "LeaveOneOut",
    "Nystrom",
    "Preconditioner",
    "Progress",
    "Report",
    "RidgePath",
    "Selection",
    "kernel_regression",
    "ridge_path",
    "select",
]
