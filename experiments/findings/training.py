r"""Do the designs of a DEQ train like it, and finite DEQs as it is predicted?"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

import shoal
from experiments.drawing import COLORS, GRAY, Axes, draw_laws, draw_panels
from experiments.experiment import Point, Result, experiment, grid, matching, named
from experiments.networks import TITLES, DEQs, full_batch, make, rival, wide_kernels
from experiments.samples import Samples, image_samples, unit_inputs
from experiments.statistics import curve, power_law, spread, z_scores
from shoal.learning import LinearTraining

_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 25, 35, 50, 70, 100, 140, 200, 280, 400)


@experiment("shoal", "training")
class TrainingCurves(DEQs):
    r"""Training losses of a DEQ, its designs and a naive network.

    Full batches in float32, for $\frac1{2n}\|f - f_0 - Y\|_F^2$ with the initial function $f_0$.
    Points of width ``inf`` are predictions of :class:`shoal.learning.LinearTraining`.
    """

    datasets: tuple[str, ...] = ("mnist", "fashion-mnist")
    samples: int = 4000
    widths: tuple[int, ...] = (256, 1024, 8192)
    trials: tuple[int, ...] = (8, 5, 3)  # at each width
    networks: tuple[str, ...] = ("deq", "ntk-design", "ck-design", "naive")
    step_size: float = 2.0
    steps: tuple[int, ...] = _STEPS  # after which the loss is kept
    small = dict(
        datasets=("digits",), samples=40, widths=(64, 256), trials=(2, 2),
        steps=(0, 1, 2, 5, 10, 20, 40),
    )  # fmt: skip

    def points(self):
        cases = grid(dataset=self.datasets, activation=self.names, network=self.networks)
        sizes = list(zip(self.widths, self.trials, strict=True))
        draws = [(m, k) for k in range(max(self.trials)) for m, count in sizes if k < count]
        limits: list[Point] = [{**case, "width": "inf", "trial": 0} for case in cases]
        return limits + [{**c, "width": m, "trial": k} for m, k in draws for c in cases]

    def compute(self, point, seed, device):
        if point["width"] == "inf":
            x, y, _ = self.data(point, torch.float64, device)
            kernels = wide_kernels(point["network"], self.deq(point), x)
            training = LinearTraining(kernels, y, initial="zero", reduction="mean")
            predicted = training.run(steps=list(self.steps), step_size=self.step_size)
            return {"steps": self.steps, "loss": predicted.loss}
        x, y, _ = self.data(point, torch.float32, device)
        network = rival(point["network"], self.deq(point))
        options = {"width": point["width"], "out_features": y.shape[1], "warm_start": True}
        net = make(network, x, seed=seed, **options)
        options = {"step_size": self.step_size, "steps": self.steps}
        outputs, seconds = full_batch(net, x, y, from_zero=True, **options)
        loss = (outputs.double() - y.double()).square().sum((1, 2)) / (2 * len(y))
        return {"steps": self.steps, "loss": loss, "seconds": seconds}

    def data(self, point: Point, dtype: torch.dtype, device: torch.device) -> Samples:
        return image_samples(point["dataset"], "train", self.samples, dtype, device, center=True)

    def _cases(self) -> list[Point]:
        return grid(dataset=self.datasets, activation=self.names)

    def _rows(self, results: Sequence[Result], case: Point, width: int | str) -> dict:
        runs = matching(results, {**case, "width": width})
        return {name: matching(runs, {"network": name}) for name in self.networks}

    def summarize(self, results):
        """Numbers of the page on findings, for each network and width."""
        summary: dict[str, float] = {}
        for case in self._cases():
            predicted = self._rows(results, case, "inf")
            for width in self.widths:
                rows = self._rows(results, case, width)
                reference = spread(rows["deq"], "loss")[0][1:]
                for network, runs in rows.items():
                    mean, deviation = (part[1:] for part in spread(runs, "loss"))
                    scores = z_scores(runs, rows["deq"], "loss")[1:]
                    losses = zip(self.steps[1:], mean, strict=True)
                    wide = predicted[network][0].arrays["loss"][1:]
                    numbers = {f"loss{k}": v for k, v in losses if k >= 25} | {
                        "deviation": (deviation / mean).max(),
                        "gap": np.abs(mean / reference - 1).max(),
                        "z": scores[-1],
                        "z_largest": np.abs(scores).max(),
                        "off": np.abs(mean / wide - 1).max(),
                        "seconds": np.median([result.arrays["seconds"] for result in runs]),
                    }
                    name = "_".join([*map(str, case.values()), network, str(width)])
                    summary |= named(name, numbers)
        return summary

    def plot(self, results):
        def panel(axes: Axes, case: Point, width: int) -> str:
            steps, shown = np.array(self.steps), np.array(self.steps) > 0
            wide = {n: r[0].arrays["loss"] for n, r in self._rows(results, case, "inf").items()}
            measured, reference = self._rows(results, case, width), wide["deq"]
            for (name, runs), color in zip(measured.items(), COLORS, strict=False):
                parts = (wide[name], *spread(runs, "loss"))
                predicted, mean, deviation = ((part / reference)[shown] for part in parts)
                band = mean - deviation, mean + deviation
                axes.fill_between(steps[shown], *band, color=color, alpha=0.15, linewidth=0)
                axes.plot(steps[shown], mean, color=color, linewidth=1.5, label=TITLES[name])
                axes.plot(steps[shown], predicted, ":", color=color, linewidth=1.2)
            axes.plot([], [], ":", color=GRAY, linewidth=1.2, label="infinitely wide")
            axes.set_xscale("log")
            return f"{self.point_title(case)}, {case['dataset']}, width {width}"

        rows = self._cases()
        size = 3.4 * len(self.widths) + 0.8, 2.7 * len(rows) + 0.4
        labels = {"x": "step", "y": "loss / predicted loss of DEQ", "title": 10}
        return draw_panels(rows, self.widths, panel, size, sharex=True, sharey="row", **labels)


@experiment("shoal", "predicted-training")
class PredictedTraining(DEQs):
    """Predicted and measured training of DEQs against their width.

    Each point is one network, which :func:`shoal.gradient_flow` predicts from the function that it
    is before. Gaps are root mean squares over steps and inputs, relative to those of predictions.
    """

    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    draws: int = 16
    samples: int = 32  # to train with, and to test with
    features: int = 16
    step_share: float = 0.25  # of the largest stable step size
    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # after which gaps are taken
    seed: int = 0  # of the inputs
    small = dict(widths=(64, 128, 256), draws=4, samples=16, features=8, steps=(1, 4, 12))

    def points(self):
        axes = {"width": self.widths, "draw": range(self.draws)}
        return grid("draw", "width", activation=self.names, **axes)

    def compute(self, point, seed, device):
        deq = self.deq(point)
        x, y, tests = (part.to(device) for part in self.inputs())
        net = make(deq, x, width=point["width"], seed=seed, warm_start=True)
        flow = shoal.gradient_flow(deq, x, y, tests, 0.0, initial=net, reduction="mean")
        step_size = self.step_share * flow.training.max_step_size
        predicted = flow.training.run(steps=list(self.steps), step_size=step_size)
        options = {"step_size": step_size, "steps": self.steps, "from_zero": False}
        every, _ = full_batch(net, x, y, watched=torch.cat([x, tests]), **options)
        outputs, test_outputs = every[:, : len(x)], every[:, len(x) :]
        return {
            "steps": self.steps,
            "measured": (outputs - y).square().mean((1, 2)) / 2,
            "predicted": predicted.loss,
            "train": (outputs - predicted.train_mean).norm() / predicted.train_mean.norm(),
            "test": (test_outputs - predicted.test_mean).norm() / predicted.test_mean.norm(),
        }

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Training inputs, labels and test inputs."""
        x = unit_inputs(2 * self.samples, self.features, self.seed)
        y = self.features**0.5 * x[:, :1] + self.features * x[:, 1:2] * x[:, 2:3]
        return x[: self.samples], y[: self.samples], x[self.samples :]

    def summarize(self, results):
        summary: dict[str, float] = {}
        for activation in self.names:
            runs = matching(results, {"activation": activation})
            for kind in ("train", "test"):
                law = power_law(*curve(runs, "width", kind))
                name = f"{activation}_{kind}"
                summary |= {**law.numbers(name), f"{name}_widest": float(law(max(self.widths)))}
        return summary

    def plot(self, results):
        def panel(axes: Axes, _: str, name: str) -> str:
            runs = matching(results, {"activation": name})
            kinds = {"training": "train", "test": "test"}
            rows = {f"{k} predictions": curve(runs, "width", key) for k, key in kinds.items()}
            draw_laws(axes, rows, "width $m$")
            return f"{self.point_title({'activation': name})} DEQ"

        size, y = (4.6 * len(self.names), 4.0), "relative gap between predicted and measured"
        return draw_panels([""], self.names, panel, size, y=y, legend=None, sharey=True)
