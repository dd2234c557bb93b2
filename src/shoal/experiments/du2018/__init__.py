"""The claims of Du 2018: linear convergence, eigenvalues against depth, Gram stability."""

from shoal.experiments.du2018.convergence import LinearConvergence
from shoal.experiments.du2018.depth import DepthEigenvalue

__all__ = ["DepthEigenvalue", "LinearConvergence"]
