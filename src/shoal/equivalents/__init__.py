"""What kernels are in high dimension: expansions in norms and inner products, and their sums."""

from shoal.equivalents.centering import centered
from shoal.equivalents.coefficients import Coefficients, coefficients

__all__ = ["Coefficients", "centered", "coefficients"]
