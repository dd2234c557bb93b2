"""Hermite coefficients of activations."""

import math
from typing import Any

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.panels import ORDER
from shoal.checks import integer
from shoal.gaussian.closed_forms import closed_form
from shoal.gaussian.domain import checked_activation, scale_tensor
from shoal.gaussian.polynomials import normalized_hermite
from shoal.gaussian.quadrature import panel_nodes, resolved_edges

__all__ = ["hermite"]

_WINDOW = 13.0  # h_k(ξ) p(ξ) is below exp(-ξ²/4), whatever the degree
_BLOCK = 256  # scales that are integrated at a time


def hermite(phi: Activation, tau: Tensor | float, order: int) -> Tensor:
    r"""Hermite coefficients $c_k(\tau) = \mathbb{E}[\varphi(\tau\xi) h_k(\xi)]$, $k \le$ ``order``.

    The $h_k$ are the normalised probabilists' Hermite polynomials. Differentiable in ``tau``.

    Args:
        phi: The activation.
        tau: The scale $\tau \ge 0$; a float or a floating-point tensor of any shape.
        order: The last degree.

    Returns:
        A float64 tensor of shape ``(*tau.shape, order + 1)``.

    Example:
        >>> import shoal
        >>> shoal.gaussian.hermite(shoal.ReLU(), 1.0, 2)
        tensor([0.3989, 0.5000, 0.2821], dtype=torch.float64)
    """
    checked_activation(phi)
    scale = scale_tensor("tau", tau, at_least=0.0)
    order = integer("order", order, at_least=0)
    closed = closed_form(phi)
    known = None if closed is None else closed.coefficients(scale, order)
    if known is not None:
        return known
    result: Tensor = _Hermite.apply(scale, phi, order)  # type: ignore[no-untyped-call]
    return result


class _Hermite(torch.autograd.Function):
    r"""Autograd by $\tau\,\partial_\tau c_k = k c_k + \sqrt{(k+1)(k+2)}\,c_{k+2}$."""

    @staticmethod
    def forward(tau: Tensor, phi: Activation, order: int) -> Tensor:
        blocks = [_block(phi, part, order) for part in tau.reshape(-1).split(_BLOCK)]
        return torch.cat(blocks).view(*tau.shape, order + 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[0])
        ctx.arguments = inputs[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        (tau,) = ctx.saved_tensors
        phi, order = ctx.arguments
        longer = hermite(phi, tau, order + 2)
        k = torch.arange(order + 1, dtype=tau.dtype, device=tau.device)
        slope = (k * longer[..., :-2] + ((k + 1) * (k + 2)).sqrt() * longer[..., 2:]) / tau[
            ..., None
        ]
        return (grad * slope).sum(-1), None, None


def _block(phi: Activation, tau: Tensor, order: int) -> Tensor:
    """The coefficients at a vector of scales; shape (scales, order + 1)."""
    # h_k oscillates with frequency √k: ORDER nodes resolve ORDER / 2 radians of it and φ.
    width = min(4.0, ORDER / math.sqrt(order + 1))
    count = 2 * math.ceil(_WINDOW / width)
    fixed = tuple(torch.linspace(-_WINDOW, _WINDOW, count + 1, dtype=torch.float64).tolist())
    std = tau.clamp(min=1e-75)
    cuts = resolved_edges(phi, float(_WINDOW * std.max()), tau.device)
    nodes = panel_nodes(cuts / std[:, None], fixed)
    value = phi.function(nodes.at(std) * nodes.xi)
    polynomials = normalized_hermite(nodes.xi, value)
    columns = [nodes.expectation(next(polynomials), len(tau)) for _ in range(order + 1)]
    return torch.stack(columns, dim=1)
