"""Spectra of kernels and of their equivalents on the mixture (Ling 2024, figures 5 and 6, left)."""

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
from shoal.experiments.ling2024.comparison import Comparison
from shoal.experiments.ling2024.histograms import draw_histograms
from shoal.experiments.ling2024.setting import FORMS, PAPER_GROUPS, Kind, by_name, title_of
from shoal.experiments.registry import register

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CKSpectra", "NTKSpectra"]

_ERRORS = ("exact_paper", "exact_norms", "exact_measured", "estimate_paper", "estimate_norms")


@dataclass(frozen=True)
class _MixtureSpectra(Experiment):
    r"""Eigenvalues and absolute errors in spectral norm, with exact and estimated kernels.

    Args:
        activations: Of the DEQs, which are centered.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        samples: $n$.
        features: $p$.
        width: Of the networks by which the paper estimates the kernels.
        trials: How many samples and networks are drawn; the figure shows the first.
    """

    kind: ClassVar[Kind]
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

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """Errors, eigenvalues and the predicted density of one sample."""
        mixture = shoal.GaussianMixture.ling2024(self.features)
        x, labels = mixture.sample(self.samples, seed)
        activation = by_name(self.activations)[str(point["activation"])]
        deq = DEQ(activation, self.recurrent_variance, self.input_variance)
        comparison = Comparison(self.kind, FORMS, self.width)
        found = comparison.arrays(deq, x.to(device), labels, seed=seed, mixture=mixture)
        spectra = shoal.spectrum(
            deq, mixture, n=self.samples, trainable=PAPER_GROUPS, tau0=mixture.tau0
        )
        predicted = getattr(spectra, self.kind)
        grid = np.concatenate([np.linspace(low, high, 400) for low, high in predicted.edges])
        return found | {
            "grid": grid,
            "density": predicted.density(grid),
            "spikes": np.array([spike.value for spike in predicted.spikes]),
        }

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """Mean errors over the trials, their standard deviations, and the printed ones."""
        summary: dict[str, float] = {}
        for name in by_name(self.activations):
            chosen = [r.arrays for r in results if r.point["activation"] == name]
            for key in (*_ERRORS, "noise", "size"):
                values = [float(arrays[key]) for arrays in chosen]
                summary[f"{name}_{key}"] = float(np.mean(values))
                summary[f"{name}_{key}_deviation"] = float(np.std(values))
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
                draw_histograms(axes, first, logarithmic=False)
                axes.set_title(
                    f"{title_of(activation)}: error {float(first['exact_paper']):.2f}, with norms "
                    f"{float(first['exact_norms']):.2f}; estimated {self._estimated(name, first)}"
                )
                axes.set_ylabel("density")
            rows[0].legend(loc="upper right")
            rows[-1].set_xlabel("eigenvalue")
        return figure

    def _estimated(self, name: str, arrays: Arrays) -> str:
        value = f"{float(arrays['estimate_paper']):.2f}"
        known = self._comparable()
        return f"{value}, printed {known[name]}" if name in known else value

    def _comparable(self) -> Mapping[str, float]:
        """What the paper prints, if this is its setting."""
        whole = type(self)()
        return self.printed if replace(self, trials=whole.trials) == whole else {}


@register
@dataclass(frozen=True)
class CKSpectra(_MixtureSpectra):
    """Figure 5, left: conjugate kernels on the Gaussian mixture."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "figure5")
    title: ClassVar[str] = "Eigenvalues of conjugate kernels and of their equivalents, mixture"
    kind: ClassVar[Kind] = "ck"
    printed: ClassVar[Mapping[str, float]] = {"relu": 0.26, "tanh": 0.81}


@register
@dataclass(frozen=True)
class NTKSpectra(_MixtureSpectra):
    """Figure 6, left: tangent kernels on the Gaussian mixture."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "figure6")
    title: ClassVar[str] = "Eigenvalues of tangent kernels and of their equivalents, mixture"
    kind: ClassVar[Kind] = "ntk"
    printed: ClassVar[Mapping[str, float]] = {"relu": 0.34, "tanh": 0.76}
