"""Matrices compared in spectral norm, and their eigenvalues: figures 5 to 7 of Ling 2024.

On the left the samples are those of a Gaussian mixture, on the right images of two digits.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal import data
from shoal.architectures import DEQ
from shoal.core.fields import later
from shoal.lab.experiment import Arrays, Point, Result, by_point, grid, matching
from shoal.lab.figures import draw_panels
from shoal.pages.figures import Axes, Figure
from shoal.reproductions.deqs import DEQs

_BINS = 60

Curve = tuple[Any, dict[str, Any]]
"""Eigenvalues, and how their histogram looks."""


class Sample(NamedTuple):
    """Inputs as rows, their classes, and the mixture that they are drawn from, if it is known."""

    x: Tensor
    labels: Tensor
    mixture: shoal.GaussianMixture | None = None


@dataclass(frozen=True)
class Spectra(DEQs):
    r"""Matrices of one sample for each point, and of one network by which they are estimated.

    Args:
        activations: Of the DEQs, which are centered.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        width: Of the networks by which the paper estimates the kernels.
    """

    norms: ClassVar[tuple[str, ...]]  # the arrays that the summary has
    told: ClassVar[str]  # some of them, in words
    printed: ClassVar[Mapping[str, float]]
    logarithmic: ClassVar[bool]  # the axis of eigenvalues; the density is of their logarithms

    width: int = 2**12

    @abstractmethod
    def sample(self, point: Point, seed: int) -> Sample:
        """The inputs of a point."""

    @abstractmethod
    def compare(self, deq: DEQ, sample: Sample, seed: int) -> Mapping[str, Any]:
        """The norms that the summary has, and eigenvalues."""

    @abstractmethod
    def draw(self, axes: Axes, arrays: Arrays) -> None:
        """Draw the eigenvalues of one point."""

    def headline(self, arrays: Arrays) -> str:
        """The norms of one point; on the mixture the last is the one that the paper prints."""
        return self.told.format_map({key: float(arrays[key]) for key in self.norms})

    @abstractmethod
    def title_of(self, point: Point, arrays: Arrays) -> str:
        """What a panel shows, with its headline."""

    @property
    @abstractmethod
    def columns(self) -> Sequence[Point]:
        """What panels side by side are about."""

    def draw_densities(
        self,
        axes: Axes,
        curves: Sequence[Curve],
        overlay: Callable[[float], None] | None = None,
    ) -> None:
        """Densities of eigenvalues, on a logarithmic axis so that single ones are seen.

        Args:
            axes: Where to draw.
            curves: What to draw.
            overlay: Draws more, from the height of a single eigenvalue in the widest bin.
        """
        every = np.concatenate([values for values, _ in curves])
        least, largest = float(every.min()), float(every.max())
        if self.logarithmic:
            least = max(least, 1e-4 * largest)
            edges: Any = np.geomspace(0.9 * least, 1.1 * largest, _BINS)
            axes.set_xscale("log")
        else:
            margin = 0.03 * (largest - least)
            edges = np.linspace(least - margin, largest + margin, 2 * _BINS)
        widths = np.diff(np.log(edges)) if self.logarithmic else np.diff(edges)
        for values, look in curves:
            counts, _ = np.histogram(values, edges)
            axes.stairs(counts / (len(values) * widths), edges, **look)
        single = float(1 / (len(curves[0][0]) * widths.max()))
        if overlay is not None:
            overlay(single)
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.5 * single)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Any]:
        """Norms and eigenvalues."""
        sample = self.sample(point, seed)
        return self.compare(self.deq(point), sample._replace(x=sample.x.to(device)), seed)

    def plot(self, results: Sequence[Result]) -> Figure:
        """Eigenvalues, an activation below the other."""

        def panel(axes: Axes, name: str, column: Point) -> str:
            result = matching(results, {"activation": name, **column})[0]
            self.draw(axes, result.arrays)
            return self.title_of(result.point, result.arrays)

        rows, columns, log = len(self.activations), len(self.columns), self.logarithmic
        figure = draw_panels(
            self.names,
            self.columns,
            panel,
            (3.1 * columns + 0.6 if log else 7.0, 2.9 * rows),
            x="eigenvalue",
            y="density of logarithms" if log else "density",
            title=9 if log else None,
            legend=None,
        )
        figure.axes[0].legend(loc="upper right", fontsize=8 if log else None)
        return figure


@dataclass(frozen=True)
class MixtureSpectra(Spectra):
    r"""Matrices of samples of the paper's mixture.

    Args:
        samples: $n$.
        features: $p$.
        trials: How many samples and networks are drawn; the figure shows the first.
    """

    logarithmic: ClassVar[bool] = False

    samples: int = 800
    features: int = 1000
    trials: int = 5

    @classmethod
    def quick(cls) -> Self:
        """Few samples, narrow networks."""
        return cls(samples=160, features=200, width=512, trials=1)

    @property
    def columns(self) -> Sequence[Point]:
        """The first trial."""
        return [{"trial": 0}]

    def points(self) -> Sequence[Point]:
        """Trial by trial."""
        return grid("trial", activation=self.names, trial=range(self.trials))

    def sample(self, point: Point, seed: int) -> Sample:  # noqa: ARG002
        """One of the mixture."""
        mixture = shoal.GaussianMixture.ling2024(self.features)
        return Sample(*mixture.sample(self.samples, seed), mixture)

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """Mean norms over the trials, their standard deviations, and the printed ones."""
        summary: dict[str, float] = {}
        for name in self.names:
            chosen = [r.arrays for r in matching(results, {"activation": name})]
            for key in self.norms:
                values = [float(arrays[key]) for arrays in chosen]
                summary[f"{name}_{key}"] = float(np.mean(values))
                summary[f"{name}_{key}_deviation"] = float(np.std(values))
            if name in self._comparable():
                summary[f"{name}_printed"] = self.printed[name]
        return summary

    def title_of(self, point: Point, arrays: Arrays) -> str:
        """The activation, the norms, and what is printed."""
        known, name = self._comparable(), str(point["activation"])
        printed = f", printed {known[name]}" if name in known else ""
        return f"{self.title_at(point)}: {self.headline(arrays)}{printed}"

    def _comparable(self) -> Mapping[str, float]:
        """What the paper prints, if this is its setting."""
        whole = type(self)()
        return self.printed if replace(self, trials=whole.trials) == whole else {}


def _scaled(x: Tensor) -> Tensor:
    return x / x.square().sum(1).mean().sqrt()


_unit = torch.nn.functional.normalize

# The paper's preprocessing is not stated. From pixels in [0, 1], as rows:
PREPROCESSINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "pixels": lambda x: x / math.sqrt(x.shape[1]),
    "scaled": _scaled,  # to mean squared norm 1
    "unit": _unit,  # each to norm 1
    "centered": lambda x: _scaled(x - x.mean(0)),
    "centered-unit": lambda x: _unit(x - x.mean(0)),
}


@dataclass(frozen=True)
class ImageSpectra(Spectra):
    r"""Matrices of images of two digits, for several preprocessings.

    The files of the dataset must be at hand, see :func:`shoal.data.load`; the quick size takes
    scikit-learn's digits, which need none.

    Args:
        digits: The two classes.
        samples: $n$, half of each class.
        preprocessings: Names out of ``PREPROCESSINGS``.
        seed: Of the choice of samples.
        dataset: Where the images are from, a name that :func:`shoal.data.load` knows.
    """

    logarithmic: ClassVar[bool] = True

    digits: tuple[int, int] = (6, 8)
    samples: int = 3000
    preprocessings: tuple[str, ...] = tuple(PREPROCESSINGS)
    seed: int = 0
    dataset: str = later("mnist")

    @classmethod
    def quick(cls) -> Self:
        """Few of scikit-learn's digits, narrow networks, two preprocessings."""
        ways = ("scaled", "centered-unit")
        return cls(samples=200, preprocessings=ways, width=512, dataset="digits")

    @property
    def columns(self) -> Sequence[Point]:
        """The preprocessings."""
        return grid(preprocessing=self.preprocessings)

    def points(self) -> Sequence[Point]:
        """Each activation with each preprocessing."""
        return grid("preprocessing", activation=self.names, preprocessing=self.preprocessings)

    def sample(self, point: Point, seed: int) -> Sample:  # noqa: ARG002
        """The images, as many of each digit.

        Raises:
            FileNotFoundError: If a file is missing; says which, whence and whither.
        """
        whole = data.select_classes(data.load(self.dataset, raw=True), *self.digits)
        chosen = data.flatten(data.subsample(whole, self.samples // 2, seed=self.seed))
        chosen = data.scale_pixels(chosen, dtype=torch.float64)
        return Sample(PREPROCESSINGS[str(point["preprocessing"])](chosen.x), chosen.labels)

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The norms of each activation and preprocessing, and the printed ones."""
        summary = by_point(results, lambda r: {key: float(r.arrays[key]) for key in self.norms})
        if replace(self, preprocessings=()) == replace(type(self)(), preprocessings=()):
            summary |= {f"{name}_printed": error for name, error in self.printed.items()}
        return summary

    def title_of(self, point: Point, arrays: Arrays) -> str:
        """The activation, the preprocessing and the norms."""
        return f"{self.title_at(point)}, {point['preprocessing']}\n{self.headline(arrays)}"
