"""Expensive smooth functions of one to three variables, represented once and evaluated fast.

`fit` finds a Chebyshev series with a stated error, `fit_piecewise` cuts an interval where one
series does not do, and the results are called like functions, at millions of points.
`fit_together` finds the coefficients of several series at once.
"""

from .chebyshev import Chebyshev
from .fitting import fit, fit_together
from .piecewise import PiecewiseChebyshev, fit_piecewise
from .series import (
    chebyshev_basis,
    chebyshev_nodes,
    coefficients_from_values,
    differentiate,
    supremum,
    values_from_coefficients,
)

__all__ = [
    "Chebyshev",
    "PiecewiseChebyshev",
    "chebyshev_basis",
    "chebyshev_nodes",
    "coefficients_from_values",
    "differentiate",
    "fit",
    "fit_piecewise",
    "fit_together",
    "supremum",
    "values_from_coefficients",
]
