"""Gaussian integrals of piecewise smooth functions by Gauss-Legendre panels split at the kinks.

All of shoal's Gaussian integrals are sums over panels whose edges are the union of the edges that
resolve the activation (see :mod:`shoal.activations.panels`) and of fixed edges that resolve the
Gaussian density. Rows of a batch need different panels; empty ones are dropped before anything is
evaluated, so that the work is proportional to what is needed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.panels import ORDER, breaks, edges, gauss_legendre, reach
from shoal.core.exceptions import AccuracyError

DELTA_WINDOW = 40.0  # standard deviations; beyond, the density is zero in float64
_WIDER = (10.0, 20.0, 38.0)  # windows that are tried in turn; beyond the last, exp(-ξ²/2) is zero
_PANEL = 5.0  # the widest panel that resolves the density, in standard deviations
_BEYOND = 1e-17  # how much of the largest squared integrand may be left at the ends of a window


@dataclass(frozen=True)
class Nodes:
    """Quadrature nodes for a batch of rows.

    Attributes:
        row: The row that each panel belongs to.
        half: Half the width of each panel, in standard deviations.
        xi: The nodes of each panel, in standard deviations.
    """

    row: Tensor  # shape: (panels,)
    half: Tensor  # shape: (panels,)
    xi: Tensor  # shape: (panels, ORDER)

    def at(self, rows: Tensor) -> Tensor:
        """Spread one number per row over that row's panels; shape (panels, 1)."""
        return rows[self.row, None]

    def weighted(self, values: Tensor) -> Tensor:
        """Values at the nodes times their weights in integrals with the standard normal density."""
        weights = gauss_legendre(ORDER)[1].to(values.device) * self.half[:, None]
        density = (self.xi * self.xi).mul_(-0.5).exp_()
        return density.mul_(values).mul_(weights / math.sqrt(2 * math.pi))

    def sums(self, values: Tensor, rows: int) -> Tensor:
        """Add up what the nodes of each row have."""
        return values.new_zeros(rows).index_add_(0, self.row, values.sum(-1))

    def expectation(self, values: Tensor, rows: int) -> Tensor:
        """Integrate ``values`` at the nodes against the standard normal density, row by row."""
        return self.sums(self.weighted(values), rows)


def blocks(rows: int, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut equally long vectors into blocks of some rows; larger ones off the CPU."""
    size = rows if vectors[0].device.type == "cpu" else 256 * rows
    yield from zip(*(vector.split(size) for vector in vectors), strict=True)


def normal_density(x: Tensor) -> Tensor:
    """The standard normal density."""
    return torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def resolved_edges(phi: Activation, radius: float, device: torch.device) -> Tensor:
    """The panel edges of ``phi`` that lie in [-radius, radius], kinks among them."""
    cuts = edges(phi, reach(phi, radius))
    return cuts[cuts.abs() <= radius].to(device)


def finest_panel(phi: Activation, std: float) -> float:
    """The width of the finest details of ``phi`` that count at a scale, in standard deviations."""
    widths = resolved_edges(phi, _WIDER[0] * std, torch.device("cpu")).diff()
    return float(widths.min()) / std if len(widths) else math.inf


def nearby_breaks(phi: Activation, radius: float) -> tuple[float, ...]:
    """The places in [-radius, radius] where ``phi`` is not analytic.

    They are looked for in a quarter of that: ten standard deviations, not forty.
    """
    return tuple(x for x in breaks(phi, reach(phi, radius / 4)) if abs(x) <= radius)


def window_edges(phi: Activation, order: int, std: float) -> tuple[float, ...]:
    r"""Edges that resolve the density, as far out as $\varphi^{(k)}(s\xi)$ has weight under it.

    Raises:
        AccuracyError: If the function grows too fast to be integrated at this scale.
    """
    reach(phi, 1.0)  # sees that the user's function is one, before it is evaluated
    for window in _WIDER:
        xi = torch.linspace(-window, window, 161, dtype=torch.float64)
        weight = phi.derivative(std * xi, order) ** 2 * torch.exp(-(xi**2) / 2)
        ends = torch.maximum(weight[0], weight[-1])
        if bool(weight.isfinite().all() & (ends <= _BEYOND * weight.max())):
            panels = math.ceil(window / _PANEL)
            return tuple(window * k / panels for k in range(-panels, panels + 1))
    raise AccuracyError(
        f"{phi!r} grows too fast to be integrated under a Gaussian of standard deviation {std:.6g}"
    )


def panel_nodes(cuts: Tensor, density_edges: tuple[float, ...]) -> Nodes:
    """The nodes of panels with the given edges and those that resolve the density.

    Args:
        cuts: Edges in standard deviations, unsorted; infinite ones are ignored; (rows, edges).
        density_edges: Edges that resolve the rest of the integrand.
    """
    low, high = density_edges[0], density_edges[-1]
    fixed = cuts.new_tensor(density_edges).expand(cuts.shape[0], -1)
    every = torch.cat([cuts.nan_to_num(high, high, low).clamp(low, high), fixed], dim=1)
    every = every.sort(dim=1).values
    width = every.diff(dim=1)
    row, panel = (width > 0).nonzero(as_tuple=True)
    half = width[row, panel] / 2
    nodes = gauss_legendre(ORDER)[0].to(cuts.device)
    return Nodes(row, half, torch.addcmul(every[row, panel, None], half[:, None], 1 + nodes))
