"""Monitored training of networks of several widths: losses, and what the theory promises."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import shoal
from experiments.claims import Criterion
from experiments.drawing import COLORS, Axes, draw_limit, draw_panels
from experiments.experiment import Arrays, Experiment, Result, by_point, grid, matching
from experiments.networks import network_for
from shoal.architectures import (
    Architecture,
)
from shoal.training import TrainingProgress, TrainingRun


class Task(NamedTuple):
    """What a network is trained on, and tested with."""

    x: Tensor  # inputs
    y: Tensor  # labels
    test: tuple[Tensor, Tensor] | None = None  # inputs and labels of the test, if there is one


class Panel(NamedTuple):
    """One quantity of a figure."""

    key: str  # the array
    label: str  # what it is, for the axis
    logarithmic: bool  # whether its axis is
    limit: float | None = None  # what it must stay below, if that is to be drawn


@dataclass(frozen=True)
class MonitoredWidths(Experiment):
    r"""Full-batch gradient descent in float32 for networks of several widths, with monitors.

    All weights are trained for $\Phi = \frac12\|f - y\|^2$. The step size is the same for all
    widths: ``step_share``$/\lambda_{\max}$ of the infinite-width NTK; where that depends on the
    width, at the largest one. Losses are kept divided by the number of samples.
    """

    datasets: tuple[str, ...] = ("mnist",)  # the names of the datasets
    samples: int = 1000  # $n$, to train with
    widths: tuple[int, ...] = (500, 1000, 2000, 4000)  # $m$, ascending
    steps: int = 1000  # how many steps of gradient descent
    step_share: float = 1.0  # the step size, in units of $1/\lambda_{\max}$
    every: int = 10  # after how many steps the monitors look
    seed: int = 0  # of the choice of samples

    @abstractmethod
    def task(self, dataset: str) -> Task | None:
        """The samples of a dataset; ``None`` if it is absent and may be."""

    @abstractmethod
    def architecture(self, features: int) -> Architecture:
        """What is trained, for inputs of so many features."""

    def points(self):
        return grid(dataset=self.datasets, width=self.widths)

    def compute(self, point, seed, device):
        task = self.task(str(point["dataset"]))
        if task is None:
            return {}
        x, y = task.x.to(device), task.y.to(device)
        architecture = self.architecture(x.shape[1])
        net = network_for(architecture, x, width=int(point["width"]), seed=seed, warm_start=True)
        test: list[float] = []

        def watch_test(now: TrainingProgress) -> None:
            if task.test is not None and (now.step % self.every == 0 or now.step == now.steps):
                with torch.no_grad():
                    error = net(task.test[0].to(device))[:, 0] - task.test[1].to(device)
                test.append(0.5 * float(error.double().square().mean()))

        run = shoal.train(
            net,
            x,
            y,
            step_size=self.step_size(architecture, x),
            steps=self.steps,
            monitor=self.every,
            progress=watch_test,
        )
        return {**run_arrays(run, len(x)), **({"test": test} if test else {})}

    def step_size(self, architecture: Architecture, x: Tensor) -> float:
        r"""``step_share`` times $1/\lambda_{\max}$."""
        width = max(self.widths) if isinstance(architecture, shoal.DEQ) else None
        ntk = shoal.kernel(architecture, x.double(), width=width).ntk
        return self.step_share / float(torch.linalg.eigvalsh(ntk)[-1])

    def summarize(self, results):
        """For each dataset and width: losses, the largest norm, and which promises were kept.

        ``loss`` is the last one, ``steps_to_tenth`` the first step at which it is a tenth of the
        first one, ``norm_upper`` certified; ``kept_...`` is 1 or 0.
        """

        def numbers(result: Result) -> dict[str, float]:
            arrays = result.arrays
            found = {"step_size": float(arrays["step_size"]), "loss": float(arrays["loss"][-1])}
            below = np.flatnonzero(arrays["loss"] <= arrays["loss"][0] / 10)
            if len(below):
                found["steps_to_tenth"] = float(below[0])
            if "test" in arrays:
                found["test"] = float(arrays["test"][-1])
            for key in ("norm", "norm_upper"):
                found[key] = float(arrays[key].max())
            return found | kept_promises(arrays)

        return by_point([result for result in results if result.arrays], numbers)

    def falls(self, summary: Mapping[str, float], key: str) -> tuple[Criterion, ...]:
        """Two criteria for each dataset: a number falls from end to end, and at every step."""
        found: list[Criterion] = []
        for name in self.datasets:
            if f"{name}_{self.widths[0]}_{key}" not in summary:
                continue  # absent, and may be
            row = [summary[f"{name}_{width}_{key}"] for width in self.widths]
            steps = max(wide / narrow for narrow, wide in pairwise(row))
            found += [
                Criterion(f"{name}: at most that of the narrowest", row[-1] / row[0], most=1),
                Criterion(f"{name}: at most that of the next narrower", steps, most=1),
            ]
        return tuple(found)

    def plot(self, results):
        shown = [n for n in self.datasets if any(r.arrays for r in _of(results, n))]

        flipped = self.side_by_side == "datasets"

        def panel(axes: Axes, row: Any, column: Any) -> str:
            name, quantity = (column, row) if flipped else (row, column)
            self._draw(axes, _of(results, name), quantity)
            return f"{name}: {quantity.label}"

        rows, columns = (self.panels, shown) if flipped else (shown, self.panels)
        size = 3.5 * len(columns) + 0.4, 2.7 * len(rows) + 0.5
        return draw_panels(rows, columns, panel, size, x="step", title=10)

    def _draw(self, axes: Axes, results: Sequence[Result], panel: Panel) -> None:
        for width, color in zip(self.widths, COLORS, strict=False):
            (result,) = matching(results, {"width": width})
            values = result.arrays[panel.key]
            steps = np.arange(len(values)) if panel.key == "loss" else result.arrays["steps"]
            axes.plot(steps, values, color=color, linewidth=1.4, label=f"width {width}")
        if panel.limit is not None:
            draw_limit(axes, panel.limit, width=1)
        if panel.logarithmic:
            axes.set_yscale("log")


def _of(results: Sequence[Result], dataset: str) -> list[Result]:
    return matching(results, {"dataset": dataset})


def run_arrays(run: TrainingRun, samples: int) -> dict[str, Any]:
    """What a run is remembered by: its loss per sample, with its bound, and its monitors."""
    bound = run.loss_bound
    return {
        "loss": run.losses.numpy() / samples,
        "bound": np.full(len(run.losses), math.inf) if bound is None else bound.numpy() / samples,
        "steps": run.monitor_steps.numpy(),
        "norm": run.monitors["gain"].numpy(),
        "norm_upper": run.monitors["gain_upper"].numpy(),
        "step_size": run.step_size,
        "finished": run.status == "finished",
        **{key: run.monitors[key].numpy() for key in ("least_eigenvalue", "pl_ratio", "drift")},
        **{f"kept_{name}": value for name, value in run.kept.items()},
    }


def kept_promises(arrays: Arrays) -> dict[str, float]:
    """Which promises a run kept: 1 or 0, under names that begin with ``kept_``."""
    return {key: float(value) for key, value in arrays.items() if key.startswith("kept_")}
