r"""How fast the kernels of finite DEQs approach those of infinitely wide ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import torch
from torch import Tensor

import shoal
from shoal.lab.experiment import Arrays, Point, Result
from shoal.lab.registry import register
from shoal.pages.figures import Figure, new_figure, styled
from shoal.reproductions.width_errors import (
    WidthDraws,
    draw_kernels,
    errors_of,
    network_for,
    relative_errors,
    slopes,
    unit_inputs,
)

__all__ = ["WidthError"]

_DEQ = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8)
_LABELS = {"ck": "conjugate kernel", "ntk": "neural tangent kernel"}


@register
@dataclass(frozen=True)
class WidthError(WidthDraws):
    r"""Monte Carlo error of the kernels of a DEQ of width $m$, which falls like $m^{-1/2}$.

    Each point is one random network of one width; its error is
    $\|\hat K - K\|_F / \|K\|_F$, for the same random inputs on the unit sphere.

    Args:
        architecture: The DEQ.
        widths: The widths $m$.
        draws: How many networks are drawn for each.
        samples: The number of inputs.
        features: Their dimension.
        seed: Of inputs and networks.
    """

    name: ClassVar[tuple[str, str]] = ("shoal", "width")
    title: ClassVar[str] = "Monte Carlo error of a finite DEQ's kernels against its width"

    architecture: shoal.DEQ = _DEQ
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    draws: int = 16
    samples: int = 64
    features: int = 64
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Narrow networks, few inputs."""
        return cls(widths=(32, 64, 128, 256), draws=6, samples=16, features=32)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """The relative errors of the two kernels of one network."""
        x = self.inputs().to(device)
        network = network_for(self.architecture, x, width=int(point["width"]), seed=seed)
        found = shoal.empirical_kernel(network, x)
        return relative_errors(found._asdict(), _limits(self, device))

    def inputs(self) -> Tensor:
        """Random points on the unit sphere, the same for all networks."""
        return unit_inputs(self.samples, self.features, self.seed)

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The slopes in the logarithms, with 95% confidence intervals."""
        return slopes({kind: errors_of(results, kind) for kind in _LABELS})

    @styled
    def plot(self, results: Sequence[Result]) -> Figure:
        """All errors, their mean at each width, and the fitted power laws."""
        figure = new_figure(5.6, 4.2)
        axes = figure.subplots()
        draw_kernels(axes, {label: errors_of(results, k) for k, label in _LABELS.items()})
        axes.set_title(f"Kernels of a {type(self.architecture.activation).__name__} DEQ")
        return figure


@lru_cache(maxsize=4)
def _limits(experiment: WidthError, device: torch.device) -> dict[str, Tensor]:
    """The kernels of the infinitely wide network, the same for all finite ones."""
    return shoal.kernel(experiment.architecture, experiment.inputs().to(device))._asdict()
