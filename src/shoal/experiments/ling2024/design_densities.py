"""Spectra of DEQs and of the networks designed for them (Ling 2024, figure 7)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch

import shoal
from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.experiments.experiment import Arrays, Experiment, Point, Result
from shoal.experiments.figures import style
from shoal.experiments.ling2024.design_pairs import NORMS, compare_with_design, draw_pair
from shoal.experiments.ling2024.images import PREPROCESSINGS, digit_images
from shoal.experiments.ling2024.setting import by_name, title_of
from shoal.experiments.registry import register

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DesignImageSpectra", "DesignSpectra"]


@register
@dataclass(frozen=True)
class DesignSpectra(Experiment):
    r"""Figure 7, left: conjugate kernels of DEQs and of their designs on the Gaussian mixture.

    Args:
        activations: Of the DEQs, which are centered.
        families: Of the designs, one for each.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        samples: $n$.
        features: $p$.
        width: Of the networks by which the paper estimates the kernels.
        trials: How many samples and networks are drawn; the figure shows the first.
    """

    name: ClassVar[tuple[str, str]] = ("ling2024", "figure7")
    title: ClassVar[str] = "Eigenvalues of DEQs and of their designs, mixture"
    printed: ClassVar[Mapping[str, float]] = {"relu": 0.32, "tanh": 0.88}

    activations: tuple[Activation, ...] = (shoal.ReLU(), shoal.Tanh())
    families: tuple[str, ...] = ("leaky_relu", "hard_tanh")
    recurrent_variance: float = 0.2
    input_variance: float = 0.8
    samples: int = 800
    features: int = 1000
    width: int = 2**12
    trials: int = 5

    @classmethod
    def quick(cls) -> Self:
        """Few samples, narrow networks."""
        return cls(samples=160, features=200, width=512, trials=1)

    def points(self) -> Sequence[Point]:
        """Trial by trial."""
        return [
            {"activation": name, "trial": trial}
            for trial in range(self.trials)
            for name in by_name(self.activations)
        ]

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """Norms and eigenvalues of one sample."""
        mixture = shoal.GaussianMixture.ling2024(self.features)
        x = mixture.sample(self.samples, seed)[0].to(device)
        place = list(by_name(self.activations)).index(str(point["activation"]))
        deq = DEQ(self.activations[place], self.recurrent_variance, self.input_variance)
        return compare_with_design(
            deq, self.families[place], x, tau0=mixture.tau0, width=self.width, seed=seed
        )

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """Mean norms over the trials, their standard deviations, and the printed ones."""
        summary: dict[str, float] = {}
        for name in by_name(self.activations):
            chosen = [r.arrays for r in results if r.point["activation"] == name]
            for key in NORMS:
                values = [float(arrays[key]) for arrays in chosen]
                summary[f"{name}_{key}"] = float(np.mean(values))
                summary[f"{name}_{key}_deviation"] = float(np.std(values))
            summary[f"{name}_relative"] = summary[f"{name}_exact"] / summary[f"{name}_size"]
            if name in self._comparable():
                summary[f"{name}_printed"] = self.printed[name]
        return summary

    def plot(self, results: Sequence[Result]) -> "Figure":
        """The eigenvalues of the first trial, an activation below the other."""
        with style():
            from matplotlib.figure import Figure

            figure = Figure(figsize=(7.0, 2.9 * len(self.activations)))
            rows: Any = figure.subplots(len(self.activations), 1, squeeze=False)[:, 0]
            for axes, activation in zip(rows, self.activations, strict=True):
                (name,) = by_name([activation])
                first = next(r.arrays for r in results if r.point["activation"] == name)
                draw_pair(axes, first, logarithmic=False)
                known = self._comparable()
                printed = f", printed {known[name]}" if name in known else ""
                axes.set_title(
                    f"{title_of(activation)}: $\\|G^* - \\Sigma\\|$ = {float(first['exact']):.2g}, "
                    f"estimated {float(first['estimate']):.2f}{printed}"
                )
                axes.set_ylabel("density")
            rows[0].legend(loc="upper right")
            rows[-1].set_xlabel("eigenvalue")
        return figure

    def _comparable(self) -> Mapping[str, float]:
        """What the paper prints, if this is its setting."""
        whole = type(self)()
        return self.printed if replace(self, trials=whole.trials) == whole else {}


@register
@dataclass(frozen=True)
class DesignImageSpectra(Experiment):
    r"""Figure 7, right: the same for two digits of MNIST and several preprocessings.

    The DEQ is centered, and the design is made, at the images' root mean square norm. The files of
    MNIST must be at hand, see :func:`shoal.data.load`.

    Args:
        activations: Of the DEQs, which are centered.
        families: Of the designs, one for each.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        digits: The two classes.
        samples: $n$, half of each class.
        preprocessings: Names out of ``PREPROCESSINGS``.
        width: Of the networks by which the paper estimates the kernels.
        seed: Of the choice of samples.
    """

    name: ClassVar[tuple[str, str]] = ("ling2024", "mnist-figure7")
    title: ClassVar[str] = "Eigenvalues of DEQs and of their designs, MNIST"
    printed: ClassVar[Mapping[str, float]] = {"relu": 2.34, "tanh": 4.79}

    activations: tuple[Activation, ...] = (shoal.ReLU(), shoal.Tanh())
    families: tuple[str, ...] = ("leaky_relu", "hard_tanh")
    recurrent_variance: float = 0.2
    input_variance: float = 0.8
    digits: tuple[int, int] = (6, 8)
    samples: int = 3000
    preprocessings: tuple[str, ...] = tuple(PREPROCESSINGS)
    width: int = 2**12
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Few samples, narrow networks, two preprocessings."""
        return cls(samples=200, preprocessings=("scaled", "centered-unit"), width=512)

    def points(self) -> Sequence[Point]:
        """Each activation with each preprocessing."""
        return [
            {"activation": name, "preprocessing": way}
            for way in self.preprocessings
            for name in by_name(self.activations)
        ]

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """Norms and eigenvalues."""
        way = str(point["preprocessing"])
        x, _ = digit_images(self.digits, self.samples, way, seed=self.seed)
        tau0 = float(x.square().sum(1).mean().sqrt())
        place = list(by_name(self.activations)).index(str(point["activation"]))
        deq = DEQ(self.activations[place], self.recurrent_variance, self.input_variance)
        family, x = self.families[place], x.to(device)
        return compare_with_design(deq, family, x, tau0=tau0, width=self.width, seed=seed)

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The norms of each activation and preprocessing, and the printed ones."""
        summary: dict[str, float] = {}
        for result in results:
            name = f"{result.point['activation']}_{result.point['preprocessing']}"
            summary |= {f"{name}_{key}": float(result.arrays[key]) for key in NORMS}
            summary[f"{name}_relative"] = summary[f"{name}_exact"] / summary[f"{name}_size"]
        if replace(self, preprocessings=()) == replace(type(self)(), preprocessings=()):
            summary |= {f"{name}_printed": error for name, error in self.printed.items()}
        return summary

    def plot(self, results: Sequence[Result]) -> "Figure":
        """Activations below each other, preprocessings side by side."""
        with style():
            from matplotlib.figure import Figure

            rows, columns = len(self.activations), len(self.preprocessings)
            figure = Figure(figsize=(3.1 * columns + 0.6, 2.9 * rows))
            panels: Any = figure.subplots(rows, columns, squeeze=False)
            names = list(by_name(self.activations))
            for result in results:
                row = names.index(str(result.point["activation"]))
                column = self.preprocessings.index(str(result.point["preprocessing"]))
                axes = panels[row, column]
                draw_pair(axes, result.arrays, logarithmic=True)
                exact, estimate = (float(result.arrays[key]) for key in NORMS[:2])
                axes.set_title(
                    f"{title_of(self.activations[row])}, {self.preprocessings[column]}\n"
                    f"difference {exact:.3g}, estimated {estimate:.3g}",
                    fontsize=9,
                )
            for axes in panels[-1]:
                axes.set_xlabel("eigenvalue")
            for axes in panels[:, 0]:
                axes.set_ylabel("density of logarithms")
            panels[0, 0].legend(loc="upper right", fontsize=8)
        return figure
