"""Closed forms of elementary activations: rectifiers, the error function, GELU, waves."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations.closed_forms.base import ClosedForm
from shoal.activations.closed_forms.correlation import correlation, determinant


@dataclass(frozen=True)
class ArcCosineForm(ClosedForm):
    r"""Leaky rectifiers: $\varphi(x) = \tfrac{1+s}{2} x + \tfrac{1-s}{2} |x|$.

    Odd and even part are independent in the dual, and that of $|x|$ is
    $\tfrac{2}{\pi}\sqrt{ab}(\sin\theta + (\tfrac{\pi}{2}-\theta)\cos\theta)$ (Cho and Saul 2009).
    """

    slope: float
    analytic = False  # the angle has a square-root singularity at its ends

    def mean(self, a: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)]$."""
        return (1 - self.slope) * (a / (2 * math.pi)).sqrt()

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathrm{Cov}(\varphi(u), \varphi(v))$."""
        cosine, sine = correlation(a, b, c)
        # sin θ - 1 = -cos²θ / (1 + sin θ) keeps the digits of small correlations
        even = _quarter_turn(cosine, sine) * cosine - cosine**2 / (1 + sine)
        odd_share, even_share = (1 + self.slope) ** 2 / 4, (1 - self.slope) ** 2 / (2 * math.pi)
        return odd_share * c + even_share * even * (a.sqrt() * b.sqrt())

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi'(u)\varphi'(v)]$."""
        cosine, sine = correlation(a, b, c)
        odd_share, even_share = (1 + self.slope) ** 2 / 4, (1 - self.slope) ** 2 / (2 * math.pi)
        return odd_share + even_share * _quarter_turn(cosine, sine)


def _quarter_turn(cosine: Tensor, sine: Tensor) -> Tensor:
    """π/2 - θ, between -π/2 and π/2."""
    return torch.atan2(cosine, sine)


