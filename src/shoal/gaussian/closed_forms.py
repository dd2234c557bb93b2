r"""Closed forms of means and duals.

A closed form gives the mean $\mathbb{E}[\varphi(u)]$, the covariance of $\varphi(u)$ and
$\varphi(v)$, and the dual $\mathbb{E}[\varphi'(u)\varphi'(v)]$ of the derivative. Splitting the
dual of $\varphi$ into covariance and means keeps its digits when an activation is shifted
(:class:`~shoal.activations.Affine`), above all when it is centred.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from shoal.activations import (
    GELU,
    Activation,
    Affine,
    Cosine,
    Erf,
    Hermite,
    Identity,
    LeakyReLU,
    ReLU,
    Sine,
    Sinusoid,
)
from shoal.gaussian.domain import correlation, determinant
from shoal.gaussian.hermite_series import scaled_coefficients, series_coefficients

__all__ = ["ClosedForm", "closed_form"]


class ClosedForm(ABC):
    """Mean, covariance and derivative dual of an activation, as differentiable tensors."""

    analytic: bool = True
    """Whether autograd may differentiate these expressions on the whole closed domain."""

    @abstractmethod
    def mean(self, a: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)]$, u ~ N(0, a)."""

    @abstractmethod
    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)\varphi(v)] - \mathbb{E}[\varphi(u)]\mathbb{E}[\varphi(v)]$."""

    @abstractmethod
    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi'(u)\varphi'(v)]$."""

    def dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)\varphi(v)]$."""
        return self.covariance(a, b, c) + self.mean(a) * self.mean(b)

    def coefficients(self, tau: Tensor, order: int) -> Tensor | None:  # noqa: ARG002
        """The Hermite coefficients, where quadrature would lose them."""
        return None


@singledispatch
def closed_form(phi: Activation) -> ClosedForm | None:  # noqa: ARG001
    """The closed form of an activation, or ``None``."""
    return None


@closed_form.register
def _(phi: Affine) -> ClosedForm | None:
    inner = closed_form(phi.activation)
    return None if inner is None else _Affine(inner, phi.scale, phi.shift, inner.analytic)


@closed_form.register
def _(phi: Identity) -> ClosedForm:  # noqa: ARG001
    return _Identity()


@closed_form.register
def _(phi: ReLU) -> ClosedForm:  # noqa: ARG001
    return _ArcCosine(0.0)


@closed_form.register
def _(phi: LeakyReLU) -> ClosedForm:
    return _ArcCosine(phi.slope)


@closed_form.register
def _(phi: Erf) -> ClosedForm:  # noqa: ARG001
    return _Erf()


@closed_form.register
def _(phi: GELU) -> ClosedForm:  # noqa: ARG001
    return _GELU()


@closed_form.register
def _(phi: Sine) -> ClosedForm:  # noqa: ARG001
    return _Sine()


@closed_form.register
def _(phi: Cosine) -> ClosedForm:  # noqa: ARG001
    return _Cosine()


@closed_form.register
def _(phi: Sinusoid) -> ClosedForm:
    return _Sinusoid(phi.frequency, math.cos(phi.phase), math.sin(phi.phase), phi.slope)


@closed_form.register
def _(phi: Hermite) -> ClosedForm:
    return _Hermite(phi)


@dataclass(frozen=True)
class _Affine(ClosedForm):
    """A closed form, scaled and shifted."""

    inner: ClosedForm
    scale: float
    shift: float
    analytic: bool

    def mean(self, a: Tensor) -> Tensor:
        return self.scale * self.inner.mean(a) + self.shift

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.scale**2 * self.inner.covariance(a, b, c)

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.scale**2 * self.inner.derivative_dual(a, b, c)

    def coefficients(self, tau: Tensor, order: int) -> Tensor | None:
        inner = self.inner.coefficients(tau, order)
        if inner is None:
            return None
        first = torch.arange(order + 1, device=tau.device) == 0
        return self.scale * inner + self.shift * first.to(tau.dtype)


@dataclass(frozen=True)
class _Identity(ClosedForm):
    def mean(self, a: Tensor) -> Tensor:
        return 0.0 * a

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return c + 0.0 * a * b

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return 1.0 + 0.0 * a * b * c


@dataclass(frozen=True)
class _ArcCosine(ClosedForm):
    r"""Leaky rectifiers: $\varphi(x) = \tfrac{1+s}{2} x + \tfrac{1-s}{2} |x|$.

    Odd and even part are independent in the dual, and that of $|x|$ is
    $\tfrac{2}{\pi}\sqrt{ab}(\sin\theta + (\tfrac{\pi}{2}-\theta)\cos\theta)$ (Cho and Saul 2009).
    """

    slope: float
    analytic = False  # the angle has a square-root singularity at its ends

    def mean(self, a: Tensor) -> Tensor:
        return (1 - self.slope) * (a / (2 * math.pi)).sqrt()

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        cosine, sine = correlation(a, b, c)
        # sin θ - 1 = -cos²θ / (1 + sin θ) keeps the digits of small correlations
        even = _quarter_turn(cosine, sine) * cosine - cosine**2 / (1 + sine)
        odd_share, even_share = (1 + self.slope) ** 2 / 4, (1 - self.slope) ** 2 / (2 * math.pi)
        return odd_share * c + even_share * even * (a.sqrt() * b.sqrt())

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        cosine, sine = correlation(a, b, c)
        odd_share, even_share = (1 + self.slope) ** 2 / 4, (1 - self.slope) ** 2 / (2 * math.pi)
        return odd_share + even_share * _quarter_turn(cosine, sine)


def _quarter_turn(cosine: Tensor, sine: Tensor) -> Tensor:
    """π/2 - θ, between -π/2 and π/2."""
    return torch.atan2(cosine, sine)


@dataclass(frozen=True)
class _Erf(ClosedForm):
    r"""$\tfrac{2}{\pi} \arcsin(2c / \sqrt{(1+2a)(1+2b)})$ (Williams 1997)."""

    def mean(self, a: Tensor) -> Tensor:
        return 0.0 * a

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return 2 / math.pi * torch.atan2(2 * c, self._remainder(a, b, c))

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return 4 / math.pi / self._remainder(a, b, c)

    @staticmethod
    def _remainder(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (1 + 2 * (a + b) + 4 * determinant(a, b, c)).sqrt()


@dataclass(frozen=True)
class _GELU(ClosedForm):
    r"""$x \Phi(x)$: Stein's identity twice on $\mathbb{E}[uv\,\Phi(u)\Phi(v)]$."""

    def mean(self, a: Tensor) -> Tensor:
        return a / (2 * math.pi * (1 + a)).sqrt()

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        root, product = self._roots(a, b, c)
        orthant = 0.25 + torch.atan2(c, root) / (2 * math.pi)
        # the part of ab/root that is not the product of the means
        excess = a * b * c**2 / (root * product * (root + product))
        rest = self._mixed(a, b) * c**2 / root
        return c * orthant + (excess + rest) / (2 * math.pi)

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        root, product = self._roots(a, b, c)
        orthant = 0.25 + torch.atan2(c, root) / (2 * math.pi)
        # 1 + 2(1-ab)/P + (ab + c²(1-ab)/P)/Δ, P = (1+a)(1+b), Δ = P - c², without cancellation
        total, rest = a + b, determinant(a, b, c)
        bracket = (3 + total) * (1 + total) + (2 + total) * rest + a * b
        return orthant + c * bracket / (2 * math.pi * product**2 * root**3)

    @staticmethod
    def _roots(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        root = (1 + (a + b) + determinant(a, b, c)).sqrt()  # √((1+a)(1+b) - c²)
        return root, ((1 + a) * (1 + b)).sqrt()

    @staticmethod
    def _mixed(a: Tensor, b: Tensor) -> Tensor:
        return (1 - a * b) / ((1 + a) * (1 + b))  # 1 - a/(1+a) - b/(1+b)


@dataclass(frozen=True)
class _Sine(ClosedForm):
    r"""$e^{-(a+b)/2} \sinh c$."""

    def mean(self, a: Tensor) -> Tensor:
        return 0.0 * a

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        # sinh keeps the digits of a small c, and the two exponentials never overflow
        small = torch.exp(-(a + b) / 2) * torch.sinh(c.clamp(-1.0, 1.0))
        large = (torch.exp(c - (a + b) / 2) - torch.exp(-c - (a + b) / 2)) / 2
        return torch.where(c.abs() <= 1, small, large)

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (torch.exp(c - (a + b) / 2) + torch.exp(-c - (a + b) / 2)) / 2

    def coefficients(self, tau: Tensor, order: int) -> Tensor:
        return _wave_coefficients(tau, order, first=1)


@dataclass(frozen=True)
class _Cosine(ClosedForm):
    r"""$e^{-(a+b)/2} \cosh c$."""

    def mean(self, a: Tensor) -> Tensor:
        return torch.exp(-a / 2)

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        small = 2 * (torch.exp(-(a + b) / 4) * torch.sinh(c.clamp(-1.0, 1.0) / 2)) ** 2
        large = _Sine().derivative_dual(a, b, c) - torch.exp(-(a + b) / 2)
        return torch.where(c.abs() <= 1, small, large)

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return _Sine().covariance(a, b, c)

    def coefficients(self, tau: Tensor, order: int) -> Tensor:
        return _wave_coefficients(tau, order, first=0)


@dataclass(frozen=True)
class _Sinusoid(ClosedForm):
    r"""$p \sin\omega x + q \cos\omega x + sx$; odd and even part are uncorrelated."""

    frequency: float
    odd: float
    even: float
    slope: float

    def mean(self, a: Tensor) -> Tensor:
        return self.even * _Cosine().mean(self.frequency**2 * a)

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        scaled = [self.frequency**2 * x for x in (a, b, c)]
        odd, even = _Sine().covariance(*scaled), _Cosine().covariance(*scaled)
        return self.odd**2 * odd + self.even**2 * even + self._mixed(a, b) * c

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        scaled = [self.frequency**2 * x for x in (a, b, c)]
        odd, even = _Sine().derivative_dual(*scaled), _Cosine().derivative_dual(*scaled)
        waves = self.frequency**2 * (self.odd**2 * odd + self.even**2 * even)
        return waves + self._mixed(a, b)

    def coefficients(self, tau: Tensor, order: int) -> Tensor:
        scaled = self.frequency * tau
        odd, even = (_wave_coefficients(scaled, order, first=first) for first in (1, 0))
        straight = torch.zeros_like(odd)
        straight[..., 1:2] = self.slope * tau[..., None]
        return self.odd * odd + self.even * even + straight

    def _mixed(self, a: Tensor, b: Tensor) -> Tensor:
        r"""The part of the duals that the slope adds; $\mathbb{E}[u\sin\omega v] \propto c$."""
        waves = _Cosine().mean(self.frequency**2 * a) + _Cosine().mean(self.frequency**2 * b)
        return self.slope**2 + self.slope * self.frequency * self.odd * waves


@dataclass(frozen=True)
class _Hermite(ClosedForm):
    r"""Mehler's formula for a finite Hermite series of any scale."""

    phi: Hermite

    def mean(self, a: Tensor) -> Tensor:
        return scaled_coefficients(self.phi, a)[..., 0]

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self._series(self.phi, a, b, c, start=1)

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self._series(self.phi.differentiated(), a, b, c, start=0)

    def coefficients(self, tau: Tensor, order: int) -> Tensor:
        return series_coefficients(self.phi, tau, order)

    @staticmethod
    def _series(phi: Hermite, a: Tensor, b: Tensor, c: Tensor, start: int) -> Tensor:
        products = scaled_coefficients(phi, a) * scaled_coefficients(phi, b)
        ratio = c / phi.scale**2
        total = torch.zeros_like(ratio * a * b)
        for k in range(products.shape[-1] - 1, start - 1, -1):
            total = total * ratio + products[..., k]
        return total * ratio**start


def _wave_coefficients(tau: Tensor, order: int, *, first: int) -> Tensor:
    r"""$\pm e^{-\tau^2/2} \tau^k / \sqrt{k!}$ at every second $k$ from ``first`` on, else zero."""
    k = torch.arange(order + 1, dtype=tau.dtype, device=tau.device)
    signs = torch.zeros_like(k)
    signs[first::4], signs[first + 2 :: 4] = 1.0, -1.0
    exponent = torch.xlogy(k, tau[..., None]) - tau[..., None] ** 2 / 2 - torch.lgamma(k + 1) / 2
    return signs * torch.exp(exponent)
