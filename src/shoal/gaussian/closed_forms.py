r"""Duals in closed form: of activations that have one, and of broken lines.

The dual of a broken line follows by Price's theorem along the angle. With
$\varphi'' = \sum_i J_i \delta_{\kappa_i}$, $h_i = \kappa_i/\sqrt a$, $k_i = \kappa_i/\sqrt b$

$-\frac{d}{d\theta} \mathbb{E}[\varphi'(u)\varphi'(v)] = S(\theta) = \frac{1}{2\pi}
\sum_{ij} J_i J_j \exp\Bigl(-\frac{h_i^2 + k_j^2 - 2 h_i k_j \cos\theta}{2\sin^2\theta}\Bigr)$,

and at a right angle both duals are products of means. So one integral of $S$ from there serves
both. It is smooth in $\log\theta$, also where two kinks lie close to one another.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shoal.activations import Activation, ClosedForm
from shoal.activations.base import is_ours
from shoal.activations.closed_forms import correlation
from shoal.activations.consistency import innermost
from shoal.activations.panels import gauss_legendre, reach, vanishes
from shoal.core.caches import cached
from shoal.gaussian.mixed import mixed_dual
from shoal.gaussian.smoothing import smoothed

_VARIANCES = (0.4, 1.0, 2.3)  # at which the closed form of a user is checked ...
_COSINES = (-0.8, 0.0, 0.3, 0.95)
_AGREEMENT = 1e-8  # ... relative to the mean squares
_NODES, _PANEL = 16, 1.2  # nodes of a panel, and its width in the logarithm of the angle
_LEAST = 1e-20  # an angle of zero
_TINY, _FARTHEST = 1e-150, 100.0  # a standard deviation of zero; where densities are zero
_BLOCK = 1024  # pairs that are integrated together


def closed_form(phi: Activation) -> ClosedForm | None:
    """The closed form of an activation, or ``None``; a user's form is checked first."""
    inner = innermost(phi)
    if not is_ours(type(inner)):
        _check(inner)
    return phi.closed_form()


def dual_form(phi: Activation) -> ClosedForm | None:
    """The closed form of an activation, or its form as a broken line."""
    form = closed_form(phi)
    return broken_line(phi) if form is None else form


