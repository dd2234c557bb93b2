"""Accuracies with intervals, and differences from the DEQ that was trained alike."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from shoal.lab.experiment import Result

__all__ = ["Compared", "Interval", "compared"]

_BY_NETWORK = ("test", "places", "moved", "steps", "settled")
_CENTER = {"activation": "tanh", "gain": 0.9, "scale": 1.0, "optimizer": "adam", "readout": 1.0}


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
            reach = float(stats.t.ppf(0.975, count - 1)) * error
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
        seconds: Of training, for one network.
        latency: Seconds for one sample.
        parameters: How many.
        steps: Mean applications of a DEQ's cell.
        settled: The share of test samples whose equilibrium was found to its tolerance.
        moved: How far the input weights went, relative to where they began.
        places: Accuracies by places, of all seeds.
    """

    task: str
    network: str
    axis: str
    value: float | str
    accuracy: Interval
    gap: Interval | None
    seconds: float
    latency: float
    parameters: int
    steps: float
    settled: float
    moved: float
    places: Any

    @property
    def name(self) -> str:
        """Task, network and what is varied, as the keys of summaries have it."""
        return f"{self.task}_{self.network}" + (f"_{self.axis}{self.value}" if self.axis else "")

    def numbers(self) -> dict[str, float]:
        """For a summary; times are left out where they are NaN, of machines that others used."""
        found = {f"{self.name}_{key}": value for key, value in self.accuracy._asdict().items()} | {
            f"{self.name}_seconds": self.seconds,
            f"{self.name}_latency": self.latency,
            f"{self.name}_moved": self.moved,
        }
        if self.gap is not None:
            found |= {f"{self.name}_gap_{key}": v for key, v in self.gap._asdict().items()}
        if self.network in ("deq", "free"):
            found |= {f"{self.name}_steps": self.steps, f"{self.name}_settled": self.settled}
        if not self.axis and self.places.shape[1] > 1:
            halves = np.array_split(self.places.mean(0), 2)
            found |= {
                f"{self.name}_{where}": float(half.mean())
                for where, half in zip(("near", "far"), halves, strict=True)
            }
        return {key: value for key, value in found.items() if not math.isnan(value)}


def compared(results: Sequence[Result]) -> list[Compared]:
    """Every network of a study, in the order of its points."""
    deqs = {_setting(r): _chosen(r)["test"] for r in results if r.point["network"] == "deq"}
    found = []
    for result in results:
        at = _chosen(result)
        axis = next((k for k, v in _CENTER.items() if result.point[k] != v), "")
        own = result.point["network"] == "deq"
        arrays = result.arrays
        found.append(
            Compared(
                str(result.point["task"]),
                str(result.point["network"]),
                axis,
                result.point[axis] if axis else "",
                Interval.of(at["test"]),
                None if own else Interval.of(at["test"] - deqs[_setting(result)]),
                float(arrays["seconds"]),
                float(arrays["latency"]),
                int(arrays["parameters"]),
                float(at["steps"].mean()),
                float(at["settled"].mean()),
                float(at["moved"].mean()),
                at["places"],
            )
        )
    return found


def _setting(result: Result) -> tuple[int | float | str, ...]:
    return tuple(value for key, value in result.point.items() if key != "network")


def _chosen(result: Result) -> dict[str, Any]:
    """Of every seed, at the step size that is best on validation samples on average."""
    best = int(result.arrays["validation"].mean(1).argmax())
    return {key: result.arrays[key][best] for key in _BY_NETWORK}
