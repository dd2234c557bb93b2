r"""Duals of activations with many panels: integrals of the fine structure first.

$D = \iint \varphi(\sqrt a\,\xi)\,\psi(\sqrt b\,\eta)\,p(\xi, \eta)\,d\xi\,d\eta$, and the density
of two normal variables at an angle $\theta$ varies on the scale $\sin\theta$ only. So panels of
that width are enough for it, however many $\varphi$ needs: with $p$ interpolated at their
Gauss-Legendre nodes, what is left of $\varphi$ is one weight for each node, the integral of
$\varphi$ times a Lagrange polynomial, and $D = \sum_{ij} w_i\,p(\xi_i, \eta_j)\,w_j$.
"""

import math

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.panels import ORDER, gauss_legendre
from shoal.core.caches import cached
from shoal.gaussian.quadrature import normal_density, panel_nodes, resolved_edges

SMALLEST_SINE = 0.01  # below, panels are too many
_WIDTH = 3.0  # of a panel, in sines: ORDER nodes interpolate the density to rounding
_REACH = 9.5  # of the density about its ridge, in sines
_MANY = 48  # panels of an activation from which on it pays
_BLOCK = 256  # panels that are summed at a time


def pays(phi: Activation, radius: float) -> bool:
    """Whether an activation has many panels in a radius."""
    return int((resolved_edges(phi, radius, torch.device("cpu")).abs() < radius).sum()) > _MANY


def condensed_dual(
    phi: Activation,
    orders: tuple[int, int],
    stds: tuple[float, float],
    cosine: float,
    sine: float,
    window: float,
) -> float:
    r"""$\mathbb{E}[\varphi^{(j)}(u)\varphi^{(k)}(v)]$ of the smooth pieces.

    Args:
        phi: The activation.
        orders: j and k.
        stds: The standard deviations of u and v.
        cosine: That of their angle.
        sine: The same; at least ``SMALLEST_SINE``.
        window: How far to integrate, in standard deviations.
    """
    count = _panels(window, sine)
    left, right = (
        _weights(phi, n, s, window, count).view(count, ORDER)
        for n, s in zip(orders, stds, strict=True)
    )
    width = 2 * window / count
    near = math.ceil(_REACH * sine / width) + 1
    right = torch.nn.functional.pad(right, (0, 0, near, near))
    node = gauss_legendre(ORDER)[0] / 2
    numbers, shifts = torch.arange(count), torch.arange(2 * near + 1)
    total = 0.0
    for some in numbers.split(_BLOCK):
        xi = (some[:, None] + 0.5 + node) * width - window  # shape: (panels, nodes)
        ridge = cosine * xi
        middle = ((cosine * ((some + 0.5) * width - window) + window) / width).floor().long()
        partner = middle.clamp(0, count - 1)[:, None] - near + shifts  # shape: (panels, partners)
        eta = ((partner[..., None] + 0.5 + node) * width - window).flatten(1)
        z = (eta[:, None, :] - ridge[..., None]).div_(sine)
        density = z.square_().mul_(-0.5).exp_()
        inner = density @ right[partner + near].flatten(1)[..., None]
        total += float((left[some] * normal_density(xi) * inner[..., 0]).sum())
    return total / (sine * math.sqrt(2 * math.pi))


def _panels(window: float, sine: float) -> int:
    """How many panels the density needs, rounded up so that weights are shared."""
    return int(2 ** math.ceil(math.log2(2 * window / (_WIDTH * sine))))


@cached
def _weights(phi: Activation, order: int, std: float, window: float, count: int) -> Tensor:
    """The weights of the nodes of equal panels."""
    fixed = tuple(window * (2 * k / count - 1) for k in range(count + 1))
    cuts = resolved_edges(phi, window * std, torch.device("cpu")) / std
    nodes = panel_nodes(cuts[None], fixed)
    points, weights = gauss_legendre(ORDER)
    value = phi.derivative(std * nodes.xi, order) * weights * nodes.half[:, None]
    number = ((nodes.xi.mean(1) + window) / (2 * window) * count).floor().long()
    place = (nodes.xi + window) / window * count - 2 * number[:, None] - 1
    # the Lagrange polynomials of the points, in Legendre's
    sums = torch.zeros(count, ORDER, dtype=torch.float64)
    sums.index_add_(0, number, (value[..., None] * _legendre(place)).sum(1))
    degrees = torch.arange(ORDER, dtype=torch.float64)
    return ((sums * (degrees + 0.5)) @ _legendre(points).T * weights).flatten()


def _legendre(t: Tensor) -> Tensor:
    """Legendre's polynomials of degrees below ORDER, in a new last dimension."""
    rows = [torch.ones_like(t), t]
    for n in range(1, ORDER - 1):
        rows.append(((2 * n + 1) * t * rows[-1] - n * rows[-2]) / (n + 1))
    return torch.stack(rows, dim=-1)
