"""Hermite coefficients of activations."""

import math
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.names import as_activation
from shoal.activations.panels import ORDER
from shoal.core.caches import cached
from shoal.core.checks import integer
from shoal.core.settings import in_standard_settings
from shoal.gaussian.closed_forms import closed_form
from shoal.gaussian.composites import Derivative
from shoal.gaussian.domain import scale_tensor
from shoal.gaussian.polynomials import normalized_hermite
from shoal.gaussian.quadrature import (
    nearby_breaks,
    normal_density,
    panel_nodes,
    resolved_edges,
    window_edges,
)
from shoal.gaussian.smoothing import TINY, spread

_STRETCH = 1.3  # h_k(ξ) p(ξ) is below exp(-ξ²/4), whatever the degree: a wider window
_MOST = 10**6  # degrees, each of which takes a step
_BLOCK = 16  # scales that are integrated at a time
_STEP, _MOST_PANELS = 16, 256  # that all scales share


@in_standard_settings
def hermite(phi: Activation, tau: Tensor | float, order: int) -> Tensor:
    r"""Hermite coefficients $c_k(\tau) = \mathbb{E}[\varphi(\tau\xi) h_k(\xi)]$, $k \le$ ``order``.

    The $h_k$ are the normalised probabilists' Hermite polynomials. Differentiable in ``tau``.

    Args:
        phi: The activation.
        tau: The scale $\tau \ge 0$; a float or a floating-point tensor of any shape.
        order: The last degree, at most 10⁶.

    Returns:
        A float64 tensor of shape ``(*tau.shape, order + 1)``.

    Example:
        >>> import shoal
        >>> shoal.gaussian.hermite(shoal.activations.ReLU(), 1.0, 2)
        tensor([0.3989, 0.5000, 0.2821], dtype=torch.float64)
    """
    phi = as_activation("phi", phi)
    scale = scale_tensor("tau", tau, at_least=0.0)
    order = integer("order", order, at_least=0)
    if order > _MOST:
        raise ValueError(f"order must be <= {_MOST}, got {order}")
    closed = closed_form(phi)
    known = None if closed is None else closed.coefficients(scale, order)
    if known is not None:
        return known
    result: Tensor = _Hermite.apply(scale, phi, order)  # type: ignore[no-untyped-call]
    return result


class _Hermite(torch.autograd.Function):
    r"""Autograd by $\partial_\tau c_k = \sqrt{k}\,d_{k-1} + \sqrt{k+1}\,d_{k+1}$, d those of φ'."""

    @staticmethod
    def forward(tau: Tensor, phi: Activation, order: int) -> Tensor:
        return expansion(phi, tau.reshape(-1), order)[0].view(*tau.shape, order + 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[0])
        ctx.arguments = inputs[1:]

    @staticmethod
    @in_standard_settings
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        (tau,) = ctx.saved_tensors
        phi, order = ctx.arguments
        d = hermite(Derivative(phi, 1), tau, order + 1) + _jumps(phi, tau, order + 1)
        k = torch.arange(order + 2, dtype=tau.dtype, device=tau.device).sqrt()
        below = torch.nn.functional.pad(d[..., :-2], (1, 0))
        slope = k[:-1] * below + k[1:] * d[..., 1:]
        return (grad * slope).sum(-1), None, None


def _jumps(phi: Activation, tau: Tensor, order: int) -> Tensor:
    """The share of φ's own jumps in the coefficients of φ'."""
    total = torch.zeros(*tau.shape, order + 1, dtype=tau.dtype, device=tau.device)
    for kink in phi.kinks:
        if kink.jumps[0]:
            z = kink.location / tau
            polynomials = normalized_hermite(z, kink.jumps[0] * normal_density(z) / tau)
            total = total + torch.stack([next(polynomials) for _ in range(order + 1)], dim=-1)
    return total