@dataclass(frozen=True)
class ErfForm(ClosedForm):
    r"""$\tfrac{2}{\pi} \arcsin(2c / \sqrt{(1+2a)(1+2b)})$ (Williams 1997)."""

    def mean(self, a: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)]$."""
        return 0.0 * a

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathrm{Cov}(\varphi(u), \varphi(v))$."""
        return 2 / math.pi * torch.atan2(2 * c, self._remainder(a, b, c))

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi'(u)\varphi'(v)]$."""
        return 4 / math.pi / self._remainder(a, b, c)

    @staticmethod
    def _remainder(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (1 + 2 * (a + b) + 4 * determinant(a, b, c)).sqrt()


@dataclass(frozen=True)
class GELUForm(ClosedForm):
    r"""$x \Phi(x)$: Stein's identity twice on $\mathbb{E}[uv\,\Phi(u)\Phi(v)]$."""

    def mean(self, a: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)]$."""
        return a / (2 * math.pi * (1 + a)).sqrt()

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathrm{Cov}(\varphi(u), \varphi(v))$."""
        root, orthant = self._root_and_orthant(a, b, c)
        product = (1 + a).sqrt() * (1 + b).sqrt()
        # ab/root less the product of the means, and c²(1-ab)/(root (1+a)(1+b))
        rest = (c / product) ** 2 * (1 / root - a * b / (root + product))
        return c * orthant + rest / (2 * math.pi)

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi'(u)\varphi'(v)]$."""
        root, orthant = self._root_and_orthant(a, b, c)
        bracket = 1 / (1 + a) + 1 / (1 + b) + 1 / root**2
        return orthant + c / root * bracket / (2 * math.pi)

    @staticmethod
    def _root_and_orthant(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        r"""$\sqrt{(1+a)(1+b) - c^2}$ and $\mathbb{E}[\Phi(u)\Phi(v)]$."""
        root = (1 + (a + b) + determinant(a, b, c)).sqrt()
        return root, 0.25 + torch.atan2(c, root) / (2 * math.pi)


@dataclass(frozen=True)
class SinusoidForm(ClosedForm):
    r"""$p \sin\omega x + q \cos\omega x + sx$; odd and even part are uncorrelated.

    Without waves it is a line, of the dual $s^2 c$; those of sine and cosine alone are
    $e^{-(a+b)/2} \sinh c$ and $e^{-(a+b)/2} \cosh c$.
    """

    frequency: float = 1.0
    odd: float = 1.0
    even: float = 0.0
    slope: float = 0.0

    def mean(self, a: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)]$."""
        return self.even * self._decay(a) if self.even else 0.0 * a

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathrm{Cov}(\varphi(u), \varphi(v))$."""
        scaled = [self.frequency**2 * x for x in (a, b, c)]
        odd = self.odd**2 * _sinh(*scaled) if self.odd else 0.0
        even = self.even**2 * _cosh_less_one(*scaled) if self.even else 0.0
        return odd + even + self._mixed(a, b) * c

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi'(u)\varphi'(v)]$."""
        scaled = [self.frequency**2 * x for x in (a, b, c)]
        odd = self.odd**2 * _cosh(*scaled) if self.odd else 0.0
        even = self.even**2 * _sinh(*scaled) if self.even else 0.0
        return self.frequency**2 * (odd + even) + self._mixed(a, b)

    def coefficients(self, tau: Tensor, order: int) -> Tensor:
        """The Hermite coefficients."""
        scaled = self.frequency * tau
        odd, even = (_wave_coefficients(scaled, order, first=first) for first in (1, 0))
        straight = torch.zeros_like(odd)
        straight[..., 1:2] = self.slope * tau[..., None]
        return self.odd * odd + self.even * even + straight

    def _mixed(self, a: Tensor, b: Tensor) -> Tensor:
        r"""The part of the duals that the slope adds; $\mathbb{E}[u\sin\omega v] \propto c$."""
        share = self.slope * self.frequency * self.odd
        waves = self._decay(a) + self._decay(b) if share else 0.0 * a * b
        return self.slope**2 + share * waves

    def _decay(self, a: Tensor) -> Tensor:
        r"""$\mathbb{E}[\cos\omega u]$."""
        return torch.exp(-(self.frequency**2) * a / 2)


def _sinh(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    r"""$e^{-(a+b)/2} \sinh c$."""
    # sinh keeps the digits of a small c, and the two exponentials never overflow
    small = torch.exp(-(a + b) / 2) * torch.sinh(c.clamp(-1.0, 1.0))
    large = (torch.exp(c - (a + b) / 2) - torch.exp(-c - (a + b) / 2)) / 2
    return torch.where(c.abs() <= 1, small, large)


def _cosh(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    r"""$e^{-(a+b)/2} \cosh c$."""
    return (torch.exp(c - (a + b) / 2) + torch.exp(-c - (a + b) / 2)) / 2


def _cosh_less_one(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    r"""$e^{-(a+b)/2} (\cosh c - 1)$."""
    small = 2 * (torch.exp(-(a + b) / 4) * torch.sinh(c.clamp(-1.0, 1.0) / 2)) ** 2
    return torch.where(c.abs() <= 1, small, _cosh(a, b, c) - torch.exp(-(a + b) / 2))


def _wave_coefficients(tau: Tensor, order: int, *, first: int) -> Tensor:
    r"""$\pm e^{-\tau^2/2} \tau^k / \sqrt{k!}$ at every second $k$ from ``first`` on, else zero."""
    k = torch.arange(order + 1, dtype=tau.dtype, device=tau.device)
    signs = torch.zeros_like(k)
    signs[first::4], signs[first + 2 :: 4] = 1.0, -1.0
    exponent = torch.xlogy(k, tau[..., None]) - tau[..., None] ** 2 / 2 - torch.lgamma(k + 1) / 2
    return signs * torch.exp(exponent)
