"""Learning with the kernels of infinitely wide networks: regression, prediction, gradient flow."""

from shoal.learning.curves import Check, LearningCurve, learning_curve
from shoal.learning.decomposition import Decomposition
from shoal.learning.flow import gradient_flow
from shoal.learning.linear_training import GradientFlow, LinearTraining
from shoal.learning.regression import KernelRegression, LeaveOneOut, kernel_regression
from shoal.learning.ridges import RidgePath, Selection, ridge_path, select
from shoal.learning.systems import Cholesky, ConjugateGradients, Nystrom, Progress

__all__ = [
    "Check",
    "Cholesky",
    "ConjugateGradients",
    "Decomposition",
    "GradientFlow",
    "KernelRegression",
    "LearningCurve",
    "LeaveOneOut",
    "LinearTraining",
    "Nystrom",
    "Progress",
    "RidgePath",
    "Selection",
    "gradient_flow",
    "kernel_regression",
    "learning_curve",
    "ridge_path",
    "select",
]
