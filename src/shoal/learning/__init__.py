"""Learning with the kernels of infinitely wide networks: regression, prediction, gradient flow."""

from shoal.learning.convergence import GradientFlow, LinearTraining, gradient_flow
from shoal.learning.prediction import (
    Check,
    LearningCurve,
    learning_curve,
)
from shoal.learning.regression import (
    Cholesky,
    CombinedPreconditioner,
    ConjugateGradients,
    DiagonalPreconditioner,
    EquivalentPreconditioner,
    KernelRegression,
    LeaveOneOut,
    Nystrom,
    Preconditioner,
    Progress,
    RidgePath,
    Selection,
    kernel_regression,
    ridge_path,
    select,
)

__all__ = [
    "Check",
    "Cholesky",
    "CombinedPreconditioner",
    "ConjugateGradients",
    "DiagonalPreconditioner",
    "EquivalentPreconditioner",
    "GradientFlow",
    "KernelRegression",
    "LearningCurve",
    "LeaveOneOut",
    "LinearTraining",
    "Nystrom",
    "Preconditioner",
    "Progress",
    "RidgePath",
    "Selection",
    "gradient_flow",
    "kernel_regression",
    "learning_curve",
    "ridge_path",
    "select",
]
