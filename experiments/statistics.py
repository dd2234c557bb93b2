"""Statistics of measurements: power laws fitted to them, spread over seeds, differences."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from experiments.claims import interval
from experiments.experiment import Result

Array = np.ndarray


class PowerLaw(NamedTuple):
    r"""$y = e^c x^s$: the slope $s$, the offset $c$, and a 95% interval of $s$."""

    slope: float
    offset: float
    interval: tuple[float, float]

    def numbers(self, name: str) -> dict[str, float]:
        """The slope and the ends of its interval, for a summary: ``NAME_slope`` and so on."""
        low, high = self.interval
        return {f"{name}_slope": self.slope, f"{name}_slope_low": low, f"{name}_slope_high": high}

    def words(self) -> str:
        """The slope and its interval, for a legend."""
        return interval(self.numbers("law"), "law_slope")

    def __call__(self, x: Any) -> Any:
        return np.exp(self.offset) * np.asarray(x, dtype=np.float64) ** self.slope


def power_law(x: Any, y: Any) -> PowerLaw:
    r"""Fit a power law to at least three positive numbers by least squares in the logarithms.

    The interval is Student's, for independent errors of $\log y$ of one variance.
    """
    fit = stats.linregress(np.log(x), np.log(y))
    reach = float(stats.t.ppf((1 + 0.95) / 2, len(x) - 2)) * float(fit.stderr)
    slope = float(fit.slope)
    return PowerLaw(slope, float(fit.intercept), (slope - reach, slope + reach))


def curve(results: Sequence[Result], axis: str, key: str) -> tuple[Array, Array]:
    """A number of each result against a coordinate of its point; of an array the largest entry."""
    places = np.array([result.point[axis] for result in results], dtype=np.float64)
    return places, np.array([float(result.arrays[key].max()) for result in results])


def spread(results: Sequence[Result], key: str) -> tuple[Array, Array]:
    """Mean and standard deviation over seeds, without one if there is one seed only."""
    values = np.stack([result.arrays[key] for result in results]).astype(np.float64)
    deviation = values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:])
    return values.mean(0), deviation


def z_scores(first: Sequence[Result], second: Sequence[Result], key: str) -> Array:
    """Differences of means over seeds, divided by their standard errors."""
    (mean, deviation), (other, other_deviation) = spread(first, key), spread(second, key)
    error = np.sqrt(deviation**2 / len(first) + other_deviation**2 / len(second))
    return np.divide(mean - other, error, out=np.zeros_like(mean), where=error > 0)
