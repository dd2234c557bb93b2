"""Gaussian expectations of activations: moments, Hermite coefficients and duals."""

from shoal.gaussian.dual import dual, dual_derivative
from shoal.gaussian.hermite import hermite
from shoal.gaussian.moments import Moments, moments

__all__ = ["Moments", "dual", "dual_derivative", "hermite", "moments"]
