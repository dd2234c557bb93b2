r"""Exact Gaussian calculus of finite Hermite series, by the change of scale of $h_n$.

$h_n(\gamma\xi) = \sum_i \gamma^{n-2i} (\gamma^2-1)^i \sqrt{n!/(n-2i)!} / (2^i i!)\; h_{n-2i}(\xi)$.
"""

import torch
from torch import Tensor

from shoal.activations import Activation, Affine, Hermite

__all__ = ["as_series", "scaled_coefficients", "series_coefficients"]


def as_series(phi: Activation) -> Hermite | None:
    """The activation as a Hermite series, if it is one up to scale and shift."""
    if isinstance(phi, Hermite):
        return phi
    if isinstance(phi, Affine):
        inner = as_series(phi.activation)
        if inner is not None:
            first, *rest = (phi.scale * s for s in inner.coefficients)
            return Hermite((first + phi.shift, *rest), inner.scale)
    return None


def scaled_coefficients(phi: Hermite, variance: Tensor) -> Tensor:
    r"""$c_k(\sqrt a)\,(r/\sqrt a)^k$, polynomials in $a$; shape (*variance.shape, degree + 1)."""
    degree = len(phi.coefficients) - 1
    rows = []  # by power of a/r² - 1
    factor = torch.ones(degree + 1, dtype=torch.float64)
    k = torch.arange(degree + 1, dtype=torch.float64)
    for i in range(degree // 2 + 1):
        if i:
            factor = factor * ((k + 2 * i - 1) * (k + 2 * i)).sqrt() / (2 * i)
        shifted = torch.tensor([*phi.coefficients[2 * i :], *[0.0] * (2 * i)], dtype=torch.float64)
        rows.append((factor * shifted).to(variance.device))
    excess = (variance / phi.scale**2 - 1)[..., None]
    total = torch.zeros_like(excess) + rows[-1]
    for row in reversed(rows[:-1]):
        total = total * excess + row
    return total


def series_coefficients(phi: Hermite, tau: Tensor, order: int) -> Tensor:
    r"""The Hermite coefficients $c_0(\tau), \dots$ up to ``order``; zero beyond the degree."""
    scaled = scaled_coefficients(phi, tau**2)
    powers = torch.arange(scaled.shape[-1], dtype=tau.dtype, device=tau.device)
    coefficients = scaled * (tau[..., None] / phi.scale) ** powers
    missing = max(0, order + 1 - coefficients.shape[-1])
    return torch.nn.functional.pad(coefficients, (0, missing))[..., : order + 1]
