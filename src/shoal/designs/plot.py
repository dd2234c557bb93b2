"""Pictures of designs."""

from typing import TYPE_CHECKING

import torch

from shoal.activations import Activation
from shoal.architectures import DEQ, Architecture, ImplicitNetwork
from shoal.core.figures import Figure, empty_figure

if TYPE_CHECKING:
    from shoal.designs.result import Design

__all__ = ["layer_activations", "plot_activations"]

_REACH = 4.0  # in units of tau0
_WAY = {"moments": "by moments", "sphere": "on the sphere", "patches": "of images"}
_COLORS = ("#0072B2", "#D55E00", "#009E73")


def plot_activations(design: "Design") -> Figure:
    """The activations of the original, dashed, and of the designed network."""
    figure = empty_figure(5.6, 4.2)
    axes = figure.subplots()
    x = torch.linspace(-_REACH, _REACH, 801, dtype=torch.float64) * design.tau0
    for name, sigma in layer_activations(design.original):
        axes.plot(x, sigma(x), "--", color="#444444", label=name)
    designed = layer_activations(design.architecture)
    for (name, sigma), color in zip(designed, _COLORS, strict=False):
        axes.plot(x, sigma(x), color=color, label=f"designed, {name}")
    axes.set(xlabel="x", title=f"{design.match.upper()} design {_WAY[design.method]}")
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.legend(frameon=False)
    return figure


def layer_activations(architecture: Architecture) -> list[tuple[str, Activation]]:
    """The activations of a network, with the names of its layers."""
    if isinstance(architecture, ImplicitNetwork):
        return []
    cells = architecture.layers().cells
    if isinstance(architecture, DEQ) and len(cells) == 1:
        return [("DEQ", cells[0].activation)]
    return [(f"layer {i}", cell.activation) for i, cell in enumerate(cells, start=1)]
