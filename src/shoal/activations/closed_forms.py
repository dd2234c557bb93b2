"""Gaussian expectations that activations know in closed form; these need tensors alone."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class ClosedForm(ABC):
    r"""Mean, covariance and derivative dual of an activation, as functions of tensors.

    $(u, v)$ is a centred Gaussian pair with variances $a$, $b$ and covariance $c$, float64 tensors
    of one shape. Splitting the dual of $\varphi$ into covariance and means keeps its digits when an
    activation is shifted (:class:`~shoal.activations.Affine`), above all when it is centred.
    """

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


@dataclass(frozen=True)
class AffineForm(ClosedForm):
    """A closed form, scaled and shifted."""

    inner: ClosedForm
    scale: float
    shift: float

    @property
    def analytic(self) -> bool:  # type: ignore[override]
        """If the composed one is."""
        return self.inner.analytic

    def mean(self, a: Tensor) -> Tensor:
        """The mean of the composed activation, scaled and shifted."""
        return self.scale * self.inner.mean(a) + self.shift

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """The covariance of the composed activation, scaled."""
        return self.scale**2 * self.inner.covariance(a, b, c)

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """The derivative dual of the composed activation, scaled."""
        return self.scale**2 * self.inner.derivative_dual(a, b, c)

    def coefficients(self, tau: Tensor, order: int) -> Tensor | None:
        """The Hermite coefficients of the composed activation, scaled and shifted."""
        inner = self.inner.coefficients(tau, order)
        if inner is None:
            return None
        first = torch.arange(order + 1, device=tau.device) == 0
        return self.scale * inner + self.shift * first.to(tau.dtype)


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
        correction = (c / product) ** 2 * (1 / root - a * b / (root + product))
        return c * orthant + correction / (2 * math.pi)

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
class LinearForm(ClosedForm):
    r"""$\varphi(x) = x$."""

    def mean(self, a: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)]$."""
        return 0.0 * a

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathrm{Cov}(\varphi(u), \varphi(v))$."""
        return c + 0.0 * (a + b)

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi'(u)\varphi'(v)]$."""
        return 1.0 + 0.0 * (a + b + c)

    def coefficients(self, tau: Tensor, order: int) -> Tensor:
        """The Hermite coefficients."""
        first = torch.arange(order + 1, device=tau.device) == 1
        return tau[..., None] * first.to(tau)


@dataclass(frozen=True)
class WaveForm(ClosedForm):
    r"""Sine and cosine, whose duals are $e^{-(a+b)/2} \sinh c$ and $e^{-(a+b)/2} \cosh c$."""

    even: bool

    def mean(self, a: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)]$."""
        return torch.exp(-a / 2) if self.even else 0.0 * a

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathrm{Cov}(\varphi(u), \varphi(v))$."""
        return _cosh_less_one(a, b, c) if self.even else _sinh(a, b, c)

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi'(u)\varphi'(v)]$."""
        return _sinh(a, b, c) if self.even else _cosh(a, b, c)

    def coefficients(self, tau: Tensor, order: int) -> Tensor:
        r"""$\pm e^{-\tau^2/2} \tau^k / \sqrt{k!}$ at every second $k$, else zero."""
        k = torch.arange(order + 1, dtype=tau.dtype, device=tau.device)
        signs, first = torch.zeros_like(k), 0 if self.even else 1
        signs[first::4], signs[first + 2 :: 4] = 1.0, -1.0
        size = torch.xlogy(k, tau[..., None]) - tau[..., None] ** 2 / 2 - torch.lgamma(k + 1) / 2
        return signs * torch.exp(size)


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


def correlation(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle between the pair, the sine without cancellation.

    The determinant ab - c² is formed with the rounding errors of both products (Dekker), so the
    sine has full relative accuracy down to the last representable distance from c = ±√(ab).
    Where a variance vanishes the angle is a right one.
    """
    product = a * b
    if bool(((product < 1e-250) | (product > 1e250)).any()):
        a, b, c = _rescaled(a, b, c)
        product = a * b
    degenerate = product <= 0
    scale = torch.where(degenerate, 1.0, product).sqrt()
    cosine = torch.where(degenerate, 0.0, (c / scale).clamp(-1.0, 1.0))
    sine = torch.where(degenerate, 1.0, (determinant(a, b, c).sqrt() / scale).clamp(max=1.0))
    return cosine, sine


def determinant(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The determinant ab - c², at least zero, with full relative accuracy; differentiable."""
    product, square = a * b, c * c
    with torch.no_grad():
        # in one order, so that the result is exactly symmetric
        lost = _product_error(torch.maximum(a, b), torch.minimum(a, b)) - _product_error(c, c)
        exact = ((product - square) + lost).clamp(min=0.0)
    naive = product - square
    return naive + (exact - naive).detach() if naive.requires_grad else exact


def _rescaled(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same correlation with variances near one, by powers of two."""
    halves = [torch.frexp(t)[1] // 2 for t in (a, b)]
    near_a, near_b = (torch.ldexp(t, -2 * half) for t, half in zip((a, b), halves, strict=True))
    return near_a, near_b, torch.ldexp(torch.ldexp(c, -halves[0]), -halves[1])


def _product_error(x: Tensor, y: Tensor) -> Tensor:
    """The exact error of the rounded product (Dekker)."""
    x_high, x_low = _split(x)
    y_high, y_low = _split(y)
    return ((x_high * y_high - x * y) + x_high * y_low + x_low * y_high) + x_low * y_low


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Veltkamp's splitting into halves of 26 bits."""
    scaled = x * 134217729.0  # 2^27 + 1
    high = scaled - (scaled - x)
    return high, x - high
