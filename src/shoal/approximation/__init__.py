"""Expensive smooth functions of one to three variables, represented once and evaluated fast.

`fit` finds the Chebyshev series of one function, or of several at once, with a stated error; that
of one is called like a function, at millions of points.
"""

from .chebyshev import Chebyshev
from .fitting import fit
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
    "chebyshev_basis",
    "chebyshev_nodes",
    "coefficients_from_values",
    "differentiate",
    "fit",
    "supremum",
    "values_from_coefficients",
]
