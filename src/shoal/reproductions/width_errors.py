"""Random networks of several widths, and how far their kernels are from those of infinite width."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.architectures import Architecture
from shoal.lab.descent import network_for
from shoal.lab.experiment import Experiment, Point, Result, grid
from shoal.lab.figures import draw_law, draw_slope, logarithmic_axes, plain_numbers
from shoal.lab.fits import curve, power_law
from shoal.pages.figures import COLORS, Axes

__all__ = ["KernelErrors", "WidthDraws", "draw_errors", "limit_kernels", "unit_inputs"]

_LABELS = {"ck": "CK", "ntk": "NTK"}


class WidthDraws(Experiment):
    """An experiment whose points are random networks of several widths, with the same inputs.

    Attributes:
        widths: The widths $m$.
        draws: How many networks are drawn for each.
        samples: The number of inputs.
        features: Their dimension.
        seed: Of the inputs.
    """

    widths: tuple[int, ...]
    draws: int
    samples: int
    features: int
    seed: int

    def inputs(self) -> Tensor:
        """The inputs, in float64: random points on the unit sphere."""
        return unit_inputs(self.samples, self.features, self.seed)

    def points(self) -> Sequence[Point]:
        """Every width, then every width again: an interrupted run has something of each."""
        return grid("draw", width=self.widths, draw=range(self.draws))

    def cost(self, point: Point) -> float:
        """That of a product with the weights."""
        return 1e4 + float(point["width"]) ** 2


def unit_inputs(samples: int, features: int, seed: int) -> Tensor:
    """Random points on the unit sphere."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, features, dtype=torch.float64, generator=generator)
    return torch.nn.functional.normalize(x)


@dataclass(frozen=True)
class KernelErrors(WidthDraws):
    r"""Monte Carlo errors of networks of width $m$, which fall like $m^{-1/2}$.

    Each point is one random network. The error of its conjugate kernel, of its neural tangent
    kernel and, where groups are told apart, of each group's share of that is
    $\|\hat K - K\|_F / \|K\|_F$, for the same random inputs of norm one.
    """

    groups: ClassVar[bool] = True  # whether groups of weights are told apart

    @abstractmethod
    def wide(self, point: Point) -> Architecture:
        """The architecture of a point."""

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Tensor]:
        """The relative errors of one network."""
        wide, x = self.wide(point), self.inputs().to(device)
        network = network_for(wide, x, width=int(point["width"]), seed=seed)
        found = self._kernels(wide, lambda some: shoal.empirical_kernel(network, x, trainable=some))
        limits = limit_kernels(self, wide, device)
        return {name: (found[name] - limit).norm() / limit.norm() for name, limit in limits.items()}

    def _kernels(
        self, wide: Architecture, kernels: Callable[[set[str] | None], shoal.Kernels]
    ) -> dict[str, Tensor]:
        """Both kernels and each group's share, from the kernels for groups that are trained."""
        if not self.groups:
            return kernels(None)._asdict()
        found = {group: kernels({group}) for group in wide.parameter_groups}
        shares = {group: one.ntk for group, one in found.items()}
        ck = next(iter(found.values())).ck
        return {"ck": ck, "ntk": torch.stack([*shares.values()]).sum(0), **shares}

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The slopes in the logarithms, with 95% confidence intervals."""
        laws = {kind: power_law(*curve(results, "width", kind)) for kind in results[0].arrays}
        return {key: v for kind, law in laws.items() for key, v in law.numbers(kind).items()}


@lru_cache(maxsize=16)
def limit_kernels(
    experiment: KernelErrors, wide: Architecture, device: torch.device
) -> dict[str, Tensor]:
    """The kernels of an infinitely wide network, the same for all finite ones."""
    x = experiment.inputs().to(device)
    return experiment._kernels(wide, lambda some: shoal.kernel(wide, x, trainable=some))


def draw_errors(axes: Axes, results: Sequence[Result], labels: Mapping[str, str] = _LABELS) -> None:
    """All errors of each kernel, their means and fitted power laws, and the slope of theory."""
    errors = {kind: curve(results, "width", kind) for kind in results[0].arrays}
    for index, (kind, measured) in enumerate(errors.items()):
        color = COLORS[index % len(COLORS)]
        draw_law(axes, measured, labels.get(kind, kind), color, decimals=3, means=True)
    lowest = min(float((error * np.sqrt(width)).min()) for width, error in errors.values())
    widths: Any = np.unique(next(iter(errors.values()))[0])
    draw_slope(axes, widths, 0.8 * lowest)
    logarithmic_axes(axes, widths, "width $m$")
    axes.set_ylabel(r"relative error $\|\hat K - K\|_F \, / \, \|K\|_F$")
    plain_numbers(axes)
    axes.set_ylim(top=2.2 * axes.get_ylim()[1])  # room for the legend
    axes.legend(loc="upper right")
