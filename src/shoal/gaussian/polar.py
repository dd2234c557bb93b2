r"""Duals on a grid by quadrature in polar coordinates.

With $u = \sqrt a\,r\cos\alpha$ and $v = \sqrt b\,r\cos(\alpha - \theta)$,

$D(a, b, \theta) = \frac{1}{2\pi} \int_0^\infty r e^{-r^2/2} \int_{-\pi}^{\pi}
\varphi(\sqrt a\,r\cos\alpha)\,\varphi(\sqrt b\,r\cos(\alpha - \theta))\,d\alpha\,dr.$

The signs of $u$ and $v$ change at four angles only, so a kink at zero is split off exactly, however
small $\theta$. For one angle the values at all $a$ and all $b$ are two matrices, and the duals at
all pairs are their product.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.panels import gauss_legendre
from shoal.core.exceptions import AccuracyError

__all__ = ["PolarRule", "resolving_rule"]

_RADIUS = 10.0  # the density beyond is below 1e-20
_ORDERS = (32, 64, 96, 128, 192, 256)  # nodes per direction that are tried


@dataclass(frozen=True)
class PolarRule:
    """Gauss-Legendre rules for the radius and for each of the four arcs.

    The nodes are drawn towards radius zero and the ends of the arcs, where an activation of a large
    argument changes fast.

    Args:
        order: Nodes for the radius, and for each arc.
    """

    order: int

    def dual_grid(
        self, phi: Activation, j: int, k: int, a: Tensor, b: Tensor, angle: Tensor
    ) -> Tensor:
        r"""$\mathbb{E}[\varphi^{(j)}(u)\varphi^{(k)}(v)]$ of the pieces left and right of zero.

        Returns:
            A tensor of shape (len(a), len(b), len(angle)).
        """
        layers = [self._layer(phi, j, k, a.sqrt(), b.sqrt(), float(theta)) for theta in angle]
        return torch.stack(layers, dim=-1)

    def _nodes(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Radii and their weights, shares of an arc from both ends and their weights."""
        nodes, weights = gauss_legendre(self.order)
        share, rest, weights = (1 + nodes) / 2, (1 - nodes) / 2, weights / 2
        radius = _RADIUS * share**2
        radial = weights * 2 * _RADIUS * share * radius * torch.exp(-(radius**2) / 2) / math.tau
        return radius, radial, _graded(share), _graded(rest), weights * 6 * share * rest

    def _layer(
        self, phi: Activation, j: int, k: int, std_u: Tensor, std_v: Tensor, theta: float
    ) -> Tensor:
        """All pairs at one angle; shape (len(std_u), len(std_v))."""
        radius, radial, arc, from_end, arc_weights = self._nodes()
        total = std_u.new_zeros(len(std_u), len(std_v))
        for sign_u, sign_v in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
            # The arc on which u and v have these signs. Each cosine vanishes at one of its ends,
            # and is the sine of the distance from there.
            length = math.pi - theta if sign_u == sign_v else theta
            cosine_u, cosine_v = torch.sin(length * arc), torch.sin(length * from_end)
            weight = torch.outer(radial, length * arc_weights).flatten()
            u = sign_u * torch.outer(radius, cosine_u).flatten()
            v = sign_v * torch.outer(radius, cosine_v).flatten()
            left = phi.derivative(std_u[:, None] * u, j) * weight
            total += left @ phi.derivative(std_v[:, None] * v, k).T
        return total


def _graded(share: Tensor) -> Tensor:
    """A map of [0, 1] onto itself that is flat at both ends."""
    return share**2 * (3 - 2 * share)


def resolving_rule(
    phi: Activation, j: int, k: int, largest_a: float, largest_b: float, tolerance: float
) -> PolarRule:
    """The smallest rule that agrees with the next one at the largest variances.

    Args:
        phi: The activation.
        j: Derivative of the first factor.
        k: Derivative of the second factor.
        largest_a: Largest variance of u.
        largest_b: Largest variance of v.
        tolerance: Largest difference, relative to the root of both mean squares.

    Raises:
        AccuracyError: If no rule up to the largest one does.
    """
    a, b = (torch.tensor([x / 4, x], dtype=torch.float64) for x in (largest_a, largest_b))
    angle = torch.tensor([0.0, 0.05, 0.7, 1.6, 2.9, math.pi], dtype=torch.float64)
    zero, finest = torch.zeros(1, dtype=torch.float64), PolarRule(_ORDERS[-1])
    squares = [finest.dual_grid(phi, n, n, t, t, zero).max() for n, t in ((j, a), (k, b))]
    size = math.sqrt(float(squares[0] * squares[1]))
    coarse = PolarRule(_ORDERS[0]).dual_grid(phi, j, k, a, b, angle)
    for order, finer in pairwise(_ORDERS):
        fine = PolarRule(finer).dual_grid(phi, j, k, a, b, angle)
        if float((fine - coarse).abs().max()) <= tolerance * size:
            return PolarRule(order)
        coarse = fine
    raise AccuracyError(f"the dual of {phi!r} needs more than {_ORDERS[-1]} nodes per direction")
