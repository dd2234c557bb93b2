"""Hermite coefficients of activations."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.names import as_activation
from shoal.activations.panels import ORDER
from shoal.core.checks import integer
from shoal.core.settings import in_standard_settings
from shoal.gaussian.closed_forms import closed_form
from shoal.gaussian.domain import scale_tensor
from shoal.gaussian.smoothing import (
    TINY,
    Derivative,
    normal_density,
    panel_nodes,
    resolved_edges,
    spread,
    window_edges,
)

_STRETCH = 1.3  # h_k(ξ) p(ξ) is below exp(-ξ²/4), whatever the degree: a wider window
_MOST = 10**6  # the largest degree
_BLOCK = 16  # scales that are integrated at a time


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
    coefficients = None if closed is None else closed.coefficients(scale, order)
    if coefficients is not None:
        return coefficients
    result: Tensor = _DifferentiableHermite.apply(scale, phi, order)  # type: ignore[no-untyped-call]
    return result


class _DifferentiableHermite(torch.autograd.Function):
    r"""Autograd by $\partial_\tau c_k = \sqrt{k}\,d_{k-1} + \sqrt{k+1}\,d_{k+1}$, d those of φ'."""

    @staticmethod
    def forward(tau: Tensor, phi: Activation, order: int) -> Tensor:
        parts = [_block(phi, part, order) for part in tau.reshape(-1).split(_BLOCK)]
        return torch.cat(parts).view(*tau.shape, order + 1)

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


def _block(phi: Activation, tau: Tensor, order: int) -> Tensor:
    """The coefficients at some scales. shape: (scales, order + 1)."""
    std = tau.clamp(min=TINY)
    # h_k oscillates with frequency √k: ORDER nodes resolve ORDER / 2 radians of it and φ
    window = _STRETCH * window_edges(phi, 0, _STRETCH * float(std.max()))[-1]
    panels = math.ceil(window / min(4.0, ORDER / math.sqrt(order + 1)))
    fixed = tuple(window * k / panels for k in range(-panels, panels + 1))
    cuts = resolved_edges(phi, window * float(std.max()), tau.device)
    nodes = panel_nodes(cuts / std[:, None], fixed)
    value = phi.derivative(nodes.expand_rows(spread(std, 0)) * nodes.xi, 0)
    sums = _panel_sums(nodes.xi, nodes.weighted(value), order)
    return value.new_zeros(len(tau), order + 1).index_add_(0, nodes.row, sums.T)


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


def normalized_hermite(x: Tensor, start: Tensor) -> Iterator[Tensor]:
    r"""Yield ``start`` times $h_k(x) = He_k(x) / \sqrt{k!}$ for k = 0, 1, 2, ... without end."""
    before, value = torch.zeros_like(x), start
    for k in range(10**9):
        yield value
        before, value = value, (x * value - math.sqrt(k) * before) / math.sqrt(k + 1)
