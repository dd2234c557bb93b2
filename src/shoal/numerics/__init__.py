"""Numerical methods that know nothing of networks: linear algebra, and Chebyshev series.

`fit` finds the Chebyshev series of one function, or of several at once, with a stated error; that
of one is called like a function, at millions of points.
"""

from shoal.numerics.chebyshev import Chebyshev
from shoal.numerics.cholesky import CholeskyFactor
from shoal.numerics.fitting import fit
from shoal.numerics.krylov import LinearSolve, conjugate_gradients
from shoal.numerics.low_rank import DiagonalOperator, LowRankPlusIdentity
from shoal.numerics.norms import Eigenpair, dominant_eigenpair, symmetric_norm
from shoal.numerics.operator import Operator
from shoal.numerics.series import (
    chebyshev_basis,
    chebyshev_nodes,
    coefficients_from_values,
    differentiate,
    supremum,
    values_from_coefficients,
)

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
    "supremum",
    "symmetric_norm",
    "values_from_coefficients",
]
