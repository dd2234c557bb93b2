r"""Duals of derivatives at all pairs of some variances and at many angles, by one quadrature.

With the bivariate normal density $p_\theta$ of two standard normal numbers at an angle,

$D_{jk}(a, b, \theta) =
\iint \varphi^{(j)}(\sqrt a\,x)\,p_\theta(x, w)\,\varphi^{(k)}(\sqrt b\,w)\,dx\,dw$,

so one matrix for each angle serves all variances and derivatives. The trapezoid rule in $y$,
$x = \varepsilon \sinh y$, resolves layers of any width down to $\varepsilon$, the width of the
finest detail of $\varphi$ at the largest variance: its nodes grow with the logarithm of the
variance. Its step in $w$ follows the width $\sin\theta$ of the density. Where that is narrow, the
mean over $w$ is taken of polynomials on panels instead. The nodes in $x$ and in $w$ differ, so
the error is seen by the difference of $D_{jk}$ and $D_{kj}$.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.panels import ORDER, gauss_legendre, jump
from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError
from shoal.gaussian.smoothing import (
    nearby_breaks,
    normal_density,
    panel_nodes,
    resolved_edges,
    window_edges,
)
from shoal.numerics import chebyshev_basis

Orders: TypeAlias = tuple[tuple[int, int], ...]

_ERROR = 1e-13  # largest difference of both orders of u and v, relative to the mean squares
_USUAL = 1e-14  # the same at a few angles, where it chooses the steps
_STEP = 0.11  # in y
_RESOLVED = 1.4  # largest step for w, times sin θ, relative to the step for x
_NARROW = 0.1  # sin θ below which means are taken of polynomials on panels
_HALVINGS = 5  # of the work
_PROBES = 3  # angles at which the number of halvings is chosen
_WINDOW = 8.7  # standard deviations, of functions that grow no faster than powers
_NARROW_EDGES = (-_WINDOW, -_WINDOW / 2, 0.0, _WINDOW / 2, _WINDOW)


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
        orders: The requested $(j, k)$; $j + k$ is even.
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
    errors: list[float] = []
    while len(errors) < _HALVINGS and min(errors, default=math.inf) > _USUAL:
        errors.append(_grid(phi, orders, few, angles, 0.5 ** (len(errors) / 2))[2])
    return errors.index(min(errors))


def _grid(
    phi: Activation, orders: Orders, variances: Tensor, angles: Tensor, share: float
) -> tuple[Tensor, dict[int, Tensor], float]:
    """The duals and sizes with scaled steps, and the difference of both orders."""
    both = tuple(dict.fromkeys([pair for j, k in orders for pair in ((j, k), (k, j))]))
    forth = [both.index((j, k)) for j, k in orders]
    back = [both.index((k, j)) for j, k in orders]
    rule = _Grid(phi, both, variances, share)
    sizes = rule.sizes
    if not bool((torch.stack([*sizes.values()]) > 0).all()):
        raise AccuracyError(f"a derivative of {phi!r} vanishes")
    duals = rule.duals(angles)
    duals /= torch.stack([torch.outer(sizes[j], sizes[k]) for j, k in both])[..., None]
    values, swapped = duals[:, forth], duals[:, back].transpose(2, 3)
    # at an angle of zero both orders are one sum: other steps show its error
    finer_sizes = _Grid(phi, both, variances, share / math.sqrt(2)).sizes
    errors = [(values - swapped).abs().max()]
    errors += [(finer_sizes[k] / sizes[k] - 1).abs().max() for k in sizes]
    return (values + swapped) / 2, sizes, float(torch.stack(errors).max())


@dataclass(frozen=True, eq=False)
class _Grid:
    """The quadrature with some steps.

    Attributes:
        phi: The activation.
        orders: The requested $(j, k)$.
        variances: The variances.
        share: Factor of the steps.
    """

    phi: Activation
    orders: Orders
    variances: Tensor
    share: float
    _kept: dict[tuple[float, int], tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    def duals(self, angles: Tensor) -> Tensor:
        """All duals. shape: (2, orders, n, n, m)."""
        count = len(self.variances)
        result = self.variances.new_empty(2, len(self.orders), count, count, len(angles))
        places = [[self._derivatives.index(order) for order in pair] for pair in self.orders]
        for number, angle in enumerate(angles.tolist()):
            finest = self._details
            if self._kinked and 0 < math.tan(angle) < finest:  # kinks make a layer there
                finest = math.tan(angle)
            x, weights, values = self._line(finest, 0)
            weighted = values * (weights * normal_density(x))
            means = self._means(math.cos(angle) * x, math.sin(angle))
            for q, (j, k) in enumerate(places):
                result[0, q, :, :, number] = weighted[j] @ means[k].T
                result[1, q, :, :, number] = weighted[j] @ means[k].flip(1).T  # that of -x
        return result

    @property
    def sizes(self) -> dict[int, Tensor]:
        """The roots of the mean squares of all derivatives. shapes: (n,)."""
        x, weights, values = self._line(self._details, 0)
        squares = values.square() @ (weights * normal_density(x))
        return dict(zip(self._derivatives, squares.sqrt(), strict=True))

    def _means(self, center: Tensor, width: float) -> Tensor:
        """The means of all functions about some places w. shape: (derivatives, n, places)."""
        if width < _NARROW:
            edges, values = self._panels
            return values @ _narrow_means(center, width, edges).T
        # steps of few sizes, so that the functions are evaluated at few places
        level = max(1, math.ceil(-2 * math.log2(_RESOLVED * width)))
        w, weights, values = self._line(self._details, level)
        density = torch.sub(w[:, None], center).div_(width).square_().mul_(-0.5).exp_()
        return (values * (weights / (width * math.sqrt(2 * math.pi)))) @ density

    def _line(self, finest: float, level: int) -> tuple[Tensor, Tensor, Tensor]:
        """Places, symmetric about zero, their weights, and all functions there."""
        if (finest, level) not in self._kept:
            x, weights = self._nodes(finest, self.share * 0.5 ** (level / 2))
            x, weights = torch.cat([-x.flip(0), x]), torch.cat([weights.flip(0), weights])
            self._kept[finest, level] = x, weights, self._values(x)
        return self._kept[finest, level]

    def _nodes(self, finest: float, share: float) -> tuple[Tensor, Tensor]:
        """Positive places and their weights."""
        if self._kinked:  # doubly exponential towards the kink
            step, end = _STEP * share, math.log(self._window / finest) + finest / self._window
            y = torch.arange(-3.7, end + step, step, dtype=torch.float64)
            x = finest * torch.exp(y - torch.exp(-y))
            return x, step * x * (1 + torch.exp(-y))
        step, end = _STEP * share, math.asinh(self._window / finest)
        y = (torch.arange(math.ceil(end / step), dtype=torch.float64) + 0.5) * step
        return finest * torch.sinh(y), step * finest * torch.cosh(y)

    def _values(self, x: Tensor) -> Tensor:
        """All functions at some places. shape: (derivatives, n, places)."""
        points = self.variances.sqrt()[:, None] * x
        return torch.stack([self.phi.derivative(points, k) for k in self._derivatives])

    @cached_property
    def _panels(self) -> tuple[Tensor, Tensor]:
        """The edges of panels that are graded towards zero, and all functions at their nodes."""
        end = self._window + _WINDOW * _NARROW
        count = math.ceil(math.log2(end / self._details) / self.share)
        edges = self._details * 2.0 ** (self.share * torch.arange(count + 1, dtype=torch.float64))
        edges = torch.cat([-edges.flip(0), edges.new_zeros(1), edges])
        half = edges.diff()[:, None] / 2
        nodes = edges[:-1, None] + half * (1 + gauss_legendre(ORDER)[0])
        return edges, self._values(nodes.flatten())

    @cached_property
    def _derivatives(self) -> list[int]:
        return sorted({k for _, k in self.orders})

    @cached_property
    def _largest(self) -> float:
        return float(self.variances.max().sqrt())

    @cached_property
    def _window(self) -> float:
        window = max([window_edges(self.phi, k, self._largest)[-1] for k in self._derivatives])
        return window if window > 10 else _WINDOW

    @cached_property
    def _kinked(self) -> bool:
        return bool(nearby_breaks(self.phi, self._window * self._largest))

    @cached_property
    def _details(self) -> float:
        """The width of the finest details of the activation, in standard deviations."""
        cuts = resolved_edges(self.phi, self._window * self._largest, self.variances.device)
        finest = float(cuts.diff().min()) if len(cuts) > 1 else 2.0
        return min(1.0, min(2.0, finest) / self._largest)


def _narrow_means(center: Tensor, width: float, edges: Tensor) -> Tensor:
    """From values at the nodes of panels to means about some places.

    Between their edges functions are polynomials. shape: (places, panels * ORDER)
    """
    cuts = (edges - center[:, None]) / max(width, 1e-300)
    nodes = panel_nodes(cuts, _NARROW_EDGES)
    w = center[nodes.row, None] + width * nodes.xi
    panel = (
        torch.bucketize(w[:, ORDER // 2].contiguous(), edges, right=True).clamp(1, len(edges) - 1)
        - 1
    )
    low, high = edges[panel, None], edges[panel + 1, None]
    place = (2 * (w - low) / (high - low) - 1).clamp(-1.0, 1.0)
    basis = chebyshev_basis(place.flatten(), ORDER - 1).view(ORDER, *w.shape)
    means = basis.mul_(nodes.weighted(torch.ones_like(w))).sum(-1).T @ _interpolation()
    result = center.new_zeros(len(center), len(edges) - 1, ORDER)
    return result.index_put_((nodes.row, panel), means, accumulate=True).flatten(1)


@cached
def _interpolation() -> Tensor:
    """From values at Gauss-Legendre nodes to Chebyshev coefficients."""
    transform: Tensor = torch.linalg.inv(chebyshev_basis(gauss_legendre(ORDER)[0], ORDER - 1).T)
    return transform
