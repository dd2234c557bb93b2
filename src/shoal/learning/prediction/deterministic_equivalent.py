r"""The error of ridge regression on random samples, and on random features, from what is learned.

Let $\lambda_i$ be the eigenvalues of a kernel's operator, $v_i$ the coefficients of the target and
$\sigma^2$ what is not learned from any number of samples. A ridge regression learns a share
$L_i = \lambda_i/(\lambda_i + \kappa)$ of each component, with one effective regularization
$\kappa$, which on $n$ samples, with ridge $\lambda$, solves
$$\lambda = \kappa\,(n - \textstyle\sum_i L_i)$$
(Simon et al. 2021). If only $m$ random features of the kernel are seen, they act on functions as
samples act on features: their own regression has $\kappa_1 = \kappa\,(1 - \sum_i L_i/m)$ in the
place of $\kappa$, so that
$$\lambda = \kappa\,(n - \textstyle\sum_i L_i)(1 - \sum_i L_i/m),$$
which is the pair of equations of Defilippis, Loureiro and Misiakiewicz (2024) without the square
root that eliminates one of them. Neither $n$ nor $m$ can be less than $\sum_i L_i$.
"""

from collections.abc import Callable
from typing import NamedTuple

import scipy  # whose parts are imported where they are first used

_PEAK = 1e-12  # as many features as samples, and no ridge: the error has no bound


class Learned(NamedTuple):
    r"""What is learned at one effective regularization.

    Attributes:
        freedom: $\sum_i L_i$.
        squares: $\sum_i L_i^2$.
        bias: $\sum_i (1 - L_i)^2 v_i^2 + \sigma^2$, the error of the mean predictor.
        cross: $\sum_i L_i (1 - L_i) v_i^2$, by which features differ.
    """

    freedom: float
    squares: float
    bias: float
    cross: float


class Regression(NamedTuple):
    r"""A ridge regression.

    Attributes:
        size: $n$, on how many samples.
        ridge: $\lambda$.
        width: $m$, with how many random features in the place of the kernel, if any.
    """

    size: int
    ridge: float
    width: int | None

    def solve(self, learned: Callable[[float], tuple[float, float]], low: float) -> float:
        r"""The place, from ``low`` on, at which $\kappa$ is that of the regression.

        Args:
            learned: $\sum_i L_i$ and $1/\kappa$ at a place; both fall.
            low: Where places begin; the answer, if the regression learns more than at any.
        """
        size, ridge, width = self

        def excess(place: float) -> float:
            freedom, inverse = learned(place)
            share = 1.0 if width is None else 1 - freedom / width
            return ridge * inverse - (size - freedom) * share

        if width is None:
            return falling_root(excess, low)
        few = min(size, width)
        full = falling_root(lambda place: learned(place)[0] - few, low)
        return falling_root(excess, full) if ridge > 0 else full

    def test_error(self, learned: Learned) -> float:
        """On new samples, a mean over training sets, and over networks of the width."""
        size, _, width = self
        first, second = learned.freedom, learned.squares
        if width is None:
            return learned.bias / (1 - second / size)
        share = first / width
        few = (first - second) / (width - second)
        overlap = width / size * (share**2 + (1 - share) ** 2 * second / (width - second))
        return (learned.bias + few * learned.cross) / max(1 - overlap, _PEAK)


def falling_root(function: Callable[[float], float], low: float) -> float:
    """The place where a function falls to zero, or ``low`` if it is not above zero there."""
    if function(low) <= 0:
        return low
    top = 2 * low or 1.0
    while function(top) > 0:
        top *= 16
    return float(scipy.optimize.brentq(function, low, top, xtol=1e-300, rtol=1e-12, maxiter=1000))
