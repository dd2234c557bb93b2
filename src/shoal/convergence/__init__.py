"""How networks train: the dynamics of infinitely wide ones, without training them."""

from shoal.convergence.flow import gradient_flow
from shoal.convergence.linear import LinearTraining
from shoal.convergence.result import GradientFlow

__all__ = ["GradientFlow", "LinearTraining", "gradient_flow"]
