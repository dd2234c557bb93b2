"""Accuracies with intervals, and differences from the DEQ that was trained alike."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy  # whose parts are imported where they are first used

from shoal.lab.experiment import Result, named

_BY_NETWORK = ("test", "places", "moved", "steps", "settled")


class Setting(NamedTuple):
    """What is varied, one at a time, around these values."""

    activation: str = "tanh"
    gain: float = 0.9
    scale: float = 1.0  # of the width
    optimizer: str = "adam"
    readout: float = 1.0


CENTER = Setting()._asdict()


class Interval(NamedTuple):
    """A mean over seeds and its 95% interval, Student's."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Any) -> "Interval":
        """From one value for each seed; without an interval if there is one seed only."""
        values = np.asarray(values, dtype=np.float64)
        count, mean = len(values), float(values.mean())
        reach = 0.0
        if count > 1:
            error = float(values.std(ddof=1)) / math.sqrt(count)
            reach = float(scipy.stats.t.ppf(0.975, count - 1)) * error
        return cls(mean, mean - reach, mean + reach)


@dataclass(frozen=True, eq=False)
class Compared:
    """A network on a task in a setting, at the step size that validation samples chose.

    Attributes:
        task: The task.
        network: The network.
        axis: What is varied, or nothing at the center.
        value: The value of that.
        accuracy: On test samples.
        gap: What it is better by than the DEQ of the same task and setting, seed by seed; nothing
            of the DEQ itself.
        numbers: ``seconds`` of training, for one network; ``latency``, seconds for one sample;
            ``moved``, how far the input weights went, relative to where they began; of a DEQ also
            ``steps``, mean applications of its cell, and ``settled``, the share of test samples
            whose equilibrium was found to its tolerance.
        places: Accuracies by places, of all seeds.
    """

    task: str
    network: str
    axis: str
    value: float | str
    accuracy: Interval
    gap: Interval | None
    numbers: Mapping[str, float]
    places: Any

    @property
    def name(self) -> str:
        """Task, network and what is varied, as the keys of summaries have it."""
        return f"{self.task}_{self.network}" + (f"_{self.axis}{self.value}" if self.axis else "")

    def summary(self) -> dict[str, float]:
        """All numbers; times are left out where they are NaN, of machines that others used."""
        found = self.accuracy._asdict() | dict(self.numbers)
        if self.gap is not None:
            found |= named("gap", self.gap._asdict())
        if not self.axis and self.places.shape[1] > 1:
            near, far = np.array_split(self.places.mean(0), 2)
            found |= {"near": near.mean(), "far": far.mean()}
        return named(self.name, {k: value for k, value in found.items() if not math.isnan(value)})


def compared(results: Sequence[Result]) -> list[Compared]:
    """Every network of a study, in the order of its points."""
    deqs = {_setting(r): _chosen(r)["test"] for r in results if r.point["network"] == "deq"}
    found = []
    for result in results:
        at = _chosen(result)
        axis = next((k for k, v in CENTER.items() if result.point[k] != v), "")
        task, network = str(result.point["task"]), str(result.point["network"])
        own, numbers = network == "deq", ("steps", "settled") if network in ("deq", "free") else ()
        found.append(
            Compared(
                task,
                network,
                axis,
                result.point[axis] if axis else "",
                Interval.of(at["test"]),
                None if own else Interval.of(at["test"] - deqs[_setting(result)]),
                {key: float(result.arrays[key]) for key in ("seconds", "latency")}
                | {key: float(at[key].mean()) for key in ("moved", *numbers)},
                at["places"],
            )
        )
    return found


def _setting(result: Result) -> tuple[int | float | str, ...]:
    return tuple(value for key, value in result.point.items() if key != "network")


def _chosen(result: Result) -> dict[str, Any]:
    """The runs of every seed, at the step size that is best on validation samples."""
    best = int(result.arrays["validation"].mean(1).argmax())
    return {key: result.arrays[key][best] for key in _BY_NETWORK}
