r"""Do the designs of a DEQ train like it?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import shoal
from experiments.drawing import (
    COLORS,
    GRAY,
    Axes,
    draw_law,
    draw_panels,
    draw_slope,
    logarithmic_axes,
)
from experiments.experiment import Point, Result, experiment, grid, matching, named
from experiments.networks import TITLES, DEQs, full_batch, make, rival, wide_kernels
from experiments.samples import Samples, image_samples, unit_inputs
from experiments.statistics import curve, power_law, spread, z_scores
from shoal.convergence import LinearTraining

_NETWORKS = ("deq", "ntk-design", "ck-design", "naive")
_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 25, 35, 50, 70, 100, 140, 200, 280, 400)


@experiment("shoal", "training", "Training losses of a DEQ, its designs and a naive network")
class TrainingCurves(DEQs):
    r"""Training losses of a DEQ, its one-layer designs on the sphere, and a naive network.

    Full-batch gradient descent in float32 trains all weights for the loss
    $\frac1{2n}\|f - f_0 - Y\|_F^2$, where $Y$ is one-hot and $f_0$ the initial function, on the
    first images of a dataset, less their mean and scaled to norm 1. All networks take the same step
    size. Points of width ``inf`` are predictions of :class:`shoal.convergence.LinearTraining`.
    """

    # names that :func:`shoal.data.load` knows
    datasets: tuple[str, ...] = ("mnist", "fashion-mnist")
    samples: int = 4000  # how many images, from the beginning
    widths: tuple[int, ...] = (256, 1024, 8192)  # of the networks, ascending
    trials: tuple[int, ...] = (8, 5, 3)  # how many networks are drawn at each width
    networks: tuple[str, ...] = _NETWORKS  # what is compared
    step_size: float = 2.0  # the same for all networks that are compared
    steps: tuple[int, ...] = _STEPS  # after which numbers of steps the loss is kept, ascending

    small = dict(
        datasets=("digits",),
        samples=40,
        widths=(64, 256),
        trials=(2, 2),
        steps=(0, 1, 2, 5, 10, 20, 40),
    )

    def points(self):
        cases = grid(dataset=self.datasets, activation=self.names, network=self.networks)
        sizes = list(zip(self.widths, self.trials, strict=True))
        draws = [(m, k) for k in range(max(self.trials)) for m, count in sizes if k < count]
        found: list[Point] = [{**case, "width": "inf", "trial": 0} for case in cases]
        return found + [{**c, "width": m, "trial": k} for m, k in draws for c in cases]

    def compute(self, point, seed, device):
        if point["width"] == "inf":
            return self._predicted(point, device)
        network = rival(str(point["network"]), self.deq(point))
        x, y, _ = self.data(point, torch.float32, device)
        net = make(network, x, width=int(point["width"]), out_features=y.shape[1], seed=seed,
                   warm_start=True)  # fmt: skip
        done = full_batch(net, x, y, step_size=self.step_size, steps=self.steps, from_zero=True)
        return {
            "steps": self.steps,
            "loss": (done.outputs.double() - y.double()).square().sum((1, 2)) / (2 * len(y)),
            "seconds": done.seconds,
        }

    def data(self, point: Point, dtype: torch.dtype, device: torch.device) -> Samples:
        """The images of a point."""
        return image_samples(
            str(point["dataset"]), "train", self.samples, dtype, device, center=True
        )

    def _predicted(self, point: Point, device: torch.device) -> Mapping[str, Any]:
        x, y, _ = self.data(point, torch.float64, device)
        kernels = wide_kernels(str(point["network"]), self.deq(point), x)
        training = LinearTraining(kernels, y, initial="zero", reduction="mean")
        curve = training.run(steps=list(self.steps), step_size=self.step_size)
        return {"steps": self.steps, "loss": curve.loss}

    def summarize(self, results):
        """Losses, deviations, distances from the DEQ and times, of each network and width.

        ``z`` is the z-score of the difference from the DEQ at the last step, ``z_largest`` the
        largest over all steps, ``gap`` the largest relative difference, ``off`` that from the
        network's own prediction.
        """
        summary: dict[str, float] = {}
        for case in self._cases():
            for width in self.widths:
                rows = self._rows(results, case, width)
                for network, found in rows.items():
                    name = "_".join([*map(str, case.values()), network, str(width)])
                    wide = self._rows(results, case, "inf")[network][0].arrays["loss"][1:]
                    summary |= named(name, _numbers(found, rows["deq"], wide, self.steps))
        return summary

    def plot(self, results):

        def panel(axes: Axes, case: Point, width: int) -> str:
            wide = {n: r[0] for n, r in self._rows(results, case, "inf").items()}
            draw_curves(axes, self._rows(results, case, width), wide)
            return f"{self.title_at(case)}, {case['dataset']}, width {width}"

        return draw_panels(
            self._cases(),
            self.widths,
            panel,
            (3.4 * len(self.widths) + 0.8, 2.7 * len(self._cases()) + 0.4),
            x="step",
            y="loss / predicted loss of DEQ",
            title=10,
            sharex=True,
            sharey="row",
        )

    def _cases(self) -> list[Point]:
        return grid(dataset=self.datasets, activation=self.names)

    def _rows(
        self, results: Sequence[Result], case: Point, width: int | str
    ) -> Mapping[str, list[Result]]:
        return {
            name: matching(results, {**case, "network": name, "width": width})
            for name in self.networks
        }


def _numbers(
    found: Sequence[Result], deq: Sequence[Result], wide: Any, steps: Sequence[int]
) -> dict[str, float]:
    """What the summary has about one network of one width."""
    mean, deviation = (part[1:] for part in spread(found, "loss"))
    reference = spread(deq, "loss")[0][1:]
    scores = z_scores(found, deq, "loss")[1:]
    numbers = {f"loss{k}": float(v) for k, v in zip(steps[1:], mean, strict=True) if k >= 25}
    return numbers | {
        "deviation": float((deviation / mean).max()),
        "gap": float(np.abs(mean / reference - 1).max()),
        "z": float(scores[-1]),
        "z_largest": float(np.abs(scores).max()),
        "off": float(np.abs(mean / wide - 1).max()),
        "seconds": float(np.median([result.arrays["seconds"] for result in found])),
    }


def draw_curves(axes: Axes, measured: Mapping[str, Any], predicted: Mapping[str, Any]) -> None:
    """Losses relative to the predicted ones of the DEQ, with bands of one deviation."""
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


_LABELS = {"train": "training predictions", "test": "test predictions"}


@experiment(
    "shoal", "predicted-training", "Predicted and measured training of DEQs against their width"
)
class PredictedTraining(DEQs):
    r"""Gaps between predicted and measured training of DEQs of width $m$, about $m^{-1/2}$.

    Each point is one network. :func:`shoal.gradient_flow` predicts full-batch gradient descent from
    the function that the network is before it. Inputs lie at random on the unit sphere. Gaps are
    root mean squares, over steps and inputs, of the differences of predictions at training and
    test inputs, relative to those of the predictions.
    """

    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)  # the widths $m$
    draws: int = 16  # how many networks are drawn for each
    samples: int = 32  # the number of training inputs, and of test inputs
    features: int = 16  # their dimension
    step_share: float = 0.25  # the step size, as a share of the largest stable one
    # after which numbers of steps gaps are taken, ascending
    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    seed: int = 0  # of the inputs

    small = dict(widths=(64, 128, 256), draws=4, samples=16, features=8, steps=(1, 4, 12))

    def points(self):
        axes = {"width": self.widths, "draw": range(self.draws)}
        return grid("draw", "width", activation=self.names, **axes)

    def compute(self, point, seed, device):
        deq = self.deq(point)
        x, y, tests = (part.to(device) for part in self.inputs())
        net = make(deq, x, width=int(point["width"]), seed=seed, warm_start=True)
        flow = shoal.gradient_flow(deq, x, y, tests, 0.0, initial=net, reduction="mean")
        step_size = self.step_share * flow.training.max_step_size
        predicted = flow.training.run(steps=list(self.steps), step_size=step_size)
        assert predicted.test_mean is not None
        done = full_batch(
            net, x, y, step_size=step_size, steps=self.steps, from_zero=False,
            watched=torch.cat([x, tests]),
        )  # fmt: skip
        outputs, found = done.outputs[:, : len(x)], done.outputs[:, len(x) :]
        loss = (outputs - y).square().mean((1, 2)) / 2
        return {
            "steps": self.steps,
            "measured": loss,
            "predicted": predicted.loss,
            "train": _gap(outputs, predicted.train_mean),
            "test": _gap(found, predicted.test_mean),
        }

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Training inputs, labels and test inputs, the same for all networks."""
        x = unit_inputs(2 * self.samples, self.features, self.seed)
        y = self.features**0.5 * x[:, :1] + self.features * x[:, 1:2] * x[:, 2:3]
        return x[: self.samples], y[: self.samples], x[self.samples :]

    def summarize(self, results):
        summary: dict[str, float] = {}
        for case in grid(activation=self.names, kind=_LABELS):
            law = power_law(*_gaps(results, *map(str, case.values())))
            name = f"{case['activation']}_{case['kind']}"
            summary |= {**law.numbers(name), f"{name}_widest": float(law(max(self.widths)))}
        return summary

    def plot(self, results):

        def panel(axes: Axes, _: str, name: str) -> str:
            for (kind, label), color in zip(_LABELS.items(), COLORS, strict=False):
                draw_law(axes, _gaps(results, name, kind), label, color)
            draw_slope(axes, self.widths, 0.5)
            logarithmic_axes(axes, self.widths, "width $m$")
            axes.legend(loc="upper right", fontsize=8)
            return f"{self.title_at({'activation': name})} DEQ"

        size, y = (4.6 * len(self.names), 4.0), "relative gap between predicted and measured"
        figure = draw_panels([""], self.names, panel, size, y=y, legend=None, sharey=True)
        low, high = figure.axes[0].get_ylim()
        figure.axes[0].set_ylim(low, 2.5 * high)  # room for the legend
        return figure


def _gap(found: Tensor, predicted: Tensor) -> Any:
    """A difference, relative to what was predicted."""
    return (found - predicted).norm() / predicted.norm()


def _gaps(results: Sequence[Result], activation: str, kind: str) -> tuple[Any, Any]:
    """Widths and gaps of all networks."""
    return curve(matching(results, {"activation": activation}), "width", kind)
