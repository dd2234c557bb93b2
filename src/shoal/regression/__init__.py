"""Regression with the kernels of infinitely wide networks, for many samples."""

from shoal.linalg import CholeskyFactor, Columns, Diagonal
from shoal.regression.cost import Cost, CostModel
from shoal.regression.kernel_regression import kernel_regression
from shoal.regression.preconditioners import (
    CombinedPreconditioner,
    DiagonalPreconditioner,
    EquivalentPreconditioner,
    Nystrom,
    Preconditioner,
)
from shoal.regression.result import Estimate, KernelRegression, LeaveOneOut, Report
from shoal.regression.ridge_path import RidgePath, ridge_path
from shoal.regression.selection import Selection, select
from shoal.regression.solver import Cholesky, ConjugateGradients, Progress

__all__ = [
    "Cholesky",
    "CholeskyFactor",
    "Columns",
    "CombinedPreconditioner",
    "ConjugateGradients",
    "Cost",
    "CostModel",
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
