"""Errors against the number of samples: what figures 1, 2 and 4 of Ling 2024 have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import shoal
from shoal.activations import Activation
from shoal.lab.experiment import Point, Result, grid, matching
from shoal.lab.figures import draw_slope, logarithmic_axes
from shoal.lab.fits import PowerLaw, curve, power_law
from shoal.pages.figures import Axes
from shoal.reproductions.deqs import DEQs


@dataclass(frozen=True)
class SampleSizes(DEQs):
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
    samples: tuple[int, ...] = (100, 200, 400, 800, 1600, 3200, 6400)
    ratio: float = 0.8
    trials: int = 5
    fit_from: int = 400

    def points(self) -> Sequence[Point]:
        """Trial by trial: an interrupted run has something of each."""
        return grid("trial", "n", activation=self.names, n=self.samples, trial=range(self.trials))

    def mixture(self, n: int) -> shoal.GaussianMixture:
        """The mixture that ``n`` samples are drawn from."""
        return shoal.GaussianMixture.ling2024(round(self.ratio * n))

    def _fit(self, results: Sequence[Result], name: str, key: str) -> tuple[Any, Any, PowerLaw]:
        """Sizes and errors of one activation, and the power law of those of large samples."""
        n, errors = curve(matching(results, {"activation": name}), "n", key)
        kept = n >= self.fit_from
        return n, errors, power_law(n[kept], errors[kept])

    def laws(self, results: Sequence[Result], name: str, key: str) -> dict[str, float]:
        """The slope of an error with its 95% interval, and the mean for the largest samples."""
        n, errors, law = self._fit(results, name, key)
        largest = float(errors[n == n.max()].mean())
        return law.numbers(f"{name}_{key}") | {f"{name}_{key}_error": largest}

    def draw_errors(
        self,
        axes: Axes,
        results: Sequence[Result],
        name: str,
        key: str,
        *,
        color: str,
        fmt: str = "o-",
        label: str = "",
    ) -> None:
        """Means and standard deviations against $n$.

        Args:
            axes: Where to draw.
            results: All results.
            name: Of the activation whose errors are drawn.
            key: Which of them.
            color: Of lines and marks.
            fmt: How they look, as matplotlib writes it.
            label: What to say between the activation and the slope.
        """
        n, errors, law = self._fit(results, name, key)
        levels = np.unique(n)
        means = np.array([errors[n == level].mean() for level in levels])
        spread = np.array([errors[n == level].std() for level in levels])
        axes.errorbar(
            levels, means, np.minimum(spread, 0.9 * means), fmt=fmt, color=color, markersize=4,
            linewidth=1.2, capsize=2,
            label=f"{self.title_at({'activation': name})}{label}: {law.words()}",
        )  # fmt: skip

    def label_axes(self, axes: Axes, start: float) -> None:
        r"""Axes, the theory's slope from ``start`` $/\sqrt n$ on, the legend."""
        from matplotlib.ticker import NullFormatter

        draw_slope(axes, self.samples, start, width=1.1)
        logarithmic_axes(axes, self.samples, "samples $n$")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.legend(loc="lower left", title=f"slopes and 95% intervals, $n ≥ {self.fit_from}$")


def make_room(axes: Axes) -> None:
    """Below the errors, for the legend."""
    low, high = axes.get_ylim()
    axes.set_ylim(low * (low / high) ** 0.6, high)
