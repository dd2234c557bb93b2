r"""Duals of derivatives at all pairs of some variances and at many angles, by one quadrature.

Given $u = \sqrt a\,x$, the partner is normal, and with $s = \sqrt b \sin\theta$

$D_{jk}(a, b, \theta) =
\mathbb{E}_x[\varphi^{(j)}(\sqrt a\,x)\,\varphi^{(k)}_s(\sqrt b\cos\theta\,x)]$ with
$\varphi^{(k)}_s(\mu) = \mathbb{E}_\xi[\varphi^{(k)}(\mu + s\xi)]$.

The trapezoid rule in $y$, $x = \varepsilon \sinh y$, resolves layers of any width down to
$\varepsilon$, which is that of $\varphi$ at the largest variance: its nodes grow with the logarithm
of the variance. Where $s$ is wider than the details of $\varphi$, the smoothed function is a sum
over fixed places $\tau$ as well, since $\varphi^{(k)}$ less its asymptotes is localized:
$\varphi^{(k)}_s(\mu) = A_s(\mu) + \int r(\tau)\,p_s(\mu - \tau)\,d\tau$. The values of $x$ and of
$\tau$ serve all variances, and $u$ and $v$ change places in half of the pairs: what $D_{jk}$ and
$D_{kj}$ differ by is the error.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.panels import gauss_legendre, jump
from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError
from shoal.gaussian.smoothing import nearby_breaks, normal_density, resolved_edges, window_edges

Orders: TypeAlias = tuple[tuple[int, int], ...]

_ERROR = 1e-13  # largest difference of both orders of u and v, relative to the mean squares
_STEP, _GRADED = 0.14, 0.115  # steps in y; on half-lines, which are graded towards a kink
_DETAIL = 0.25  # step in τ, in widths of the finest panel that resolves the activation
_FINE = 0.4  # step in ξ
_HALVINGS = 5  # of the work
_PROBES = 3  # angles at which the first look is taken
_WINDOW = 8.7  # standard deviations, of functions that grow no faster than powers
_PANEL = 18  # nodes of a panel between kinks
_LEAST = 1 / 16  # standard deviation from which on closed forms of smoothed functions keep digits
_FAR = 64.0  # where an activation that has asymptotes is one of them
_MOST = 1 << 14  # places τ


def can_grid(phi: Activation, orders: Orders, largest: float) -> bool:
    """Whether an activation is analytic, or so on both sides of zero, without deltas there."""
    places = nearby_breaks(phi, 40.0 * math.sqrt(largest))
    deltas = (jump(phi, x, n) for x in places for n in range(max(map(max, orders))))
    return not any(places) and not any(deltas)


def grid(
    phi: Activation, orders: Orders, variances: Tensor, angles: Tensor
) -> tuple[Tensor, dict[int, Tensor]]:
    r"""$D_{jk}$ at all pairs of variances, at some angles and their supplements.

    Args:
        phi: An activation that :func:`can_grid`.
        orders: All $(j, k)$ that are wanted; $j + k$ is even.
        variances: The variances $a$ and $b$; not zero. shape: (n,)
        angles: Angles between 0 and π/2. shape: (m,)

    Returns:
        The duals at θ and at π - θ, divided by the roots of the mean squares of both derivatives,
        and these roots, by derivative. shapes: (2, orders, n, n, m), (n,)

    Raises:
        AccuracyError: If both orders of u and v differ, or a derivative vanishes.
    """
    # one variance alone shows no error
    some = torch.cat([variances, variances[-1:] / 2])
    quarter = round(4 * math.log2(float(variances.max())))
    for halving in range(_first_halving(phi, orders, quarter), _HALVINGS):
        values, sizes, error = _grid(phi, orders, some, angles, 0.5 ** (halving / 2))
        if error <= _ERROR:
            return values[:, :, :-1, :-1], {order: size[:-1] for order, size in sizes.items()}
    raise AccuracyError(
        f"the duals of {phi!r} at variances up to {float(variances.max()):.3g} differ if u and v "
        "change places"
    )


@cached
def _first_halving(phi: Activation, orders: Orders, quarter: int) -> int:
    """How often steps are shortened until duals up to a quarter of an octave are seen right."""
    few = 2.0 ** (quarter / 4) * torch.tensor([1.0, 0.5, 1 / 64], dtype=torch.float64)
    angles = torch.linspace(0.1, 1.5, _PROBES, dtype=torch.float64)
    errors = (_grid(phi, orders, few, angles, 0.5 ** (k / 2))[2] for k in range(_HALVINGS))
    return next((k for k, error in enumerate(errors) if error <= _ERROR), _HALVINGS)


def _grid(
    phi: Activation, orders: Orders, variances: Tensor, angles: Tensor, share: float
) -> tuple[Tensor, dict[int, Tensor], float]:
    """The same with a share of the steps, and the difference of both orders of u and v."""
    both = tuple(dict.fromkeys(pair for j, k in orders for pair in ((j, k), (k, j))))
    forth, back = ([both.index(pair[::step]) for pair in orders] for step in (1, -1))
    rule = _Grid(phi, both, variances, share)
    sizes = rule.sizes
    if not all(bool((size > 0).all()) for size in sizes.values()):
        raise AccuracyError(f"a derivative of {phi!r} vanishes")
    found = rule.duals(angles)
    found /= torch.stack([torch.outer(sizes[j], sizes[k]) for j, k in both])[..., None]
    values, swapped = found[:, forth], found[:, back].transpose(2, 3)
    # at an angle of zero both orders are one sum: other steps show its error
    others = _Grid(phi, both, variances, share / math.sqrt(2)).sizes
    errors = [
        (values - swapped).abs().max(),
        *((others[k] / sizes[k] - 1).abs().max() for k in sizes),
    ]
    return (values + swapped) / 2, sizes, float(torch.stack(errors).max())


@dataclass(frozen=True, eq=False)
class _Grid:
    """The quadrature with some steps.

    Attributes:
        phi: The activation.
        orders: All $(j, k)$ that are wanted.
        variances: The variances.
        share: What the steps are multiplied by.
    """

    phi: Activation
    orders: Orders
    variances: Tensor
    share: float

    def duals(self, angles: Tensor) -> Tensor:
        """All duals. shape: (2, orders, n, n, m)."""
        count, std = len(self._std), self._std[:, None]
        result = std.new_empty(2, len(self.orders), count, count, len(angles))
        x, left = self._outer_values(self._details)
        for number, angle in enumerate(angles.tolist()):
            if self._kinked and 0 < math.tan(angle) < self._details:  # kinks make a layer there
                x, left = self._outer_values(math.tan(angle))
            inner = self._inner(math.cos(angle) * std * x, math.sin(angle) * self._std)
            for q, (j, k) in enumerate(self.orders):
                right = inner[self._inner_orders.index(k)]
                result[0, q, :, :, number] = left[j] @ right.T
                # μ at the supplement is that of -x
                mirrored = right * self._parity * (-1) ** k if self._parity else right.flip(1)
                result[1, q, :, :, number] = left[j] @ mirrored.T
        return result

    def _outer_values(self, finest: float) -> tuple[Tensor, dict[int, Tensor]]:
        """The values of x, and weights times what the derivatives are there."""
        x, weights = self._outer(finest)
        points = self._std[:, None] * x
        return x, {j: self.phi.derivative(points, j) * weights for j, _ in self.orders}

    @property
    def sizes(self) -> dict[int, Tensor]:
        """The roots of the mean squares of all derivatives. shapes: (n,)."""
        x, weights = self._outer(self._details)
        points = self._std[:, None] * x
        return {
            k: (self.phi.derivative(points, k) ** 2 @ weights).sqrt() for k in self._inner_orders
        }

    @cached_property
    def _inner_orders(self) -> list[int]:
        return sorted({k for _, k in self.orders})

    @cached_property
    def _std(self) -> Tensor:
        return self.variances.sqrt()

    @cached_property
    def _largest(self) -> float:
        return float(self._std.max())

    @cached_property
    def _window(self) -> float:
        window = max(window_edges(self.phi, k, self._largest)[-1] for k in self._inner_orders)
        return window if window > 10 else _WINDOW

    @cached_property
    def _finest(self) -> float:
        """The width of the finest panel that counts."""
        cuts = resolved_edges(self.phi, self._window * self._largest, self.variances.device)
        return min(2.0, float(cuts.diff().min())) if len(cuts) > 1 else 2.0

    @cached_property
    def _kinked(self) -> bool:
        return bool(nearby_breaks(self.phi, self._window * self._largest))

    @cached_property
    def _parity(self) -> int:
        """1 or -1 if the activation is even or odd, 0 otherwise."""
        x = torch.linspace(0.013, self._window * self._largest, 257, dtype=torch.float64)
        x = torch.cat([x, x / 64])
        right, left = self.phi(x), self.phi(-x)
        return next((p for p in (-1, 1) if torch.equal(left, p * right)), 0)

    @cached_property
    def _details(self) -> float:
        """The width of the finest details of the activation, in standard deviations."""
        return min(1.0, self._finest / self._largest)

    def _outer(self, finest: float) -> tuple[Tensor, Tensor]:
        """The values of x, symmetric about zero or one half of them, and their weights."""
        step = (_GRADED if self._kinked else _STEP) * self.share
        if self._kinked:  # doubly exponential towards the kink
            y = torch.arange(
                -3.7, math.log(self._window / finest) + step, step, dtype=torch.float64
            )
            x = finest * torch.exp(y - torch.exp(-y))
            weights = step * x * (1 + torch.exp(-y)) * normal_density(x)
        else:
            y = (
                torch.arange(
                    math.ceil(math.asinh(self._window / finest) / step), dtype=torch.float64
                )
                + 0.5
            ) * step
            x = finest * torch.sinh(y)
            weights = step * finest * torch.cosh(y) * normal_density(x)
        if self._parity:
            return x, 2 * weights
        return torch.cat([-x.flip(0), x]), torch.cat([weights.flip(0), weights])

    @cached_property
    def _width(self) -> float:
        """The standard deviation from which on the smoothed function is a sum over places τ."""
        return _DETAIL / _FINE * self._finest

    @cached_property
    def _asymptotes(self) -> dict[int, tuple[float, ...]]:
        """Value and slope at infinity, their means over both sides and half their differences."""
        far = _FAR * torch.tensor([-2.0, -1.0, 1.0, 2.0], dtype=torch.float64)
        found: dict[int, tuple[float, ...]] = {}
        for k in self._inner_orders:
            a, b, c, d = self.phi.derivative(far, k).tolist()
            (left, low), (right, high) = ((2 * b - a, (b - a) / _FAR), (2 * c - d, (d - c) / _FAR))
            found[k] = (left + right) / 2, (low + high) / 2, (right - left) / 2, (high - low) / 2
        return found

    def _asymptotic(self, k: int, mean: Tensor, variance: Tensor | float) -> Tensor:
        """The smoothed asymptotes, which are joined by an error function of width one."""
        if k not in self._joined:
            return torch.zeros_like(mean)
        value, slope, step, bend = self._asymptotes[k]
        total = torch.as_tensor(1.0 + variance, dtype=mean.dtype)
        share = torch.erf(mean / (2 * total).sqrt())
        result = value + slope * mean + step * share
        if bend:
            density = (2 * total / math.pi).sqrt() * torch.exp(-(mean**2) / (2 * total))
            result = result + bend * (mean * share + density)
        return result

    @cached_property
    def _joined(self) -> tuple[int, ...]:
        """The orders whose function is localized but for its asymptotes."""
        found = []
        x = torch.linspace(0.9 * _FAR, 2 * _FAR, 65, dtype=torch.float64)
        x = torch.cat([-x, x])
        for k in self._inner_orders:
            value, slope, step, bend = self._asymptotes[k]
            line = value + slope * x + (step + bend * x) * x.sign()
            actual = self.phi.derivative(x, k)
            if bool(((actual - line).abs() <= 1e-15 * (1 + x.abs())).all()):
                found.append(k)
        return tuple(found)

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """The places τ, and weights times what the functions are there. shape: (places, orders)."""
        radius, step = self._window * self._largest, _DETAIL * self.share * self._finest
        if len(self._joined) == len(self._inner_orders):
            radius = min(radius, _FAR)
        if radius / step > _MOST:
            raise AccuracyError(
                f"{self.phi!r} has too many details at variances up to {self._largest**2:.3g}"
            )
        if self._kinked:
            count = math.ceil(radius / (4 * self._width * self.share))
            nodes, weights = gauss_legendre(_PANEL)
            half = radius / count / 2
            tau = ((2 * torch.arange(count)[:, None] + 1 + nodes) * half).flatten()
            weight = (half * weights).repeat(count)
        else:
            tau = (torch.arange(math.ceil(radius / step), dtype=torch.float64) + 0.5) * step
            weight = torch.full_like(tau, step)
        tau, weight = torch.cat([-tau.flip(0), tau]), torch.cat([weight.flip(0), weight])
        rest = torch.stack(
            [
                self.phi.derivative(tau, k) - self._asymptotic(k, tau, 0.0)
                for k in self._inner_orders
            ],
            1,
        )
        size = rest.abs()
        here = (size > 1e-17 * size.amax(0)).any(1).nonzero()[:, 0]
        inside = slice(int(here[0]), int(here[-1]) + 1) if len(here) else slice(0, 1)
        return tau[inside], (rest * weight[:, None])[inside]

    def _inner(self, mean: Tensor, std: Tensor) -> Tensor:
        """The smoothed functions at means of shape (n, x). shape: (orders, n, x)."""
        if float(self._std.min()) >= _LEAST:
            known = [self.phi.smoothed(mean, std[:, None], k) for k in self._inner_orders]
            found = [values for values in known if values is not None]
            if len(found) == len(known):
                return torch.stack(found)
        result = mean.new_empty(len(self._inner_orders), *mean.shape)
        wide = std >= self._width
        if bool(wide.any()):
            result[:, wide] = self._summed(mean[wide], std[wide, None])
        if not bool(wide.all()):
            result[:, ~wide] = self._smoothed(mean[~wide], std[~wide, None])
        return result

    def _summed(self, mean: Tensor, std: Tensor) -> Tensor:
        """The sums over places."""
        tau, rest = self._places
        z = (mean[..., None] - tau).div_(std[..., None])
        sums = (z.square_().mul_(-0.5).exp_() @ rest).movedim(-1, 0)
        joined = torch.stack([self._asymptotic(k, mean, std**2) for k in self._inner_orders])
        return joined + sums / (std * math.sqrt(2 * math.pi))

    def _smoothed(self, mean: Tensor, std: Tensor) -> Tensor:
        window, step = self._window, _FINE * self.share
        if self._kinked:
            split = (-mean / std.clamp(min=1e-300)).clamp(-window, window)[..., None]
            count = math.ceil(window / (3 * self.share))
            fixed = torch.linspace(-window, window, count + 1, dtype=torch.float64).expand(
                *mean.shape, -1
            )
            cuts = torch.cat([fixed, split], -1).sort(-1).values
            nodes, weights = gauss_legendre(_PANEL)
            half = cuts.diff(dim=-1)[..., None] / 2
            xi = (cuts[..., :-1, None] + half * (1 + nodes)).flatten(-2)
            weight = (half * weights).flatten(-2) * normal_density(xi)
            argument = mean[..., None] + std[..., None] * xi
            return torch.stack(
                [(self.phi.derivative(argument, k) * weight).sum(-1) for k in self._inner_orders]
            )
        xi = torch.arange(-window, window + step, step, dtype=torch.float64)
        argument = mean[..., None] + std[..., None] * xi
        weight = step * normal_density(xi)
        return torch.stack([self.phi.derivative(argument, k) @ weight for k in self._inner_orders])
