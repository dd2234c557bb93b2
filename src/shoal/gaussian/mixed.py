r"""Duals of derivatives, $D_{jk} = \mathbb{E}[\varphi^{(j)}(u)\varphi^{(k)}(v)]$, by quadrature.

Given $u = \sqrt a\,t$, the partner $v$ is normal with mean $\rho\sqrt b\,t$ and variance
$b(1 - \rho^2)$. So the dual is a one-dimensional integral over $t$ of $\varphi^{(j)}$ times the
smoothed $\varphi^{(k)}$, plus a term for each jump, which needs no integral over $t$ at all.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.closed_forms import correlation
from shoal.activations.panels import jump, reach, vanishes
from shoal.gaussian.smoothing import (
    DELTA_WINDOW,
    TINY,
    blocks,
    nearby_breaks,
    normal_density,
    panel_nodes,
    probabilists_hermite,
    resolved_edges,
    smoothed,
    smoothed_regular,
    spread,
    window_edges,
)

_BLOCK = 32  # pairs that are integrated at a time ...
_JUMPS = 4096  # ... and those whose jumps are added up at a time
_INFINITE = 1e60
_LAYER = (-9.0, -6.0, -3.0, 0.0, 3.0, 6.0, 9.0)  # edges around a smoothed kink, in its widths


def mixed_dual(phi: Activation, j: int, k: int, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """$D_{jk}$ at vectors of valid covariances in float64, derivatives being distributional."""
    if j < k:  # jumps of the outer function cost nothing, so it takes more derivatives
        j, k, a, b = k, j, b, a
    elif j == k:  # an exactly symmetric result
        a, b = torch.maximum(a, b), torch.minimum(a, b)
    stds = (t.sqrt().clamp(min=TINY) for t in (a, b))
    total = _total(phi, j, k, *stds, *correlation(a, b, c))
    # a delta of width TINY stands for an infinite one
    return torch.where(total.abs() > _INFINITE, total * math.inf, total)


def mixed_dual_at_angle(
    phi: Activation, j: int, k: int, a: Tensor, b: Tensor, angle: Tensor
) -> Tensor:
    r"""$D_{jk}$ at $c = \sqrt{ab}\cos\theta$: near 0 and π an angle has digits that $c$ has not."""
    stds = (t.sqrt().clamp(min=TINY) for t in (a, b))
    return _total(phi, j, k, *stds, angle.cos(), angle.sin())


@dataclass(frozen=True)
class _PairAngles:
    """Vectors of Gaussian pairs (u, v): standard deviations, cosine and sine of the angle."""

    std_u: Tensor
    std_v: Tensor
    cosine: Tensor
    sine: Tensor

    def swapped(self) -> "_PairAngles":
        return replace(self, std_u=self.std_v, std_v=self.std_u)


def _total(phi: Activation, j: int, k: int, *vectors: Tensor) -> Tensor:
    """Jumps of many pairs at a time, as they cost little, and smooth pieces of a few."""
    parts = []
    for many in blocks(_JUMPS, *vectors):
        pair = _PairAngles(*many)
        jumps = _jumps(phi, j, k, pair, first_jump=0)
        jumps = jumps + _jumps(phi, k, j, pair.swapped(), first_jump=j)
        window = window_edges(phi, j, float(pair.std_u.max()))
        span = window[-1] * float(torch.maximum(pair.std_u, 2 * pair.std_v).max())
        if any(vanishes(phi, order, reach(phi, span)) for order in (j, k)):
            parts.append(jumps)
            continue
        pieces = [_integral(phi, j, k, _PairAngles(*few), window) for few in blocks(_BLOCK, *many)]
        parts.append(jumps + torch.cat(pieces))
    return torch.cat(parts)


def _integral(
    phi: Activation, j: int, k: int, pair: _PairAngles, window: tuple[float, ...]
) -> Tensor:
    """The integral of the smooth pieces, by Gauss's rule on each panel."""
    nodes = panel_nodes(torch.cat(list(_edges(phi, pair, window[-1])), dim=1), window)
    mean = nodes.expand_rows(pair.cosine * spread(pair.std_v, k)) * nodes.xi
    std = nodes.expand_rows((pair.sine * pair.std_v).clamp(min=TINY)).expand_as(mean)
    inner = smoothed_regular(phi, mean.flatten(), std.flatten(), order=k).view_as(mean)
    outer = phi.derivative(nodes.expand_rows(spread(pair.std_u, j)) * nodes.xi, j)
    return nodes.expectation(outer * inner, len(pair.std_u))


def _edges(phi: Activation, pair: _PairAngles, window: float) -> Iterator[Tensor]:
    """Edges, in units of t, that resolve φ(√a t) and the smoothed φ(ρ√b t + ...)."""
    for scale in (pair.std_u[:, None], (pair.cosine * pair.std_v)[:, None]):
        yield resolved_edges(phi, window * float(scale.abs().max()), scale.device) / scale
    slope = (pair.cosine * pair.std_v)[:, None, None]
    width = (pair.sine * pair.std_v)[:, None, None]
    span = window * float((slope.abs() + width).max())
    kinks = slope.new_tensor(nearby_breaks(phi, span))[:, None]
    yield ((kinks + width * slope.new_tensor(_LAYER)) / slope).flatten(1)


def _jumps(phi: Activation, j: int, k: int, pair: _PairAngles, *, first_jump: int) -> Tensor:
    r"""The jumps in $\varphi^{(j)}(u)$ against $\varphi^{(k)}(v)$.

    $\mathbb{E}[\delta_s^{(n)}(u)\,g(v)] = (-\partial_s)^n [p_a(s) S_g(\rho\sqrt{b/a}\,s, w)]$
    with $w = b(1 - \rho^2)$ and $S_g$ the smoothed $g$.
    ``first_jump`` leaves out the singular part of $\varphi^{(k)}$, counted already.
    """
    total = torch.zeros_like(pair.std_u)
    slope, variance = pair.cosine * pair.std_v, (pair.sine * pair.std_v) ** 2
    span = DELTA_WINDOW * float(pair.std_u.max())
    for location in nearby_breaks(phi, span) if j else ():
        z = location / pair.std_u
        density = normal_density(z)
        for derivative in range(j):
            size = jump(phi, location, derivative)
            n = j - 1 - derivative
            for i in range(n + 1) if size else ():
                inner = smoothed(phi, slope * z, variance, order=k + i, first_jump=first_jump)
                weight = size * math.comb(n, i) * (-slope / pair.std_u) ** i
                outer = probabilists_hermite(z, n - i) * density / pair.std_u ** (n - i + 1)
                total = total + weight * outer * inner
    return total
