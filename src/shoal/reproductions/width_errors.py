"""Random networks of several widths: their errors, the slopes of these, how they are drawn."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.architectures import Architecture
from shoal.lab.experiment import Arrays, Experiment, Point, Result
from shoal.lab.fits import PowerLaw, power_law
from shoal.networks import Network
from shoal.pages.figures import COLORS, GRAY, Axes

__all__ = [
    "Errors",
    "WidthDraws",
    "by_group",
    "draw_kernels",
    "errors_of",
    "network_for",
    "relative_errors",
    "slopes",
    "unit_inputs",
]

Errors = tuple[Any, Any]
"""Widths and errors of networks."""


class WidthDraws(Experiment):
    """An experiment whose points are random networks of several widths.

    Attributes:
        widths: The widths $m$.
        draws: How many networks are drawn for each.
    """

    widths: tuple[int, ...]
    draws: int

    def points(self) -> Sequence[Point]:
        """Every width, then every width again: an interrupted run has something of each."""
        return [{"width": m, "draw": k} for k in range(self.draws) for m in self.widths]

    def cost(self, point: Point) -> float:
        """That of a product with the weights."""
        return 1e4 + float(point["width"]) ** 2


def unit_inputs(samples: int, features: int, seed: int) -> Tensor:
    """Random points on the unit sphere."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, features, dtype=torch.float64, generator=generator)
    return torch.nn.functional.normalize(x)


def network_for(architecture: Architecture, x: Tensor, *, width: int, seed: int) -> Network[Any]:
    """A network for inputs like ``x``, in their dtype and where they are."""
    options: dict[str, Any] = {"pixel_axes": x.dim() - 2} if x.dim() > 2 else {}
    options |= {"dtype": x.dtype, "device": x.device}
    return shoal.build(architecture, in_features=x.shape[1], width=width, seed=seed, **options)


def by_group(
    kernels: Callable[[set[str]], shoal.Kernels], groups: Sequence[str]
) -> dict[str, Tensor]:
    """The conjugate kernel, the neural tangent kernel and each group's share of it.

    Args:
        kernels: The kernels for the groups that are trained.
        groups: All groups.
    """
    found = {group: kernels({group}) for group in groups}
    shares = {group: one.ntk for group, one in found.items()}
    return {"ck": found[groups[0]].ck, "ntk": torch.stack([*shares.values()]).sum(0), **shares}


def relative_errors(estimates: Mapping[str, Tensor], limits: Mapping[str, Tensor]) -> Arrays:
    """In the Frobenius norm."""
    return {
        name: np.array(((estimates[name] - limit).norm() / limit.norm()).item())
        for name, limit in limits.items()
    }


def errors_of(results: Sequence[Result], kind: str) -> Errors:
    """Widths and errors of all networks."""
    widths = np.array([result.point["width"] for result in results], dtype=np.float64)
    return widths, np.array([float(result.arrays[kind]) for result in results])


def slopes(errors: Mapping[str, Errors]) -> dict[str, float]:
    """The slopes in the logarithms, with 95% confidence intervals."""
    laws = {name: power_law(*measured) for name, measured in errors.items()}
    return {key: value for name, law in laws.items() for key, value in law.numbers(name).items()}


def draw_kernels(axes: Axes, errors: Mapping[str, Errors]) -> None:
    """The errors of several kernels, each with its name."""
    for index, (name, measured) in enumerate(errors.items()):
        label = name.upper() if name in shoal.Kernels._fields else name
        _draw_errors(axes, label, COLORS[index % len(COLORS)], measured)
    _label_axes(axes, list(errors.values()))


def _draw_errors(axes: Axes, name: str, color: str, measured: Errors) -> None:
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


def _label_axes(axes: Axes, measured: Sequence[Errors]) -> None:
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
