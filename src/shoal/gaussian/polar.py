r"""Duals on a grid by quadrature in polar coordinates.

With $u = \sqrt a\,r\cos\alpha$ and $v = \sqrt b\,r\cos(\alpha - \theta)$,

$D(a, b, \theta) = \frac{1}{2\pi} \int_0^\infty r e^{-r^2/2} \int_{-\pi}^{\pi}
\varphi(\sqrt a\,r\cos\alpha)\,\varphi(\sqrt b\,r\cos(\alpha - \theta))\,d\alpha\,dr.$

The signs of $u$ and $v$ change at four angles only, so a kink at zero is split off exactly, however
small $\theta$. For one angle the values at all $a$ and all $b$ are two matrices, and the duals at
all pairs are their product.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.panels import gauss_legendre
from shoal.core.exceptions import AccuracyError

Rule: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Duals at all pairs of some variances of u and of v, and at some angles."""

_RADIUS = 10.0  # the density beyond is below 1e-20
_ORDERS = (32, 64, 96, 128, 192, 256)  # nodes per direction that are tried


def _dual_grid(
    order: int, phi: Activation, orders: tuple[int, int], a: Tensor, b: Tensor, angle: Tensor
) -> Tensor:
    r"""$\mathbb{E}[\varphi^{(j)}(u)\varphi^{(k)}(v)]$ of the pieces left and right of zero.

    By Gauss-Legendre rules for the radius and for each of the four arcs, whose nodes are drawn
    towards radius zero and the ends of the arcs, where an activation of a large argument changes
    fast.

    Args:
        order: Nodes for the radius, and for each arc.
        phi: The activation.
        orders: j and k.
        a: Variances of u.
        b: Variances of v.
        angle: The angles.

    Returns:
        A tensor of shape (len(a), len(b), len(angle)).
    """
    layers = [_layer(order, phi, orders, a.sqrt(), b.sqrt(), float(theta)) for theta in angle]
    return torch.stack(layers, dim=-1)


def _layer(
    order: int,
    phi: Activation,
    orders: tuple[int, int],
    std_u: Tensor,
    std_v: Tensor,
    theta: float,
) -> Tensor:
    """All pairs at one angle; shape (len(std_u), len(std_v))."""
    nodes, weights = gauss_legendre(order)
    share, rest, weights = (1 + nodes) / 2, (1 - nodes) / 2, weights / 2
    radius = _RADIUS * share**2
    radial = weights * 2 * _RADIUS * share * radius * torch.exp(-(radius**2) / 2) / math.tau
    total = std_u.new_zeros(len(std_u), len(std_v))
    for sign_u, sign_v in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        # The arc on which u and v have these signs. Each cosine vanishes at one of its ends,
        # and is the sine of the distance from there.
        length = math.pi - theta if sign_u == sign_v else theta
        cosine_u, cosine_v = (torch.sin(length * _graded(t)) for t in (share, rest))
        weight = torch.outer(radial, length * weights * 6 * share * rest).flatten()
        u = sign_u * torch.outer(radius, cosine_u).flatten()
        v = sign_v * torch.outer(radius, cosine_v).flatten()
        left = phi.derivative(std_u[:, None] * u, orders[0]) * weight
        total += left @ phi.derivative(std_v[:, None] * v, orders[1]).T
    return total


def _graded(share: Tensor) -> Tensor:
    """A map of [0, 1] onto itself that is flat at both ends."""
    return share**2 * (3 - 2 * share)


def resolving_rule(
    phi: Activation, orders: tuple[int, int], largest: tuple[float, float], tolerance: float
) -> Rule:
    """The smallest rule that agrees with the next one at the largest variances.

    Args:
        phi: The activation.
        orders: Derivatives of both factors.
        largest: Largest variances of u and v.
        tolerance: Largest difference, relative to the root of both mean squares.

    Raises:
        AccuracyError: If no rule up to the largest one does.
    """
    rules = [partial(_dual_grid, order, phi) for order in _ORDERS]
    a, b = (torch.tensor([x / 4, x], dtype=torch.float64) for x in largest)
    angle = torch.tensor([0.0, 0.05, 0.7, 1.6, 2.9, math.pi], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    sides = zip(orders, (a, b), strict=True)
    size = math.sqrt(math.prod(float(rules[-1]((n, n), t, t, zero).max()) for n, t in sides))
    coarse = rules[0](orders, a, b, angle)
    for rule, finer in pairwise(rules):
        fine = finer(orders, a, b, angle)
        if float((fine - coarse).abs().max()) <= tolerance * size:
            return partial(rule, orders)
        coarse = fine
    raise AccuracyError(f"the dual of {phi!r} needs more than {_ORDERS[-1]} nodes per direction")
