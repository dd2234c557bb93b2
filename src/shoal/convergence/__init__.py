"""How networks train: the dynamics of infinitely wide ones, without training them."""

from shoal.convergence.flow import gradient_flow
from shoal.convergence.linear import GradientFlow, LinearTraining

__all__ = ["GradientFlow", "LinearTraining", "gradient_flow"]
