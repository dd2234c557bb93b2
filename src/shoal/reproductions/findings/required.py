"""How wide must a network be: by the theorems, by certificates, and by trying."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch

import shoal
from shoal import data
from shoal.architectures import Architecture
from shoal.lab.experiment import Experiment, Point, Result, by_point, grid, matching
from shoal.lab.figures import draw_panels, logarithmic_axes
from shoal.lab.fits import curve
from shoal.lab.registry import register
from shoal.pages.figures import COLORS, Axes, Figure


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
        axes = {"network": self.networks, "setting": self.settings}
        return grid("samples", **axes, samples=self.samples)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, float]:  # noqa: ARG002
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
        return widths | {name: math.nan if w is None else float(w) for name, w in tried.items()}

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The widths that exist, by network, setting and number of points."""
        summary = by_point(results, lambda r: {key: float(r.arrays[key]) for key in _KEYS})
        return {key: width for key, width in summary.items() if math.isfinite(width)}

    def plot(self, results: Sequence[Result]) -> Figure:
        """A panel for each network and setting."""

        def panel(axes: Axes, network: str, setting: str) -> str:
            _draw(axes, matching(results, {"network": network, "setting": setting}))
            return f"{_TITLES[network]}\n{_SETTINGS[setting].words}"

        return draw_panels(
            self.networks,
            self.settings,
            panel,
            (4.6 * len(self.settings) + 0.4, 3.1 * len(self.networks) + 0.5),
            x="samples $n$",
            y="width",
            title=10,
            sharex=True,
            sharey=True,
        )


def _draw(axes: Axes, results: Sequence[Result]) -> None:
    for (key, label), color in zip(_KEYS.items(), COLORS, strict=False):
        samples, widths = curve(results, "samples", key)
        widths[np.isinf(widths)] = math.nan
        axes.plot(samples, widths, "o-", color=color, markersize=4, label=label)
    logarithmic_axes(axes, samples)
