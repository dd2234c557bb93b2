"""Errors against the number of samples: what figures 1, 2 and 4 of Ling 2024 have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import shoal
from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.lab.experiment import Experiment, Point, Result
from shoal.lab.fits import PowerLaw, power_law
from shoal.pages.figures import GRAY, Axes
from shoal.reproductions.ling2024.setting import by_name, title_of

__all__ = ["SampleSizes", "make_room"]


@dataclass(frozen=True)
class SampleSizes(Experiment):
    r"""Relative errors on samples of the paper's mixture, whose numbers and dimensions grow.

    Each point is one sample of one size, and one activation.

    Args:
        activations: Of the DEQs, which are centered. The paper does not say the slope of its leaky
            ReLU; 0.1 is ours.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        samples: The numbers of samples $n$.
        ratio: $p/n$.
        trials: How many samples are drawn for each.
        fit_from: The least $n$ that the power laws are fitted to.
    """

    activations: tuple[Activation, ...] = (
        shoal.ReLU(),
        shoal.Tanh(),
        shoal.Swish(),
        shoal.LeakyReLU(0.1),
    )
    recurrent_variance: float = 0.2
    input_variance: float = 0.8
    samples: tuple[int, ...] = (100, 200, 400, 800, 1600, 3200, 6400)
    ratio: float = 0.8
    trials: int = 5
    fit_from: int = 400

    def points(self) -> Sequence[Point]:
        """Trial by trial: an interrupted run has something of each."""
        return [
            {"activation": name, "n": n, "trial": trial}
            for trial in range(self.trials)
            for n in self.samples
            for name in by_name(self.activations)
        ]

    def deq(self, name: str) -> DEQ:
        """The DEQ of an activation, not centered."""
        activation = by_name(self.activations)[name]
        return DEQ(activation, self.recurrent_variance, self.input_variance)

    def mixture(self, n: int) -> shoal.GaussianMixture:
        """The mixture that ``n`` samples are drawn from."""
        return shoal.GaussianMixture.ling2024(round(self.ratio * n))

    def fit(self, n: Any, errors: Any) -> PowerLaw:
        """The power law of the errors of large samples."""
        kept = n >= self.fit_from
        return power_law(n[kept], errors[kept])

    def laws(self, results: Sequence[Result], name: str, key: str) -> dict[str, float]:
        """The slope of an error with its 95% interval, and the mean for the largest samples."""
        n, errors = _errors(results, name, key)
        largest = float(errors[n == n.max()].mean())
        return self.fit(n, errors).numbers(f"{name}_{key}") | {f"{name}_{key}_error": largest}

    def draw_errors(
        self,
        axes: Axes,
        results: Sequence[Result],
        activation: Activation,
        key: str,
        *,
        label: str = "",
        **look: Any,
    ) -> None:
        """Means and standard deviations against $n$.

        Args:
            axes: Where to draw.
            results: All results.
            activation: Whose errors.
            key: Which of them.
            label: What to say between the activation and the slope.
            look: Further options of :meth:`matplotlib.axes.Axes.errorbar`.
        """
        (name,) = by_name([activation])
        n, errors = _errors(results, name, key)
        law = self.fit(n, errors)
        low, high = law.interval
        slope = f"{law.slope:.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
        look["label"] = f"{title_of(activation)}{label}: {slope}"
        levels = np.unique(n)
        means = np.array([errors[n == level].mean() for level in levels])
        spread = np.array([errors[n == level].std() for level in levels])
        lengths = np.minimum(spread, 0.9 * means)
        look |= {"markersize": 4, "linewidth": 1.2, "capsize": 2}
        axes.errorbar(levels, means, lengths, **look)

    def label_axes(self, axes: Axes, start: float) -> None:
        r"""Axes, the theory's slope from ``start`` $/\sqrt n$ on, the legend."""
        from matplotlib.ticker import NullFormatter

        ends = np.array([min(self.samples), max(self.samples)], dtype=np.float64)
        axes.plot(
            ends, start / np.sqrt(ends), "--", color=GRAY, linewidth=1.1, label="slope $-1/2$"
        )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(self.samples, [f"{n}" for n in self.samples])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("samples $n$")
        axes.legend(loc="lower left", title=f"slopes and 95% intervals, $n ≥ {self.fit_from}$")


def make_room(axes: Axes) -> None:
    """Below the errors, for the legend."""
    low, high = axes.get_ylim()
    axes.set_ylim(low * (low / high) ** 0.6, high)


def _errors(results: Sequence[Result], activation: str, key: str) -> tuple[Any, Any]:
    """Sizes and errors of all points of one activation."""
    chosen = [result for result in results if result.point["activation"] == activation]
    n = np.array([result.point["n"] for result in chosen], dtype=np.float64)
    return n, np.array([float(result.arrays[key]) for result in chosen])
