r"""The one primitive of the Gaussian calculus: a smoothed derivative of an activation.

$S_k(\mu, v) = \mathbb{E}[\varphi^{(k)}(\mu + \sqrt{v}\,\xi)]$, the derivative taken in the sense
of distributions: between its kinks $\varphi^{(k)}$ is a function, at a kink each jump $J_l$ of
$\varphi^{(l)}$, $l < k$, adds $J_l\,\delta^{(k-1-l)}$. Moments are values of $S_k$ at $\mu = 0$,
and duals are one-dimensional integrals of it. It closes under differentiation:
$\partial_\mu S_k = S_{k+1}$ and $\partial_v S_k = \tfrac12 S_{k+2}$.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.panels import ORDER, gauss_legendre, jump
from shoal.core.caches import cached
from shoal.core.settings import in_standard_settings
from shoal.gaussian.octaves import at_octaves, octave_series, stacked
from shoal.gaussian.polynomials import probabilists_hermite
from shoal.gaussian.quadrature import (
    DELTA_WINDOW,
    Nodes,
    blocks,
    nearby_breaks,
    normal_density,
    panel_nodes,
    resolved_edges,
    window_edges,
)

_BLOCK = 256  # rows that are integrated at a time
_LONG = 64  # rows of one width that share their nodes ...
_MOST_SHARED = 4096  # ... unless these are more
TINY = 1e-75  # stands in for a standard deviation of zero


def smoothed(
    phi: Activation, mean: Tensor, variance: Tensor, *, order: int = 0, first_jump: int = 0
) -> Tensor:
    r"""$\mathbb{E}[\varphi^{(k)}(\mu + \sqrt{v}\,\xi)]$, $k$ = ``order``, elementwise in float64.

    Args:
        phi: The activation.
        mean: $\mu$, float64.
        variance: $v \ge 0$, float64, broadcastable with ``mean``.
        order: The derivative $k$.
        first_jump: Jumps of derivatives below this one are left out; so
            ``order=k, first_jump=j`` smooths the $(k-j)$-th distributional derivative of the
            regular part of $\varphi^{(j)}$.
    """
    mean, variance = torch.broadcast_tensors(mean, variance)
    result: Tensor = _Smoothed.apply(  # type: ignore[no-untyped-call]
        mean, variance, phi, order, first_jump
    )
    return result


class _Smoothed(torch.autograd.Function):
    """Autograd for :func:`smoothed`; its derivatives are smoothed derivatives again."""

    @staticmethod
    def forward(
        mean: Tensor,
        variance: Tensor,
        phi: Activation,
        order: int,
        first_jump: int,
    ) -> Tensor:
        shape, mean, variance = mean.shape, mean.reshape(-1), variance.reshape(-1)
        if bool(mean.any()):
            return _integral(phi, mean, variance, order, first_jump).view(shape)
        moments = partial(_moments, phi, order, first_jump)
        stack = partial(smoothed_stack, phi, order, first_jump)
        total = at_octaves(stack, moments, variance)
        if total is None:  # pairs of inputs ask for the same moments many times
            some, inverse = variance.unique(return_inverse=True)
            total = moments(some)[inverse]
        return total.view(shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:2])
        ctx.arguments = inputs[2:]

    @staticmethod
    @in_standard_settings
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        mean, variance = ctx.saved_tensors
        phi, order, first_jump = ctx.arguments
        into: list[Tensor | None] = [None, None]
        if grad is None:
            return (*into, None, None, None)
        if ctx.needs_input_grad[0]:
            slope = smoothed(phi, mean, variance, order=order + 1, first_jump=first_jump)
            into[0] = grad * slope
        if ctx.needs_input_grad[1]:
            bend = smoothed(phi, mean, variance, order=order + 2, first_jump=first_jump)
            into[1] = grad * bend / 2
        return (*into, None, None, None)


@cached
def _series(phi: Activation, order: int, first_jump: int, exponent: int) -> Tensor | None:
    """The series of moments on an octave of the variance, kept: all weights share it."""
    return octave_series(partial(_moments, phi, order, first_jump), torch.abs, exponent)


@cached
def smoothed_stack(
    phi: Activation, order: int, first_jump: int, octaves: tuple[int, ...]
) -> Tensor | None:
    """The series of moments on some octaves of the variance, see :func:`stacked`."""
    return stacked(partial(_series, phi, order, first_jump), octaves)


def _moments(phi: Activation, order: int, first_jump: int, variance: Tensor) -> Tensor:
    """The integrals about zero."""
    return _integral(phi, torch.zeros_like(variance), variance, order, first_jump)


def _integral(
    phi: Activation, mean: Tensor, variance: Tensor, order: int, first_jump: int
) -> Tensor:
    std = variance.sqrt().clamp(min=TINY)
    regular = smoothed_regular(phi, mean, std, order=order)
    return regular + _singular(phi, mean, std, order, first_jump)


def smoothed_regular(phi: Activation, mean: Tensor, std: Tensor, *, order: int) -> Tensor:
    """The integral over the smooth pieces alone; ``mean`` and ``std`` are vectors."""
    window = window_edges(phi, order, float(std.max()))
    parts = []
    for m, s in _runs(mean, std):
        one = float(s[0]) if bool((s == s[0]).all()) else None
        nodes = None if one is None else _shared_nodes(phi, m, one, window)
        if one is not None and nodes is not None:
            parts.append(_shared(phi, m, one, order, nodes))
        else:
            rows = blocks(_BLOCK, m, s)
            parts += [_regular_block(phi, part[0], part[1], order, window) for part in rows]
    return torch.cat(parts)


def _runs(mean: Tensor, std: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut both where the standard deviation changes, if that is seldom."""
    counts = std.unique_consecutive(return_counts=True)[1].tolist()
    if len(std) < _LONG * len(counts):
        counts = [len(std)]
    yield from zip(mean.split(counts), std.split(counts), strict=True)


