"""Spectra of kernels and of their equivalents on MNIST (Ling 2024, figures 5 and 6, right)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

import shoal
from shoal import data
from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.experiments.experiment import Arrays, Experiment, Point, Result
from shoal.experiments.figures import style
from shoal.experiments.ling2024.comparison import Comparison
from shoal.experiments.ling2024.histograms import draw_histograms
from shoal.experiments.ling2024.setting import Kind, by_name, title_of
from shoal.experiments.registry import register

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PREPROCESSINGS", "CKImageSpectra", "NTKImageSpectra", "digit_images"]

_ERRORS = ("exact_paper", "exact_measured", "estimate_paper")


def _scaled(x: Tensor) -> Tensor:
    return x / x.square().sum(1).mean().sqrt()


def _unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x)


# The paper's preprocessing is not stated. From pixels in [0, 1], as rows:
PREPROCESSINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "pixels": lambda x: x / math.sqrt(x.shape[1]),
    "scaled": _scaled,  # to mean squared norm 1
    "unit": _unit,  # each to norm 1
    "centered": lambda x: _scaled(x - x.mean(0)),
    "centered-unit": lambda x: _unit(x - x.mean(0)),
}


def digit_images(
    digits: tuple[int, int], samples: int, preprocessing: str, *, seed: int
) -> tuple[Tensor, Tensor]:
    """Images of two digits of MNIST as rows, as many of each, and their classes.

    Raises:
        FileNotFoundError: If MNIST is not at hand; says which file, whence and whither.
    """
    whole = data.select_classes(data.load("mnist", dtype=torch.float64), *digits)
    chosen = data.flatten(data.subsample(whole, samples // 2, seed=seed))
    return PREPROCESSINGS[preprocessing](chosen.x), chosen.y


@dataclass(frozen=True)
class _ImageSpectra(Experiment):
    r"""Like those on the mixture, for two digits and several preprocessings.

    The mixture is not known: the form of the paper takes its constants from estimates, that with
    norms (``measured``) from the samples. The files of MNIST must be at hand, see
    :func:`shoal.data.load`.

    Args:
        activations: Of the DEQs, which are centered.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        digits: The two classes.
        samples: $n$, half of each class.
        preprocessings: Names out of ``PREPROCESSINGS``.
        width: Of the networks by which the paper estimates the kernels.
        seed: Of the choice of samples.
    """

    kind: ClassVar[Kind]
    printed: ClassVar[Mapping[str, float]]

    activations: tuple[Activation, ...] = (shoal.ReLU(), shoal.Tanh())
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
        """Errors and eigenvalues."""
        x, labels = self.inputs(str(point["preprocessing"]))
        activation = by_name(self.activations)[str(point["activation"])]
        deq = DEQ(activation, self.recurrent_variance, self.input_variance)
        comparison = Comparison(self.kind, ("paper", "measured"), self.width)
        return comparison.arrays(deq, x.to(device), labels, seed=seed)

    def inputs(self, preprocessing: str) -> tuple[Tensor, Tensor]:
        """The images as rows, and their classes.

        Raises:
            FileNotFoundError: If MNIST is not at hand; says which file, whence and whither.
        """
        return digit_images(self.digits, self.samples, preprocessing, seed=self.seed)

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The errors of each activation and preprocessing, and the printed ones."""
        summary: dict[str, float] = {}
        for result in results:
            name = f"{result.point['activation']}_{result.point['preprocessing']}"
            for key in (*_ERRORS, "noise", "size"):
                summary[f"{name}_{key}"] = float(result.arrays[key])
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
            for result in results:
                names = list(by_name(self.activations))
                row = names.index(str(result.point["activation"]))
                column = self.preprocessings.index(str(result.point["preprocessing"]))
                axes = panels[row, column]
                draw_histograms(axes, result.arrays, logarithmic=True)
                errors = [float(result.arrays[key]) for key in _ERRORS]
                axes.set_title(
                    f"{title_of(self.activations[row])}, {self.preprocessings[column]}\n"
                    f"error {errors[0]:.3g}, with norms {errors[1]:.3g}",
                    fontsize=9,
                )
            for axes in panels[-1]:
                axes.set_xlabel("eigenvalue")
            for axes in panels[:, 0]:
                axes.set_ylabel("density of logarithms")
            panels[0, 0].legend(loc="upper right", fontsize=8)
        return figure


@register
@dataclass(frozen=True)
class CKImageSpectra(_ImageSpectra):
    """Figure 5, right: conjugate kernels on two digits of MNIST."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "mnist-figure5")
    title: ClassVar[str] = "Eigenvalues of conjugate kernels and of their equivalents, MNIST"
    kind: ClassVar[Kind] = "ck"
    printed: ClassVar[Mapping[str, float]] = {"relu": 1.80, "tanh": 2.02}


@register
@dataclass(frozen=True)
class NTKImageSpectra(_ImageSpectra):
    """Figure 6, right: tangent kernels on two digits of MNIST."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "mnist-figure6")
    title: ClassVar[str] = "Eigenvalues of tangent kernels and of their equivalents, MNIST"
    kind: ClassVar[Kind] = "ntk"
    printed: ClassVar[Mapping[str, float]] = {"relu": 3.93, "tanh": 4.82}
