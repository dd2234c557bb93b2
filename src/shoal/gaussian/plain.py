r"""Gaussian expectations by brute force: sums over dense grids.

Derivatives are those of distributions, by Stein's identity: $\mathbb{E}[\varphi^{(k)}(\tau\xi)] =
\mathbb{E}[\varphi(\tau\xi) He_k(\xi)] / \tau^k$, so that kinks and jumps count. Where $\varphi$ has
kinks, moments err by about 1e-9 and duals by 1e-5; where it is analytic, both are exact to
rounding. Nothing here is fast.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.gaussian.moments import Moments

_REACH, _LINE, _PLANE = 12.0, 400_001, 2_001  # half-width of the grids; points along them


def mean(function: Callable[[Tensor], Tensor], points: int = _LINE) -> Tensor:
    r"""$\mathbb{E}[f(\xi)]$ of a function of a standard normal number."""
    xi = torch.linspace(-_REACH, _REACH, points, dtype=torch.float64)
    density = torch.exp(-(xi**2) / 2) / math.sqrt(2 * math.pi)
    return (function(xi) * density).sum() * (xi[1] - xi[0])


def moments(phi: Activation, tau: float) -> Moments:
    r"""All moments at a scale.

    Example:
        >>> import shoal
        >>> found = moments(shoal.activations.ReLU(), 2.0)
        >>> f"{found.square:.3f} {found.first:.3f} {found.second:.5f}"
        '2.000 0.500 0.19947'
    """
    return Moments(
        mean=mean(lambda x: phi(tau * x)),
        first=mean(lambda x: phi(tau * x) * x) / tau,
        second=mean(lambda x: phi(tau * x) * (x**2 - 1)) / tau**2,
        third=mean(lambda x: phi(tau * x) * (x**3 - 3 * x)) / tau**3,
        square=mean(lambda x: phi(tau * x) ** 2),
        first_square=mean(lambda x: phi.derivative(tau * x) ** 2),
        square_second=mean(lambda x: phi(tau * x) ** 2 * (x**2 - 1)) / tau**2,
    )


def hermite(phi: Activation, tau: float, order: int) -> Tensor:
    r"""$\mathbb{E}[\varphi(\tau\xi) h_k(\xi)]$ for $k \le$ ``order``."""

    def polynomial(k: int, x: Tensor) -> Tensor:
        if k < 2:
            return x**k
        below, twice = polynomial(k - 1, x), polynomial(k - 2, x)
        return (x * below - math.sqrt(k - 1) * twice) / math.sqrt(k)

    def coefficient(k: int) -> Tensor:
        return mean(lambda x: phi(tau * x) * polynomial(k, x))

    return torch.stack([coefficient(k) for k in range(order + 1)])


def dual(phi: Activation, a: float, b: float, c: float, order: int = 0) -> Tensor:
    r"""$\mathbb{E}[\varphi(u)\varphi(v)]$, or the same for derivatives, on a grid in the plane."""
    slope, independent = c / math.sqrt(a), math.sqrt(b - c**2 / a)

    def inner(z: Tensor) -> Tensor:
        """The mean of φ(v) where u = √a z."""
        return mean(lambda y: phi.derivative(slope * z + independent * y, order), _PLANE)

    def outer(x: Tensor) -> Tensor:
        return phi.derivative(math.sqrt(a) * x, order) * torch.stack([inner(z) for z in x])

    return mean(outer, _PLANE)
