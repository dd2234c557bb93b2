r"""The promise of a design, by brute force: two networks with one kernel.

A pair of inputs of norm $r$ and cosine $\rho$ gives each layer Gaussian arguments $(u, v)$. Their
expectations are sums over a dense grid, equilibria are iterated, and nothing is shared with the
rest of shoal but the values of activations. Slow and short: the tests compare designs with it.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]

_POINTS, _REACH = 601, 9.0  # of the grid, in standard deviations


def expectation(f: Function, variance: float, covariance: float) -> float:
    """E[f(u) f(v)] of two arguments of one variance, by the trapezoidal rule on a square grid."""
    x = torch.linspace(-_REACH, _REACH, _POINTS, dtype=torch.float64)
    weight = torch.exp(-(x**2) / 2)
    weight /= weight.sum()
    scale, rho = math.sqrt(variance), max(-1.0, min(1.0, covariance / variance))
    v = scale * (rho * x[:, None] + math.sqrt(1 - rho**2) * x)
    return float(weight @ (f(scale * x)[:, None] * f(v)) @ weight)


def layered_kernels(
    layers: Sequence[tuple[Function, Function]], norm: float, cosine: float
) -> tuple[float, float]:
    """CK and NTK of an explicit network of activations with their derivatives, all trained."""
    variance, covariance, tangent = norm**2, norm**2 * cosine, norm**2 * cosine
    for place, (phi, slope) in enumerate(layers):
        through = expectation(slope, variance, covariance)
        tangent = through * (tangent if place == 0 else tangent + covariance)
        pair = expectation(phi, variance, covariance)
        variance, covariance = expectation(phi, variance, variance), pair
    return covariance, covariance + tangent


def deq_kernels(
    phi: Function, slope: Function, recurrent: float, injected: float, cosine: float
) -> tuple[float, float]:
    r"""CK and NTK of a DEQ whose input injects the variance $\sigma_b^2 r^2$, by iteration."""
    variance, covariance = injected, injected * cosine
    for _ in range(40):
        pair = expectation(phi, variance, covariance)
        variance = recurrent * expectation(phi, variance, variance) + injected
        covariance = recurrent * pair + injected * cosine
    ck, through = expectation(phi, variance, covariance), expectation(slope, variance, covariance)
    return ck, ck + covariance * through / (1 - recurrent * through)
