r"""How fast the kernels of all architectures approach their limits, by group of weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import torch
from torch import Tensor

import shoal
from shoal.lab.experiment import Arrays, Experiment, Point, Result
from shoal.lab.registry import register
from shoal.pages.figures import Figure, new_figure, styled
from shoal.reproductions.width_errors import (
    Errors,
    by_group,
    draw_kernels,
    errors_of,
    network_for,
    relative_errors,
    slopes,
    unit_inputs,
)

__all__ = ["GroupError"]

_ARCHITECTURES = (
    shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8),
    shoal.ImplicitNetwork(gamma=0.4),
    shoal.FullyConnected.du2018(shoal.Softplus(), depth=3),
    shoal.ResNet(shoal.Softplus(), depth=3, residual_scale=1.0),
)


@register
@dataclass(frozen=True)
class GroupError(Experiment):
    r"""Monte Carlo error of networks of width $m$, which falls like $m^{-1/2}$ for every group.

    Each point is one random network of one architecture and width. For the conjugate kernel, the
    neural tangent kernel and each group's share of it, the error is $\|\hat K - K\|_F / \|K\|_F$,
    for the same random inputs on the unit sphere.

    Args:
        architectures: The architectures, whose kernels at infinite width are known.
        widths: The widths $m$.
        draws: How many networks are drawn for each.
        samples: The number of inputs.
        features: Their dimension.
        seed: Of inputs and networks.
    """

    name: ClassVar[tuple[str, str]] = ("shoal", "groups")
    title: ClassVar[str] = "Monte Carlo error of every architecture's kernels against the width"

    architectures: tuple[shoal.Architecture, ...] = _ARCHITECTURES
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    draws: int = 16
    samples: int = 32
    features: int = 32
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Narrow networks, few inputs."""
        return cls(widths=(32, 64, 128, 256), draws=6, samples=12, features=16)

    def points(self) -> Sequence[Point]:
        """Everything, then everything again: an interrupted run has something of each."""
        return [
            {"network": index, "width": width, "draw": draw}
            for draw in range(self.draws)
            for width in self.widths
            for index in range(len(self.architectures))
        ]

    def cost(self, point: Point) -> float:
        """That of a product with the weights."""
        return 1e4 + float(point["width"]) ** 2

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """The relative errors of one network."""
        architecture = self.architectures[int(point["network"])]
        x = self.inputs().to(device)
        network = network_for(architecture, x, width=int(point["width"]), seed=seed)
        found = by_group(
            lambda trained: shoal.empirical_kernel(network, x, trainable=trained),
            architecture.parameter_groups,
        )
        return relative_errors(found, _limits(self, architecture, device))

    def inputs(self) -> Tensor:
        """Random points on the unit sphere, the same for all networks."""
        return unit_inputs(self.samples, self.features, self.seed)

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The slopes in the logarithms, with 95% confidence intervals, by network and kernel."""
        summary: dict[str, float] = {}
        for index, label in enumerate(self._labels()):
            found = slopes(self._errors(results, index))
            summary |= {f"{label}_{name}": value for name, value in found.items()}
        return summary

    @styled
    def plot(self, results: Sequence[Result]) -> Figure:
        """A panel for each architecture: all errors, their means and the fitted power laws."""
        count = len(self.architectures)
        figure = new_figure(5.6 * min(count, 2), 4.6 * -(-count // 2))
        panels = figure.subplots(-(-count // 2), min(count, 2), squeeze=False).flatten()
        for index, label in enumerate(self._labels()):
            draw_kernels(panels[index], self._errors(results, index))
            panels[index].set_title(label)
        for empty in panels[count:]:
            empty.set_axis_off()
        return figure

    def _labels(self) -> list[str]:
        """The names of the classes, numbered where one occurs again."""
        names = [type(architecture).__name__ for architecture in self.architectures]
        return [
            name if names.count(name) == 1 else f"{name}{names[:index].count(name) + 1}"
            for index, name in enumerate(names)
        ]

    def _errors(self, results: Sequence[Result], index: int) -> dict[str, Errors]:
        """The errors of one architecture, by kernel."""
        own = [result for result in results if result.point["network"] == index]
        return {name: errors_of(own, name) for name in own[0].arrays}


@lru_cache(maxsize=16)
def _limits(
    experiment: GroupError, wide: shoal.Architecture, device: torch.device
) -> dict[str, Tensor]:
    """The kernels of an infinitely wide network, the same for all finite ones."""
    x = experiment.inputs().to(device)
    return by_group(lambda trained: shoal.kernel(wide, x, trainable=trained), wide.parameter_groups)