def expansion(
    phi: Activation, tau: Tensor, order: int, *, derivative: int = 0
) -> tuple[Tensor, Tensor]:
    """Coefficients of the pieces of a derivative at some scales, and their mean squares.

    Returns:
        Tensors of shapes (scales, order + 1) and (scales,).
    """
    panels = _common_panels(phi, tau, order, derivative)
    if panels is not None:
        polynomials, xi = (t.to(tau.device) for t in _weighted_polynomials(order, *panels))
        value = phi.derivative(spread(tau.clamp(min=TINY), derivative)[:, None] * xi, derivative)
        return value @ polynomials.T, value.square() @ polynomials[0]
    blocks = [_block(phi, part, order, derivative) for part in tau.split(_BLOCK)]
    coefficients, squares = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return coefficients, squares


def smooth(phi: Activation, radius: float) -> bool:
    """Whether an activation is analytic within a radius."""
    return not nearby_breaks(phi, radius)


def _common_panels(
    phi: Activation, tau: Tensor, order: int, derivative: int
) -> tuple[float, int] | None:
    """A window and a number of panels that resolve all scales; ``None`` with kinks or too many."""
    std = float(tau.max().clamp(min=TINY))
    window, width = _window(phi, order, derivative, std)
    if not smooth(phi, window * std):
        return None
    finest = resolved_edges(phi, window * std, tau.device).diff()
    width = min(width, float(finest.min()) / std) if len(finest) else width
    panels = _STEP * math.ceil(2 * window / width / _STEP)  # few different numbers
    return (window, panels) if panels <= _MOST_PANELS else None


@cached
def _weighted_polynomials(order: int, window: float, panels: int) -> tuple[Tensor, Tensor]:
    """All polynomials at the nodes of equal panels, times weights; and the nodes."""
    edges = tuple(window * (2 * k / panels - 1) for k in range(panels + 1))
    nodes = panel_nodes(torch.empty(1, 0, dtype=torch.float64), edges)
    xi, weight = nodes.xi.flatten(), nodes.weighted(torch.ones_like(nodes.xi)).flatten()
    return torch.stack(list(islice(normalized_hermite(xi, weight), order + 1))), xi


def _window(phi: Activation, order: int, derivative: int, std: float) -> tuple[float, float]:
    """Half the window of the integrals, in standard deviations, and the widest of its panels."""
    # h_k oscillates with frequency √k: ORDER nodes resolve ORDER / 2 radians of it and φ.
    window = _STRETCH * window_edges(phi, derivative, _STRETCH * std)[-1]
    return window, min(4.0, ORDER / math.sqrt(order + 1))


def _block(phi: Activation, tau: Tensor, order: int, derivative: int) -> tuple[Tensor, Tensor]:
    std = tau.clamp(min=TINY)
    window, width = _window(phi, order, derivative, float(std.max()))
    panels = math.ceil(window / width)
    fixed = tuple(window * k / panels for k in range(-panels, panels + 1))
    cuts = resolved_edges(phi, float(window * std.max()), tau.device)
    nodes = panel_nodes(cuts / std[:, None], fixed)
    value = phi.derivative(nodes.at(spread(std, derivative)) * nodes.xi, derivative)
    sums = _panel_sums(nodes.xi, nodes.weighted(value), order)
    coefficients = value.new_zeros(len(tau), order + 1).index_add_(0, nodes.row, sums.T)
    return coefficients, nodes.expectation(value * value, len(tau))


def _panel_sums(xi: Tensor, start: Tensor, order: int) -> Tensor:
    r"""The sums of ``start`` times $h_k(\xi)$ over the nodes of each panel; one row for each k."""
    before, value = torch.zeros_like(xi), start
    sums = xi.new_empty(order + 1, len(xi))
    for k in range(order + 1):
        torch.sum(value, dim=1, out=sums[k])
        scale = 1 / math.sqrt(k + 1)
        before.mul_(-math.sqrt(k) * scale).addcmul_(xi, value, value=scale)
        before, value = value, before
    return sums
