r"""How fast the kernels of finite DEQs approach those of infinitely wide ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

import shoal
from shoal.experiments.experiment import Arrays, Experiment, Point, Result
from shoal.experiments.figures import COLORS, style
from shoal.experiments.registry import register
from shoal.experiments.width_errors import (
    draw_errors,
    errors_of,
    label_axes,
    relative_error,
    slopes,
    unit_inputs,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["WidthError"]

_DEQ = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8)
_LABELS = {"ck": "conjugate kernel", "ntk": "neural tangent kernel"}


@register
@dataclass(frozen=True)
class WidthError(Experiment):
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

    def points(self) -> Sequence[Point]:
        """Every width, then every width again: an interrupted run has something of each."""
        return [{"width": m, "draw": k} for k in range(self.draws) for m in self.widths]

    def cost(self, point: Point) -> float:
        """That of a product with the weights."""
        return 1e4 + float(point["width"]) ** 2

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """The relative errors of the two kernels of one network."""
        x = self.inputs().to(device)
        exact = shoal.kernel(self.architecture, x)
        network = shoal.build(
            self.architecture,
            in_features=self.features,
            width=int(point["width"]),
            seed=seed,
            dtype=torch.float64,
            device=device,
        )
        found = shoal.empirical_kernel(network, x)
        return {
            name: relative_error(estimate, true)
            for name, estimate, true in zip(exact._fields, found, exact, strict=True)
        }

    def inputs(self) -> Tensor:
        """Random points on the unit sphere, the same for all networks."""
        return unit_inputs(self.samples, self.features, self.seed)

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The slopes in the logarithms, with 95% confidence intervals."""
        return slopes({kind: errors_of(results, kind) for kind in _LABELS})

    def plot(self, results: Sequence[Result]) -> "Figure":
        """All errors, their mean at each width, and the fitted power laws."""
        with style():
            from matplotlib.figure import Figure

            figure = Figure(figsize=(5.6, 4.2))
            axes = figure.subplots()
            errors = {kind: errors_of(results, kind) for kind in _LABELS}
            for kind, color in zip(_LABELS, COLORS, strict=False):
                draw_errors(axes, _LABELS[kind], color, errors[kind])
            label_axes(axes, list(errors.values()))
            axes.set_title(f"Kernels of a {type(self.architecture.activation).__name__} DEQ")
        return figure
