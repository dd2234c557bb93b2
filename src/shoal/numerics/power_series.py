r"""Power series with nonnegative coefficients, of which no operation here loses a digit.

Nothing is ever subtracted, so each coefficient has its own relative accuracy, however small it is.
Series are arrays $f_0, f_1, \dots$ of one length, and everything is modulo the next power.
"""

import math

import numpy as np
import scipy  # whose parts are imported where they are first used

from shoal.core.exceptions import AccuracyError

Series = np.ndarray

_MOST_ORDERS = 20_000


def product(f: Series, g: Series) -> Series:
    """The product of two series."""
    result: Series = np.convolve(f, g)[: len(f)]
    return result


def composed(outer: Series, inner: Series) -> Series:
    r"""$\sum_j f_j g^j$ for an inner series without constant term, by Horner's rule."""
    result = np.zeros(len(inner))
    for coefficient in outer[len(inner) - 1 :: -1]:
        result = product(result, inner)
        result[0] += coefficient
    return result


def geometric(f: Series) -> Series:
    """The series of 1/(1 - f), f_0 < 1."""
    result = np.zeros(len(f))
    result[0] = 1 / (1 - f[0])
    for k in range(1, len(f)):
        result[k] = result[0] * (f[1 : k + 1] @ result[k - 1 :: -1][:k])
    return result


def needed_order(place: float, degree: int) -> int:
    """How many coefficients about zero determine ``degree`` of those about another place.

    Raises:
        AccuracyError: If they are too many: the place is too close to one.
    """
    if place == 0:
        return degree
    order = math.ceil((degree + 8 * math.sqrt(degree) + 40) / (1 - place))
    if order > _MOST_ORDERS:
        raise AccuracyError(
            f"the kernel hardly depends on the angle: hidden units at right angles are correlated "
            f"to {place:.6g}, and its power series would need {order} Hermite coefficients"
        )
    return order


def about(f: Series, place: float, degree: int) -> Series:
    r"""The coefficients of $f(p + (1 - p)\nu)$ in powers of $\nu$, for $0 \le p < 1$.

    $\sum_k f_k \binom{k}{j} p^{k-j} (1-p)^j$, binomial probabilities: nothing cancels.
    """
    if place == 0:
        return f[: degree + 1].copy()
    powers, orders = np.arange(degree + 1)[:, None], np.arange(len(f))
    result: Series = scipy.stats.binom.pmf(powers, orders, 1 - place) @ f
    return result