def _shared_nodes(
    phi: Activation, mean: Tensor, std: float, window: tuple[float, ...]
) -> Nodes | None:
    """Panels that resolve the function and all Gaussians of one width; ``None`` if too many."""
    low, high = (float(end) for end in torch.aminmax(mean))
    low, high = low - window[-1] * std, high + window[-1] * std
    count = math.ceil((high - low) / ((window[1] - window[0]) * std)) if std > TINY else 10**9
    if len(mean) < _LONG or count * ORDER > _MOST_SHARED:
        return None
    cuts = resolved_edges(phi, max(abs(low), abs(high)), mean.device)
    fixed = tuple(low + (high - low) * k / count for k in range(count + 1))
    nodes = panel_nodes(cuts[None], fixed)
    return nodes if nodes.xi.numel() <= _MOST_SHARED else None


def _shared(phi: Activation, mean: Tensor, std: float, order: int, nodes: Nodes) -> Tensor:
    """One evaluation of the function for all rows: a matrix of densities times a vector."""
    weights = gauss_legendre(ORDER)[1].to(mean.device) * nodes.half[:, None]
    values = (phi.derivative(nodes.xi, order) * weights).flatten()
    values = values / (std * math.sqrt(2 * math.pi))
    parts = []
    for (some,) in blocks(_BLOCK, mean):
        z = (nodes.xi.flatten() - some[:, None]).div_(std)
        parts.append(z.square_().mul_(-0.5).exp_() @ values)
    return torch.cat(parts)


def spread(std: Tensor, order: int) -> Tensor:
    """Standard deviations, exactly zero where they are: a derivative needs both sides of zero."""
    return std if order else torch.where(std > TINY, std, 0.0)


def _regular_block(
    phi: Activation, mean: Tensor, std: Tensor, order: int, window: tuple[float, ...]
) -> Tensor:
    radius = float((mean.abs() + window[-1] * std).max())
    cuts = resolved_edges(phi, radius, mean.device)
    nodes = panel_nodes((cuts - mean[:, None]) / std[:, None], window)
    x = torch.addcmul(nodes.at(mean), nodes.at(spread(std, order)), nodes.xi)
    return nodes.expectation(phi.derivative(x, order), len(mean))


def _singular(phi: Activation, mean: Tensor, std: Tensor, order: int, first_jump: int) -> Tensor:
    r"""The jumps' share: $\mathbb{E}[\delta_t^{(n)}] = He_n(z) p(z) / s^{n+1}$, z = (t-μ)/s."""
    total = torch.zeros_like(mean)
    span = float((mean.abs() + DELTA_WINDOW * std).max())
    for location in nearby_breaks(phi, span) if order > first_jump else ():
        z = (location - mean) / std
        density = normal_density(z)
        for derivative in range(first_jump, order):
            size = jump(phi, location, derivative)
            if size:
                n = order - 1 - derivative
                total = total + size * probabilists_hermite(z, n) * density / std ** (n + 1)
    return total