def closed_dual(form: ClosedForm, order: int, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    r"""$D_{jj}$, j = ``order``."""
    return form.derivative_dual(a, b, c) if order else form.dual(a, b, c)


@cached
def _check(phi: Activation) -> None:
    """Compare a user's closed form with quadrature, once."""
    form: object = phi.closed_form()
    if form is None:
        return
    if not isinstance(form, ClosedForm):
        raise TypeError(f"closed_form of {phi!r} must return a ClosedForm or None, got {form!r}")
    v = torch.tensor(_VARIANCES, dtype=torch.float64)
    a, b, cosine = (
        t.flatten()
        for t in torch.meshgrid(v, v, torch.tensor(_COSINES, dtype=torch.float64), indexing="ij")
    )
    c = cosine * a.sqrt() * b.sqrt()
    integrals = [mixed_dual(phi, order, order, a, b, c) for order in (0, 1)]
    duals = [closed_dual(form, order, a, b, c) for order in (0, 1)]
    pairs = zip(
        ("mean", "dual", "derivative_dual"),
        [form.mean(v), *duals],
        [smoothed(phi, torch.zeros_like(v), v), *integrals],
        strict=True,
    )
    for name, value, exact in pairs:
        scale = 1 + float(exact.abs().max())
        difference = float((value - exact).abs().max())
        if not difference <= _AGREEMENT * scale:
            raise ValueError(
                f"{name} of the closed_form of {phi!r} must agree with its integral, and differs "
                f"by {difference:.3g} at variances from 0.4 to 2.3"
            )


@dataclass(frozen=True)
class BrokenLine(ClosedForm):
    r"""$\varphi(x) = \varphi(0) + m x + \sum_i J_i (|x| - |\kappa_i|)_+$, by the side of each kink.

    Attributes:
        value: $\varphi(0)$.
        slope: $m$, the slope below zero if there is a kink at zero.
        kinks: $\kappa_i$ and $J_i$; those at zero belong to the right.
    """

    value: float
    slope: float
    kinks: tuple[tuple[float, float], ...]
    analytic = False

    @cached_property
    def _bend(self) -> float:
        """The sum of all jumps, which is zero if both ends have one slope."""
        return _sum([jump for _, jump in self.kinks])

    @cached_property
    def _straight(self) -> float:
        """The mean slope of both ends."""
        halves = [math.copysign(jump / 2, jump * (place >= 0 or -1)) for place, jump in self.kinks]
        return _sum([self.slope, *halves])

    def _narrow(self, variance: Tensor) -> Tensor:
        """Whether a Gaussian is narrower than the straight piece about zero.

        Then the kinks add little; otherwise little remains of the slopes at the ends. Both small
        numbers are computed without differences of larger ones.
        """
        return variance < min(abs(place) for place, _ in self.kinks) ** 2

    def means(self, variance: Tensor) -> tuple[Tensor, Tensor]:
        r"""$\mathbb{E}[\varphi(u)]$ and $\mathbb{E}[\varphi'(u)]$."""
        std, narrow = variance.sqrt(), self._narrow(variance)
        level, slope = (torch.full_like(std, x) for x in (self.value, self.slope))
        wide = torch.full_like(std, self._straight)
        for place, jump in self.kinks:
            h = _distance(abs(place), variance)
            side, root = (1.0 if place >= 0 else -1.0), h / math.sqrt(2)
            bell = torch.exp(-(h**2) / 2)
            mills = math.sqrt(math.pi / 2) * torch.special.erfcx(root)
            level = level + jump / math.sqrt(2 * math.pi) * std * bell * (1 - h * mills)
            slope = slope + side * jump / 2 * torch.erfc(root)
            wide = wide - side * jump / 2 * torch.erf(root)
        return level, torch.where(narrow, slope, wide)

    def mean(self, a: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)]$."""
        return self.means(a)[0]

    def covariance(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathrm{Cov}(\varphi(u), \varphi(v))$."""
        return self.duals(a, b, c)[0] - self.mean(a) * self.mean(b)

    def dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi(u)\varphi(v)]$."""
        return self.duals(a, b, c)[0]

    def derivative_dual(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        r"""$\mathbb{E}[\varphi'(u)\varphi'(v)]$."""
        return self.duals(a, b, c)[1]

    def duals(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Both duals, exactly symmetric. shape: (2, *c.shape)."""
        a, b = torch.maximum(a, b), torch.minimum(a, b)
        cosine, sine = correlation(a, b, c)
        flat = (t.reshape(-1) for t in (a, b, torch.atan2(sine, cosine.abs()), cosine < 0))
        return self._duals_near(*flat).view(2, *c.shape)

    def at_angles(self, a: Tensor, b: Tensor, angle: Tensor) -> Tensor:
        """Both duals at vectors of variances and angles. shape: (2, n)."""
        return self._duals_near(a, b, torch.minimum(angle, math.pi - angle), angle > math.pi / 2)

    def _duals_near(self, a: Tensor, b: Tensor, near: Tensor, obtuse: Tensor) -> Tensor:
        """The same at acute angles or their supplements, whose digits are all kept."""
        duals = a.new_empty(2, len(a))
        for narrow in (True, False):
            here = (self._narrow(torch.minimum(a, b)) == narrow).nonzero()[:, 0]
            if not len(here):
                continue
            for some in here[near[here].argsort()].split(_BLOCK):  # small angles need more nodes
                block = a[some], b[some], near[some], obtuse[some]
                duals[:, some] = self._block(*block, narrow=narrow)
        return duals

    def _block(self, a: Tensor, b: Tensor, near: Tensor, obtuse: Tensor, *, narrow: bool) -> Tensor:
        """Both duals at ascending angles."""
        (mean, slope), (other, other_slope) = self.means(a), self.means(b)
        near = near.clamp(min=_LEAST)
        count = max(1, math.ceil(math.log(math.pi / 2 / float(near[0])) / _PANEL))
        # from the right angle to the nearer end, in log θ; beyond it, S at π - θ
        nodes, weights = (t.to(a) for t in gauss_legendre(_NODES))
        share = (
            (2 * torch.arange(count, device=a.device)[:, None] + 1 + nodes) / (2 * count)
        ).flatten()
        length = (math.pi / 2 / near).log()
        r = (math.pi / 2) * torch.exp(-length[:, None] * share)
        weight = r * length[:, None] * (weights / (2 * count)).repeat(count)
        density = self._density(a[:, None], b[:, None], r, obtuse[:, None], narrow=narrow)
        density.mul_(weight)
        fall = density.sum(1)
        # cos θ - cos r = 2 sin((r + θ)/2) sin((r - θ)/2)
        lever = 2 * ((r + near[:, None]) / 2).sin_() * ((r - near[:, None]) / 2).sin_()
        moved = (density * lever).sum(1)
        cosine = (math.pi / 2 - near).sin()  # zero at a right angle
        root, straight = a.sqrt() * b.sqrt(), slope * other_slope
        moved = moved + torch.where(obtuse, -cosine, cosine) * straight
        dual = mean * other + root * moved
        return torch.stack([dual, straight + torch.where(obtuse, -fall, fall)])

    def _density(
        self, a: Tensor, b: Tensor, angle: Tensor, obtuse: Tensor, *, narrow: bool
    ) -> Tensor:
        """S at an angle, or at its supplement."""
        squared_sine, half = angle.sin().square_(), (angle / 2).cos().square_()
        total, mirror = torch.zeros_like(angle), torch.where(obtuse, -torch.ones_like(b), 1.0)
        for place, jump in self.kinks:
            for other, other_jump in self.kinks:
                h, k = _distance(place, a), _distance(other, b) * mirror
                # (h² + k² - 2hk cos θ) / sin²θ
                exponent = (h - k) ** 2 / squared_sine + h * k / half
                exponent.mul_(-0.5)
                term = exponent.exp_() if narrow else exponent.expm1_()
                total.add_(term, alpha=jump * other_jump)
        return total.add_(0.0 if narrow else self._bend**2).div_(2 * math.pi)


def _distance(place: float, variance: Tensor) -> Tensor:
    """From zero, in standard deviations."""
    return (place / variance.sqrt().clamp(min=_TINY)).clamp(-_FARTHEST, _FARTHEST)


@cached
def broken_line(phi: Activation) -> BrokenLine | None:
    """An activation as a broken line, if it is a continuous one with kinks."""
    kinks = [(kink.location, kink.jumps[1]) for kink in phi.kinks]
    if not kinks or any(kink.jumps[0] or not kink.jumps[1] for kink in phi.kinks):
        return None
    if not vanishes(phi, 2, reach(phi)):
        return None
    below = max((place for place, _ in kinks if place < 0), default=-2.0)
    points = torch.tensor([0.0, below / 2], dtype=torch.float64)
    return BrokenLine(float(phi(points)[0]), float(phi.derivative(points)[1]), tuple(kinks))


def _sum(terms: list[float]) -> float:
    """The sum, exactly zero where it is one but for rounding."""
    total = math.fsum(terms)
    return total if abs(total) > 1e-14 * sum(map(abs, terms)) else 0.0
