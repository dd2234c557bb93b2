"""A profile as a table of Taylor polynomials, which is fast to evaluate."""

import math

import numpy as np

from shoal.activations import PiecewisePolynomial
from shoal.designs.profile import END, Profile

__all__ = ["tabulated"]

_DEGREE = 14
_TOLERANCE = (1e-15, 1e-14, 1e-13, 1e-12, 1e-12)  # of the function and its derivatives, relative
_SHARE = 0.01  # of the largest size elsewhere that counts where a derivative vanishes
_KEPT = len(_TOLERANCE) - 1
_FACTORIALS = np.array([float(math.factorial(j)) for j in range(_DEGREE + 3)])


def tabulated(profile: Profile, scale: float) -> PiecewisePolynomial:
    """The profile of x / scale as an activation.

    Taylor polynomials have each derivative with its own relative accuracy, so that neighbors fit to
    rounding; interpolation would not.
    """
    pieces = [*reversed(_half(profile, -1.0)), *_half(profile, 1.0)]
    low = [min(a, b) for a, b, _ in pieces]
    knots = tuple(scale * x for x in (*low, END))
    polynomials = tuple(tuple(p.tolist()) for _, _, p in pieces)
    return PiecewisePolynomial(knots, polynomials, (knots[0], knots[-1]))


def _half(profile: Profile, side: float) -> list[tuple[float, float, np.ndarray]]:
    """The pieces from zero to one end: where they begin and end, and their coefficients."""
    size = np.abs([profile.derivatives(side * x, _KEPT) for x in np.linspace(0.1, END, 50)]).max(0)
    pieces, start, half = [], 0.0, END
    while start < END:
        half = min(2 * half, (END - start) / 2)
        while True:
            middle = side * (start + half)
            terms = profile.derivatives(middle, _DEGREE + 2) / _FACTORIALS
            if _converged(terms, half, size):
                break
            half *= 0.8
        end = start + 2 * half
        end = END if end > END * (1 - 1e-12) else end
        powers = half ** np.arange(_DEGREE + 1)
        pieces.append((side * start, side * end, terms[: _DEGREE + 1] * powers))
        start = end
    return pieces


def _converged(terms: np.ndarray, half: float, size: np.ndarray) -> bool:
    """Whether what is left out is rounding, for the function and its first derivatives."""
    rest = np.abs(terms[_DEGREE + 1 :]) @ half ** np.arange(_DEGREE + 1, _DEGREE + 3)
    orders = np.arange(_KEPT + 1)
    lost = rest * ((_DEGREE + 2) / half) ** orders
    local = np.maximum(np.abs(terms[: _KEPT + 1]) * _FACTORIALS[: _KEPT + 1], _SHARE * size)
    return bool((lost <= np.array(_TOLERANCE) * local).all())
