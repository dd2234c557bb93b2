"""Finite Hermite series as activations."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from shoal.activations.base import Activation
from shoal.activations.closed_forms import ClosedForm
from shoal.core.checks import real


@dataclass(frozen=True)
class Hermite(Activation):
    r"""$\varphi(x) = \sum_k s_k h_k(x / r)$, $h_k$ the normalised probabilists' polynomials.

    Args:
        coefficients: $s_0, s_1, \dots$; at least one.
        scale: The scale $r > 0$ at which the polynomials are orthonormal.

    Example:
        >>> import torch
        >>> from shoal.activations import Hermite
        >>> Hermite((2.0, 3.0), scale=2.0)(torch.tensor([0.0, 1.0, 4.0]))  # 2 + 3 x/2
        tensor([2.0000, 3.5000, 8.0000])
    """

    coefficients: tuple[float, ...]
    scale: float = 1.0

    _kinks: ClassVar[tuple[float, ...]] = ()

    def __post_init__(self) -> None:
        if isinstance(self.coefficients, str) or not isinstance(self.coefficients, Iterable):
            raise TypeError(f"coefficients must be a sequence, got {self.coefficients!r}")
        checked = tuple(real(f"coefficients[{k}]", s) for k, s in enumerate(self.coefficients))
        if not checked:
            raise ValueError("coefficients must not be empty")
        object.__setattr__(self, "coefficients", checked)
        object.__setattr__(self, "scale", real("scale", self.scale, above=0.0))

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the series by Clenshaw's recurrence."""
        t = x / self.scale
        ahead, after = torch.zeros_like(t), torch.zeros_like(t)
        for k in range(len(self.coefficients) - 1, -1, -1):
            # h_{k+1} = (t h_k - √k h_{k-1}) / √(k+1)
            step = t * ahead / math.sqrt(k + 1) - math.sqrt((k + 1) / (k + 2)) * after
            ahead, after = self.coefficients[k] + step, ahead
        return ahead

    def first_derivative(self, x: Tensor) -> Tensor:
        r"""Evaluate $\sum_k \sqrt{k} s_k h_{k-1}(x / r) / r$."""
        return self.differentiated().function(x)

    def differentiated(self) -> "Hermite":
        """The derivative, a Hermite series again."""
        slopes = [math.sqrt(k) * s / self.scale for k, s in enumerate(self.coefficients)]
        return Hermite(tuple(slopes[1:]) or (0.0,), self.scale)

    @property
    def lipschitz(self) -> float:
        """Infinite from degree two on."""
        slopes = self.differentiated().coefficients
        return math.inf if any(slopes[1:]) else abs(slopes[0])

    def closed_form(self) -> ClosedForm:
        """Mehler's formula."""
        return HermiteForm(self)


@dataclass(frozen=True)
class HermiteForm(ClosedForm):
    r"""Mehler's formula for a finite Hermite series of any scale.

    It stands on the change of scale of $h_n$, $h_n(\gamma\xi) =
    \sum_i \gamma^{n-2i} (\gamma^2-1)^i \sqrt{n!/(n-2i)!} / (2^i i!)\; h_{n-2i}(\xi)$.
    """

    phi: Hermite

    def mean(self, a: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)]$."""
        return scaled_coefficients(self.phi, a)[..., 0]

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathrm{Cov}(\varphi(u), \varphi(v))$."""
        return self._series(self.phi, a, b, c, start=1)

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi'(u)\varphi'(v)]$."""
        return self._series(self.phi.differentiated(), a, b, c, start=0)

    def coefficients(self, tau: Tensor, order: int) -> Tensor:
        """The Hermite coefficients."""
        return series_coefficients(self.phi, tau, order)

    @staticmethod
    def _series(phi: Hermite, a: Tensor, b: Tensor, c: Tensor, start: int) -> Tensor:
        products = scaled_coefficients(phi, a) * scaled_coefficients(phi, b)
        ratio = c / phi.scale**2
        total = torch.zeros_like(ratio * a * b)
        for k in range(products.shape[-1] - 1, start - 1, -1):
            total = total * ratio + products[..., k]
        return total * ratio**start


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
