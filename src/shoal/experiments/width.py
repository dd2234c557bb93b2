r"""How fast the kernels of finite DEQs approach those of infinitely wide ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.experiments.experiment import Arrays, Experiment, Point, Result
from shoal.experiments.figures import COLORS, GRAY, style
from shoal.experiments.fits import PowerLaw, power_law
from shoal.experiments.registry import register

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Errors",
    "WidthError",
    "draw_errors",
    "errors_of",
    "label_axes",
    "relative_error",
    "slopes",
    "unit_inputs",
]

_DEQ = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8)
Errors = tuple[Any, Any]
"""Widths and errors of networks."""

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


def unit_inputs(samples: int, features: int, seed: int) -> Tensor:
    """Random points on the unit sphere."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, features, dtype=torch.float64, generator=generator)
    return torch.nn.functional.normalize(x)


def relative_error(estimate: Tensor, true: Tensor) -> Any:
    """In the Frobenius norm."""
    return np.array(((estimate - true).norm() / true.norm()).item())


def errors_of(results: Sequence[Result], kind: str) -> Errors:
    """Widths and errors of all networks."""
    widths = np.array([result.point["width"] for result in results], dtype=np.float64)
    return widths, np.array([float(result.arrays[kind]) for result in results])


def slopes(errors: Mapping[str, Errors]) -> dict[str, float]:
    """The slopes in the logarithms, with 95% confidence intervals."""
    summary: dict[str, float] = {}
    for name, measured in errors.items():
        law = power_law(*measured)
        summary[f"{name}_slope"] = law.slope
        summary[f"{name}_slope_low"], summary[f"{name}_slope_high"] = law.interval
    return summary


def draw_errors(axes: "Axes", name: str, color: str, measured: Errors) -> None:
    """All errors, their mean at each width, and the fitted power law."""
    widths, errors = measured
    law: PowerLaw = power_law(widths, errors)
    axes.plot(widths, errors, ".", color=color, alpha=0.4, markersize=5, markeredgewidth=0)
    levels = np.unique(widths)
    means = [np.exp(np.log(errors[widths == level]).mean()) for level in levels]
    axes.plot(levels, means, "o", color=color, markersize=5.5)
    low, high = law.interval
    label = f"{name}: slope {law.slope:.3f} [{low:.3f}, {high:.3f}]".replace("-", "−")
    axes.plot(levels, law(levels), color=color, linewidth=1.4, label=label)


def label_axes(axes: "Axes", measured: Sequence[Errors]) -> None:
    """Axes, the theory's slope below all errors, the legend."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    widths = np.unique(measured[0][0])
    ends = widths[[0, -1]]
    lowest = min(float((errors * np.sqrt(widths)).min()) for widths, errors in measured)
    axes.plot(
        ends, 0.8 * lowest / np.sqrt(ends), "--", color=GRAY, linewidth=1.2, label="slope $-1/2$"
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(widths, [f"{int(m)}" for m in widths])
    axes.set_xlabel("width $m$")
    axes.set_ylabel(r"relative error $\|\hat K - K\|_F \, / \, \|K\|_F$")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(top=2.2 * axes.get_ylim()[1])  # room for the legend
    axes.legend(loc="upper right")
