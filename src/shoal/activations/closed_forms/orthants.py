r"""Quadrants of the plane under a standard Gaussian pair $(X, Y)$ of correlation $\rho$.

The quadrant $X > h$, $Y > k$ has its corner at $(h, k)$. In coordinates in which the pair is
isotropic, the line $X = h$ passes the origin at the distance $h$, and the corner lies on it at
$z_h = (k - \rho h)/s$, $s = \sqrt{1 - \rho^2}$. The mass behind the line, between its nearest point
and the corner, is $T(h, z_h/h)$ (Owen 1956); on the other line it is $T(k, z_k/k)$ with
$z_k = (h - \rho k)/s$. All that is needed is made of these two, which have no layer at $s = 0$.

Every function comes in two forms. The full one has all its digits where the thresholds are large
and little lies behind them. The reduced one has the value at thresholds of zero taken away, and all
its digits where they are small: $e^{-q/2}$ becomes $e^{-q/2} - 1$, the tails of a normal variable
become minus what lies between them, and $T$ minus the mass on this side of the line.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shoal.activations.panels import gauss_legendre

_NODES = 11  # on one half of a symmetric rule; they make Owen's T exact to rounding
_TINY = 1e-300  # a denominator that is not zero
_NARROW = 1e-30  # stands in for a sine of zero


def bell(square: Tensor, *, reduced: bool) -> Tensor:
    """$e^{-q/2}$."""
    exponent = square * -0.5
    return exponent.expm1_() if reduced else exponent.exp_()


def tails(x: Tensor, *, reduced: bool) -> Tensor:
    r"""$\mathrm{erfc}(x/\sqrt2)$, the mass of both tails beyond $x$."""
    scaled = x * math.sqrt(0.5)
    return scaled.erf_().neg_() if reduced else scaled.erfc_()


@dataclass(frozen=True)
class Quadrant:
    r"""A quadrant, and integrals of the density $p_r(h, k)$ over correlations $r$.

    Attributes:
        h: The threshold of X, at least zero.
        k: The threshold of Y, at least zero; not zero where ``h`` is.
        gap: k - h, with digits that the difference may have lost.
        reduced: Whether values at thresholds of zero are taken away.
    """

    h: Tensor
    k: Tensor
    gap: Tensor
    reduced: bool

    def integral(self, cosine: Tensor, sine: Tensor) -> Tensor:
        r"""$W = \int_0^\rho p_r\,dr = P(X > h, Y > k) - P(X > h) P(Y > k)$.

        What the reduced form takes away is $\arcsin(\rho)/2\pi$.

        Args:
            cosine: The correlation.
            sine: The root of one less its square.
        """
        along_h, along_k = self._along(cosine, sine.clamp(min=_NARROW))
        beyond = [tails(along.abs(), reduced=self.reduced) for along in (along_h, along_k)]
        return self._integral(along_h, along_k, *beyond)

    def double_integral(self, cosine: Tensor, sine: Tensor) -> Tensor:
        r"""$V = \int_0^\rho (\rho - r)\,p_r\,dr$, which is elementary in $W$.

        $V = (\rho + hk) W + h p(k) (\Phi(z_k) - \Phi(h)) + k p(h) (\Phi(z_h) - \Phi(k)) +
        s^2 p_\rho(h, k) - p(h) p(k)$. What the reduced form takes away is
        $((\rho + hk) \arcsin\rho + s - 1)/2\pi$.
        """
        along_h, along_k = self._along(cosine, sine.clamp(min=_NARROW))
        beyond_h, beyond_k = (tails(z.abs(), reduced=self.reduced) for z in (along_h, along_k))
        total = self._integral(along_h, along_k, beyond_h, beyond_k)
        total.mul_(torch.addcmul(cosine, self.h, self.k))
        for levers, own, along, beyond in (
            (self._levers[0], self._tails[0], along_k, beyond_k),
            (self._levers[1], self._tails[1], along_h, beyond_h),
        ):
            mirrored = -beyond if self.reduced else 2 - beyond  # erfc(-x) = 2 - erfc(x)
            between = own - torch.where(along < 0, mirrored, beyond)
            total.addcmul_(levers, between, value=0.5 / math.sqrt(2 * math.pi))
        corner = bell(torch.addcmul(self.h**2, along_h, along_h), reduced=self.reduced)
        return total.add_(corner.mul_(sine).sub_(self._apart), alpha=0.5 / math.pi)

    @cached_property
    def _tails(self) -> tuple[Tensor, Tensor]:
        return tails(self.h, reduced=self.reduced), tails(self.k, reduced=self.reduced)

    @cached_property
    def _levers(self) -> tuple[Tensor, Tensor]:
        """Each threshold times the density at the other one."""
        bell_h, bell_k = (bell(x**2, reduced=False) for x in (self.h, self.k))
        return bell_k.mul_(self.h), bell_h.mul_(self.k)

    @cached_property
    def _apart(self) -> Tensor:
        """The density of independent variables."""
        return bell(torch.addcmul(self.h**2, self.k, self.k), reduced=self.reduced)

    def _along(self, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        """Where the corner lies on each of the two lines."""
        # k - ρh = (k - h) + h sin θ tan(θ/2) near full correlation
        acute, step, half_tangent = cosine > 0, self.gap / sine, sine / (1 + cosine.abs())
        along_h = torch.where(
            acute, step + half_tangent * self.h, (self.k - cosine * self.h) / sine
        )
        along_k = torch.where(
            acute, half_tangent * self.k - step, (self.h - cosine * self.k) / sine
        )
        return along_h, along_k

    def _integral(
        self, along_h: Tensor, along_k: Tensor, beyond_h: Tensor, beyond_k: Tensor
    ) -> Tensor:
        tails_h, tails_k = self._tails
        total = self._share(self.h, along_h, tails_h, beyond_h)
        total += self._share(self.k, along_k, tails_k, beyond_k)
        return total.addcmul_(tails_h, tails_k, value=-0.25)

    def _share(self, distance: Tensor, along: Tensor, own: Tensor, beyond: Tensor) -> Tensor:
        """A quarter of a threshold's own tails, less the mass behind its line up to the corner.

        A piece longer than its distance from the origin is exchanged for a shorter one by
        $T(h, z/h) + T(z, h/z) = (1 - erf(h/√2) erf(z/√2))/4$, and the quarter drops out.
        """
        length, sign = along.abs(), along.sign()
        longer, shorter = torch.maximum(length, distance), torch.minimum(length, distance)
        far = length > distance
        share = _owen(longer, shorter / longer.clamp(min=_TINY), reduced=self.reduced)
        share.mul_(torch.where(far, sign, -sign))
        exchanged = torch.where(far, sign, 0.0)
        if self.reduced:
            return share.addcmul_(exchanged * own, beyond, value=0.25)
        share.addcmul_(exchanged * (own - 1), beyond, value=0.25)
        return share.addcmul_(own, 1 - exchanged, value=0.25)


def _owen(distance: Tensor, ratio: Tensor, *, reduced: bool) -> Tensor:
    r"""Owen's $T(h, r) = \int_0^r e^{-h^2(1+x^2)/2}\,dx / (2\pi(1+x^2))$ for $r \le 1$."""
    nodes, weights = (t[_NODES:].tolist() for t in gauss_legendre(2 * _NODES))
    one, exponent, square = ratio.new_ones(()), distance**2 * -0.5, ratio**2
    total, stretch, value = (torch.zeros_like(ratio) for _ in range(3))
    for node, weight in zip(nodes, weights, strict=True):
        torch.add(one, square, alpha=node**2, out=stretch)
        torch.mul(exponent, stretch, out=value)
        value = value.expm1_() if reduced else value.exp_()
        total.addcdiv_(value, stretch, value=weight / (2 * math.pi))
    return total.mul_(ratio)
