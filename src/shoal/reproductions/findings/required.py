"""How wide must a network be: by the theorems, by certificates, and by trying."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch

import shoal
from shoal import data
from shoal.architectures import Architecture
from shoal.lab.experiment import Arrays, Experiment, Point, Result
from shoal.lab.registry import register
from shoal.pages.figures import COLORS, Axes, Figure, new_figure, styled

__all__ = ["RequiredWidths"]


class _Setting(NamedTuple):
    """How a network starts, and what it is to learn."""

    readout_scale: float
    label: float
    words: str


_SETTINGS = {
    "small": _Setting(0.0, 0.1, r"readout 0, labels $\pm$0.1"),
    "paper": _Setting(1.0, 1.0, r"readout and labels as in the paper"),
}
_TITLES = {"deq": "DEQ (Ling 2023)", "implicit": "implicit network (Gao 2022)"}
_KEYS = {
    "flow": "theorem, gradient flow",
    "descent": "theorem, gradient descent",
    "certificate": "certificate",
    "experience": "experience",
}


@register
@dataclass(frozen=True)
class RequiredWidths(Experiment):
    r"""Widths from which gradient descent is known to train a network, and from which it does.

    Random points on the sphere, half of the labels positive. The theorems are those of the papers
    in their corrected forms, with probability 0.9.

    Args:
        networks: ``"deq"``, ``"implicit"`` or both.
        settings: ``"small"``, ``"paper"`` or both.
        samples: Numbers $n$ of points, ascending.
        features: $d$.
        weight_variance: $\sigma_w^2$ of the DEQ.
        gamma: $\gamma$ of the implicit network.
        largest_width: Up to which width networks are tried.
        seeds: How many networks of a width must all succeed.
        seed: Of the points.
    """

    name: ClassVar[tuple[str, str]] = ("shoal", "required-width")
    title: ClassVar[str] = "Widths that theorems, certificates and experience ask for"

    networks: tuple[str, ...] = ("deq", "implicit")
    settings: tuple[str, ...] = ("small", "paper")
    samples: tuple[int, ...] = (2, 4, 8, 16)
    features: int = 24
    weight_variance: float = 0.001
    gamma: float = 0.1
    largest_width: int = 1024
    seeds: int = 3
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Two points, narrow networks, one of each width."""
        return cls(samples=(2,), largest_width=64, seeds=1)

    def points(self) -> Sequence[Point]:
        """Each network in each setting, with each number of points."""
        return [
            {"network": network, "setting": setting, "samples": n}
            for n in self.samples
            for network in self.networks
            for setting in self.settings
        ]

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:  # noqa: ARG002
        """The widths; infinite where no width will do, NaN where none was found."""
        n, setting = int(point["samples"]), _SETTINGS[str(point["setting"])]
        x = data.sphere(n, self.features, seed=self.seed, dtype=torch.float64).x
        architecture: Architecture = shoal.DEQ.ling2023(self.weight_variance, self.features)
        if point["network"] == "implicit":
            architecture, x = shoal.ImplicitNetwork(self.gamma), x / math.sqrt(self.features)
        found = shoal.required_width(
            architecture,
            x,
            setting.label * (1 - 2 * (torch.arange(n, dtype=torch.float64) % 2)),
            readout_scale=setting.readout_scale,
            largest_width=self.largest_width,
            seeds=self.seeds,
        )

        def theorem(dynamics: str) -> float:
            end = f"(corrected), gradient {dynamics}"
            return min((w for t, w in found.theorems.items() if t.endswith(end)), default=math.inf)

        tried = {"certificate": found.certified, "experience": found.empirical}
        widths = {kind: theorem(kind) for kind in ("flow", "descent")}
        widths |= {name: math.nan if width is None else width for name, width in tried.items()}
        return {name: np.array(float(width)) for name, width in widths.items()}

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The widths that exist, by network, setting and number of points."""
        summary: dict[str, float] = {}
        for result in results:
            name = "_".join(map(str, result.point.values()))
            widths = {f"{name}_{key}": float(result.arrays[key]) for key in _KEYS}
            summary |= {key: width for key, width in widths.items() if math.isfinite(width)}
        return summary

    @styled
    def plot(self, results: Sequence[Result]) -> Figure:
        """A panel for each network and setting."""
        rows, columns = len(self.networks), len(self.settings)
        figure = new_figure(4.6 * columns + 0.4, 3.1 * rows + 0.5)
        panels: Any = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for row, network in zip(panels, self.networks, strict=True):
            for axes, setting in zip(row, self.settings, strict=True):
                case = {"network": network, "setting": setting}
                found = [r for r in results if case.items() <= dict(r.point).items()]
                _draw(axes, found)
                words = f"{_TITLES[network]}\n{_SETTINGS[setting].words}"
                axes.set_title(words, fontsize=10)
            row[0].set_ylabel("width")
        for axes in panels[-1]:
            axes.set_xlabel("samples $n$")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        return figure


def _draw(axes: Axes, results: Sequence[Result]) -> None:
    samples = [int(result.point["samples"]) for result in results]
    for (key, label), color in zip(_KEYS.items(), COLORS, strict=False):
        widths = np.array([float(result.arrays[key]) for result in results])
        widths[np.isinf(widths)] = math.nan
        axes.plot(samples, widths, "o-", color=color, markersize=4, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(samples, [str(n) for n in samples])
