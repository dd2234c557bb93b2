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
from shoal.activations.panels import ORDER, RADIUS, edges, gauss_legendre

__all__ = ["WINDOW", "Nodes", "blocks", "normal_density", "panel_nodes", "resolved_edges"]

WINDOW = 10.0  # standard deviations; the density beyond is below 1e-22
_DENSITY_EDGES = (-WINDOW, -5.0, 0.0, 5.0, WINDOW)


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

    def expectation(self, values: Tensor, rows: int) -> Tensor:
        """Integrate ``values`` at the nodes against the standard normal density, row by row."""
        weights = gauss_legendre(ORDER)[1].to(values.device)
        density = (self.xi * self.xi).mul_(-0.5).exp_()
        panels = (density.mul_(values) @ weights).mul_(self.half / math.sqrt(2 * math.pi))
        return panels.new_zeros(rows).index_add_(0, self.row, panels)


def blocks(rows: int, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut equally long vectors into blocks of some rows; larger ones off the CPU."""
    size = rows if vectors[0].device.type == "cpu" else 256 * rows
    yield from zip(*(vector.split(size) for vector in vectors), strict=True)


def normal_density(x: Tensor) -> Tensor:
    """The standard normal density."""
    return torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def resolved_edges(phi: Activation, radius: float, device: torch.device) -> Tensor:
    """The panel edges of ``phi`` that lie in [-radius, radius], kinks among them."""
    covered = max(RADIUS, 2.0 ** math.ceil(math.log2(max(radius, 1.0))))
    cuts = edges(phi, covered)
    return cuts[cuts.abs() <= radius].to(device)


def panel_nodes(cuts: Tensor, density_edges: tuple[float, ...] = _DENSITY_EDGES) -> Nodes:
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
