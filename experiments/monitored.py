"""Monitored training of networks of several widths: losses, and the promises of the theory."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import shoal
from experiments.claims import Criterion, criteria_for
from experiments.drawing import Axes, draw_limit, draw_lines, draw_panels
from experiments.experiment import Arrays, Experiment, Result, by_point, grid, matching
from experiments.networks import network_for
from shoal.training import TrainingProgress, TrainingRun


class Task(NamedTuple):
    """Inputs and labels that a network is trained on, and those of the test, if there is one."""

    x: Tensor
    y: Tensor
    test: tuple[Tensor, Tensor] | None = None


class MonitoredWidths(Experiment):
    r"""Full-batch gradient descent in float32 for $\frac12\|f - y\|^2$, of networks of many widths.

    All have the step size ``step_share``$/\lambda_{\max}$ of the infinite-width NTK; where that
    depends on the width, at the largest one. Losses are kept divided by the number of samples.

    Subclasses have a ``task`` for each dataset, or ``None``, an ``architecture`` for so many
    features, and ``panels``: arrays, their labels, and their upper bounds.
    """

    panels = {}
    datasets_below = True  # or side by side, and the panels below each other

    datasets: tuple[str, ...] = ("mnist",)
    samples: int = 1000
    widths: tuple[int, ...] = (500, 1000, 2000, 4000)
    steps: int = 1000
    step_share: float = 1.0  # of 1/λ_max
    every: int = 10  # steps between looks of the monitors
    seed: int = 0  # of the choice of samples

    def points(self):
        return grid(dataset=self.datasets, width=self.widths)

    def compute(self, point, seed, device):
        task = self.task(point["dataset"])
        if task is None:
            return {}
        x, y = task.x.to(device), task.y.to(device)
        architecture = self.architecture(x.shape[1])
        net = network_for(architecture, x, width=point["width"], seed=seed, warm_start=True)
        test: list[float] = []

        def watch_test(now: TrainingProgress) -> None:
            if task.test is not None and (now.step % self.every == 0 or now.step == now.steps):
                with torch.no_grad():
                    error = net(task.test[0].to(device))[:, 0] - task.test[1].to(device)
                test.append(0.5 * float(error.double().square().mean()))

        widest = max(self.widths) if isinstance(architecture, shoal.DEQ) else None
        ntk = shoal.kernel(architecture, x.double(), width=widest).ntk
        options = {"step_size": self.step_share / float(torch.linalg.eigvalsh(ntk)[-1])}
        options |= {"steps": self.steps, "monitor": self.every}
        run = shoal.train(net, x, y, progress=watch_test, **options)
        return {**run_arrays(run, len(x)), **({"test": test} if test else {})}

    def summarize(self, results):
        def numbers(result: Result) -> dict[str, float]:
            arrays = result.arrays
            row = {"step_size": arrays["step_size"], "loss": arrays["loss"][-1]}
            below = np.flatnonzero(arrays["loss"] <= arrays["loss"][0] / 10)
            if len(below):
                row["steps_to_tenth"] = below[0]
            if "test" in arrays:
                row["test"] = arrays["test"][-1]
            return row | {k: arrays[k].max() for k in ("norm", "norm_upper")} | kept(arrays)

        return by_point([result for result in results if result.arrays], numbers)

    def falls(self, summary: Mapping[str, float], key: str) -> tuple[Criterion, ...]:
        """Two criteria for each dataset: a number falls from end to end, and at every step."""
        criteria: list[Criterion] = []
        for name in self.datasets:
            row = [summary.get(f"{name}_{width}_{key}", math.nan) for width in self.widths]
            if not math.isnan(row[0]):  # else it is left out
                steps = max(wide / narrow for narrow, wide in pairwise(row))
                ratios = {"the narrowest": row[-1] / row[0], "the next narrower": steps}
                criteria += criteria_for(f"{name}: at most that of {{}}", ratios, most=1)
        return tuple(criteria)

    def plot(self, results):
        shown = dict.fromkeys(result.point["dataset"] for result in results if result.arrays)
        below = self.datasets_below

        def panel(axes: Axes, row: str, column: str) -> str:
            name, key = (row, column) if below else (column, row)
            label, limit = self.panels[key]
            runs = matching(results, {"dataset": name})
            rows = {f"width {r.point['width']}": r.arrays[key] for r in runs}
            steps = None if key == "loss" else runs[0].arrays["steps"]
            draw_lines(axes, steps, rows, "-", linewidth=1.4)
            if limit is not None:
                draw_limit(axes, limit, width=1)
            axes.set_yscale("linear" if key == "norm" else "log")
            return f"{name}: {label}"

        rows, columns = (shown, self.panels) if below else (self.panels, shown)
        size = 3.5 * len(columns) + 0.4, 2.7 * len(rows) + 0.5
        return draw_panels(rows, columns, panel, size, x="step", title=10)


def run_arrays(run: TrainingRun, samples: int) -> dict[str, Any]:
    """The record of a run: its loss per sample, with its bound, and its monitors."""
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


def kept(arrays: Arrays) -> dict[str, float]:
    """Which promises a run kept: 1 or 0, under names that begin with ``kept_``."""
    return {key: float(value) for key, value in arrays.items() if key.startswith("kept_")}
