"""Trials on the Gaussian mixture: what figures 5 to 7 of Ling 2024, left, have in common."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

import shoal
from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.lab.experiment import Arrays, Experiment, Point, Result
from shoal.pages.figures import Axes, Figure, new_figure, styled
from shoal.reproductions.ling2024.setting import by_name, title_of

__all__ = ["MixtureTrials"]


@dataclass(frozen=True)
class MixtureTrials(Experiment):
    r"""Matrices of samples of the paper's mixture, compared in spectral norm.

    Args:
        activations: Of the DEQs, which are centered.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        samples: $n$.
        features: $p$.
        width: Of the networks by which the paper estimates the kernels.
        trials: How many samples and networks are drawn; the figure shows the first.
    """

    norms: ClassVar[tuple[str, ...]]  # the arrays that the summary has means of
    printed: ClassVar[Mapping[str, float]]

    activations: tuple[Activation, ...] = (shoal.ReLU(), shoal.Tanh())
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

    def deq(self, point: Point) -> DEQ:
        """The DEQ of a point, not centered."""
        activation = by_name(self.activations)[str(point["activation"])]
        return DEQ(activation, self.recurrent_variance, self.input_variance)

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """Mean norms over the trials, their standard deviations, and the printed ones."""
        summary: dict[str, float] = {}
        for name in by_name(self.activations):
            chosen = [r.arrays for r in results if r.point["activation"] == name]
            for key in self.norms:
                values = [float(arrays[key]) for arrays in chosen]
                summary[f"{name}_{key}"] = float(np.mean(values))
                summary[f"{name}_{key}_deviation"] = float(np.std(values))
            if name in self._comparable():
                summary[f"{name}_printed"] = self.printed[name]
        return summary

    @styled
    def plot(self, results: Sequence[Result]) -> Figure:
        """The eigenvalues of the first trial, an activation below the other."""
        figure = new_figure(7.0, 2.9 * len(self.activations))
        rows: Any = figure.subplots(len(self.activations), 1, squeeze=False)[:, 0]
        for axes, activation in zip(rows, self.activations, strict=True):
            (name,) = by_name([activation])
            first = next(r.arrays for r in results if r.point["activation"] == name)
            self.draw(axes, first)
            known = self._comparable()
            printed = f", printed {known[name]}" if name in known else ""
            axes.set_title(f"{title_of(activation)}: {self.headline(first)}{printed}")
            axes.set_ylabel("density")
        rows[0].legend(loc="upper right")
        rows[-1].set_xlabel("eigenvalue")
        return figure

    @abstractmethod
    def draw(self, axes: Axes, arrays: Arrays) -> None:
        """Draw the eigenvalues of one trial."""

    @abstractmethod
    def headline(self, arrays: Arrays) -> str:
        """The norms of one trial, for the title; they end with the one that the paper prints."""

    def _comparable(self) -> Mapping[str, float]:
        """What the paper prints, if this is its setting."""
        whole = type(self)()
        return self.printed if replace(self, trials=whole.trials) == whole else {}
