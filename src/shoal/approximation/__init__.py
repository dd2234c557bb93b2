"""Expensive smooth functions of one to three variables, represented once and evaluated fast.

`fit` finds a Chebyshev series with a stated error, `fit_piecewise` cuts the box where one series
does not do, and the results are called like functions, at millions of points, differentiably.
"""

from .chebyshev import Chebyshev
from .fitting import fit, off_grid_error
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
    "off_grid_error",
    "supremum",
    "values_from_coefficients",
]
