"""Two digits of MNIST: what figures 5 to 7 of Ling 2024, right, have in common."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

import shoal
from shoal import data
from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.core.fields import later
from shoal.lab.experiment import Arrays, Experiment, Point, Result
from shoal.pages.figures import Axes, Figure, new_figure, styled
from shoal.reproductions.ling2024.setting import by_name, title_of

__all__ = ["PREPROCESSINGS", "ImageTrials"]


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


@dataclass(frozen=True)
class ImageTrials(Experiment):
    r"""Matrices of images of two digits, compared in spectral norm, for several preprocessings.

    The files of the dataset must be at hand, see :func:`shoal.data.load`; the quick size takes
    scikit-learn's digits, which need none.

    Args:
        activations: Of the DEQs, which are centered.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        digits: The two classes.
        samples: $n$, half of each class.
        preprocessings: Names out of ``PREPROCESSINGS``.
        width: Of the networks by which the paper estimates the kernels.
        seed: Of the choice of samples.
        dataset: Where the images are from, a name that :func:`shoal.data.load` knows.
    """

    norms: ClassVar[tuple[str, ...]]  # the arrays that the summary has
    printed: ClassVar[Mapping[str, float]]

    activations: tuple[Activation, ...] = (shoal.ReLU(), shoal.Tanh())
    recurrent_variance: float = 0.2
    input_variance: float = 0.8
    digits: tuple[int, int] = (6, 8)
    samples: int = 3000
    preprocessings: tuple[str, ...] = tuple(PREPROCESSINGS)
    width: int = 2**12
    seed: int = 0
    dataset: str = later("mnist")

    @classmethod
    def quick(cls) -> Self:
        """Few of scikit-learn's digits, narrow networks, two preprocessings."""
        ways = ("scaled", "centered-unit")
        return cls(samples=200, preprocessings=ways, width=512, dataset="digits")

    def points(self) -> Sequence[Point]:
        """Each activation with each preprocessing."""
        return [
            {"activation": name, "preprocessing": way}
            for way in self.preprocessings
            for name in by_name(self.activations)
        ]

    def deq(self, point: Point) -> DEQ:
        """The DEQ of a point, not centered."""
        activation = by_name(self.activations)[str(point["activation"])]
        return DEQ(activation, self.recurrent_variance, self.input_variance)

    def inputs(self, preprocessing: str) -> tuple[Tensor, Tensor]:
        """The images as rows, as many of each digit, and their classes.

        Raises:
            FileNotFoundError: If a file is missing; says which, whence and whither.
        """
        whole = data.select_classes(data.load(self.dataset, raw=True), *self.digits)
        chosen = data.flatten(data.subsample(whole, self.samples // 2, seed=self.seed))
        chosen = data.scale_pixels(chosen, dtype=torch.float64)
        return PREPROCESSINGS[preprocessing](chosen.x), chosen.labels

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The norms of each activation and preprocessing, and the printed ones."""
        summary: dict[str, float] = {}
        for result in results:
            name = f"{result.point['activation']}_{result.point['preprocessing']}"
            summary |= {f"{name}_{key}": float(result.arrays[key]) for key in self.norms}
        if replace(self, preprocessings=()) == replace(type(self)(), preprocessings=()):
            summary |= {f"{name}_printed": error for name, error in self.printed.items()}
        return summary

    @styled
    def plot(self, results: Sequence[Result]) -> Figure:
        """Activations below each other, preprocessings side by side."""
        rows, columns = len(self.activations), len(self.preprocessings)
        figure = new_figure(3.1 * columns + 0.6, 2.9 * rows)
        panels: Any = figure.subplots(rows, columns, squeeze=False)
        names = list(by_name(self.activations))
        for result in results:
            row = names.index(str(result.point["activation"]))
            column = self.preprocessings.index(str(result.point["preprocessing"]))
            axes = panels[row, column]
            self.draw(axes, result.arrays)
            setting = f"{title_of(self.activations[row])}, {self.preprocessings[column]}"
            axes.set_title(f"{setting}\n{self.headline(result.arrays)}", fontsize=9)
        for axes in panels[-1]:
            axes.set_xlabel("eigenvalue")
        for axes in panels[:, 0]:
            axes.set_ylabel("density of logarithms")
        panels[0, 0].legend(loc="upper right", fontsize=8)
        return figure

    @abstractmethod
    def draw(self, axes: Axes, arrays: Arrays) -> None:
        """Draw the eigenvalues of one point."""

    @abstractmethod
    def headline(self, arrays: Arrays) -> str:
        """The norms of one point, for the title."""
