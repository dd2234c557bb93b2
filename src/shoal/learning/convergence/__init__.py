"""How networks train: the dynamics of infinitely wide ones, without training them."""

from shoal.learning.convergence.flow import gradient_flow
from shoal.learning.convergence.linear import GradientFlow, LinearTraining

__all__ = ["GradientFlow", "LinearTraining", "gradient_flow"]
