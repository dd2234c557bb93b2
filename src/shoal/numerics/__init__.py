"""Numerical methods that know nothing of networks: linear algebra, and Chebyshev series.

`fit` finds the Chebyshev series of a function, or of several at once, with a stated error.
"""

from shoal.numerics.chebyshev import (
    Chebyshev,
    chebyshev_basis,
    chebyshev_nodes,
    coefficients_from_values,
    differentiate,
    fit,
    off_grid,
)
from shoal.numerics.cholesky import CholeskyFactor
from shoal.numerics.krylov import LinearSolve, conjugate_gradients
from shoal.numerics.norms import Eigenpair, dominant_eigenpair, symmetric_norm
from shoal.numerics.operator import DiagonalOperator, LowRankPlusIdentity, Operator

__all__ = [
    "Chebyshev",
    "CholeskyFactor",
    "DiagonalOperator",
    "Eigenpair",
    "LinearSolve",
    "LowRankPlusIdentity",
    "Operator",
    "chebyshev_basis",
    "chebyshev_nodes",
    "coefficients_from_values",
    "conjugate_gradients",
    "differentiate",
    "dominant_eigenpair",
    "fit",
    "off_grid",
    "symmetric_norm",
]
