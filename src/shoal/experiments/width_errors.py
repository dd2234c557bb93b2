"""Errors of networks against their width: relative ones, their slopes, and how they are drawn."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from shoal.experiments.experiment import Result
from shoal.experiments.figures import GRAY
from shoal.experiments.fits import PowerLaw, power_law

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Errors",
    "draw_errors",
    "errors_of",
    "label_axes",
    "relative_error",
    "slopes",
    "unit_inputs",
]

Errors = tuple[Any, Any]
"""Widths and errors of networks."""


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
