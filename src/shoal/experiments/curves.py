"""Training curves of several networks: their spread over seeds, and what differences mean."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.experiments.experiment import Point, Result
from shoal.experiments.figures import COLORS, GRAY
from shoal.experiments.rivals import TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_curves", "matching", "spread", "z_scores"]

Array = np.ndarray[Any, np.dtype[Any]]


def matching(results: Sequence[Result], wanted: Point) -> list[Result]:
    """The results of the points that have all the wanted values."""
    return [r for r in results if all(r.point[key] == value for key, value in wanted.items())]


def spread(results: Sequence[Result], key: str) -> tuple[Array, Array]:
    """Mean and standard deviation over seeds, without one if there is one seed only."""
    values = np.stack([result.arrays[key] for result in results]).astype(np.float64)
    deviation = values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:])
    return values.mean(0), deviation


def z_scores(first: Sequence[Result], second: Sequence[Result], key: str) -> Array:
    """Differences of means over seeds, divided by their standard errors."""
    (mean, deviation), (other, others) = spread(first, key), spread(second, key)
    error = np.sqrt(deviation**2 / len(first) + others**2 / len(second))
    scores: Array = np.divide(mean - other, error, out=np.zeros_like(mean), where=error > 0)
    return scores


def draw_curves(axes: "Axes", measured: Mapping[str, Any], predicted: Mapping[str, Any]) -> None:
    """Losses relative to the predicted ones of the DEQ, with bands of one deviation.

    Args:
        axes: Where to draw.
        measured: The results of each network.
        predicted: The result of each infinitely wide network.
    """
    steps = predicted["deq"].arrays["steps"]
    reference = predicted["deq"].arrays["loss"]
    shown = steps > 0
    for name, color in zip(measured, COLORS, strict=False):
        mean, deviation = (
            part[shown] / reference[shown] for part in spread(measured[name], "loss")
        )
        axes.fill_between(
            steps[shown], mean - deviation, mean + deviation, color=color, alpha=0.15, linewidth=0
        )
        axes.plot(steps[shown], mean, color=color, linewidth=1.5, label=TITLES[name])
        ratio = predicted[name].arrays["loss"][shown] / reference[shown]
        axes.plot(steps[shown], ratio, ":", color=color, linewidth=1.2)
    axes.plot([], [], ":", color=GRAY, linewidth=1.2, label="infinitely wide")
    axes.set_xscale("log")
