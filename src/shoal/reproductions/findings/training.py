r"""Do the designs of a DEQ train like it?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.convergence import LinearTraining
from shoal.lab.descent import full_batch, make
from shoal.lab.experiment import Arrays, Experiment, Point, Result, matching
from shoal.lab.fits import spread, z_scores
from shoal.lab.registry import register
from shoal.lab.rivals import TITLES, rival, wide_kernels
from shoal.pages.figures import COLORS, GRAY, Axes, Figure, new_figure, styled
from shoal.reproductions.ling2024.setting import by_name, title_of
from shoal.reproductions.samples import Samples, image_samples

__all__ = ["TrainingCurves"]

_NETWORKS = ("deq", "ntk-design", "ck-design", "naive")
_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 25, 35, 50, 70, 100, 140, 200, 280, 400)


@register
@dataclass(frozen=True)
class TrainingCurves(Experiment):
    r"""Training losses of a DEQ, its one-layer designs on the sphere, and a naive network.

    Full-batch gradient descent in float32 trains all weights for the loss
    $\frac1{2n}\|f - f_0 - Y\|_F^2$, where $Y$ is one-hot and $f_0$ the initial function, on the
    first images of a dataset, less their mean and scaled to norm 1. All networks take the same step
    size. Points of width ``inf`` are predictions of :class:`shoal.convergence.LinearTraining`.

    Args:
        activations: Of the DEQs.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        datasets: Names that :func:`shoal.data.load` knows.
        samples: How many images, from the beginning.
        widths: Of the networks, ascending.
        trials: How many networks are drawn at each width.
        networks: What is compared.
        step_size: The same for all networks that are compared.
        steps: After which numbers of steps the loss is kept, ascending.
    """

    name: ClassVar[tuple[str, str]] = ("shoal", "training")
    title: ClassVar[str] = "Training losses of a DEQ, its designs and a naive network"

    activations: tuple[Activation, ...] = (shoal.ReLU(), shoal.Tanh())
    recurrent_variance: float = 0.2
    input_variance: float = 0.8
    datasets: tuple[str, ...] = ("mnist", "fashion-mnist")
    samples: int = 4000
    widths: tuple[int, ...] = (256, 1024, 8192)
    trials: tuple[int, ...] = (8, 5, 3)
    networks: tuple[str, ...] = _NETWORKS
    step_size: float = 2.0
    steps: tuple[int, ...] = _STEPS

    @classmethod
    def quick(cls) -> Self:
        """Few of scikit-learn's digits, narrow networks, few steps."""
        steps = (0, 1, 2, 5, 10, 20, 40)
        return cls(datasets=("digits",), samples=40, widths=(64, 256), trials=(2, 2), steps=steps)

    def points(self) -> Sequence[Point]:
        """Predictions, then one network of each width, then another one."""
        cases = [
            {"dataset": dataset, "activation": activation, "network": network}
            for dataset in self.datasets
            for activation in by_name(self.activations)
            for network in self.networks
        ]
        sizes = list(zip(self.widths, self.trials, strict=True))
        draws = [(m, k) for k in range(max(self.trials)) for m, count in sizes if k < count]
        found: list[Point] = [{**case, "width": "inf", "trial": 0} for case in cases]
        return found + [{**c, "width": m, "trial": k} for m, k in draws for c in cases]

    def cost(self, point: Point) -> float:
        """That of products with the weights, and of launching them."""
        if point["width"] == "inf":
            return 1e-9 * self.samples**3
        width, deq = float(point["width"]), point["network"] == "deq"
        share = width**2 * 4 if deq else width * 4000
        return self.steps[-1] * (1 + 4 * deq + 4e-11 * self.samples * share * 10)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """Losses and the time of a step, or the predicted losses."""
        if point["width"] == "inf":
            return self._predicted(point, device)
        network = rival(str(point["network"]), self.deq(point))
        x, y, _ = self.data(point, torch.float32, device)
        net = make(network, x, width=int(point["width"]), out_features=y.shape[1], seed=seed,
                   warm_start=True)  # fmt: skip
        done = full_batch(net, x, y, step_size=self.step_size, steps=self.steps, from_zero=True)
        return {
            "steps": np.array(self.steps),
            "loss": _loss(done.outputs.double(), y.double()).cpu().numpy(),
            "seconds": np.array(done.seconds),
        }

    def deq(self, point: Point) -> DEQ:
        """The DEQ that a point is about."""
        activation = by_name(self.activations)[str(point["activation"])]
        return DEQ(activation, self.recurrent_variance, self.input_variance)

    def data(self, point: Point, dtype: torch.dtype, device: torch.device) -> Samples:
        """The images of a point."""
        return image_samples(
            str(point["dataset"]), "train", self.samples, dtype, device, center=True
        )

    def _predicted(self, point: Point, device: torch.device) -> Arrays:
        x, y, _ = self.data(point, torch.float64, device)
        kernels = wide_kernels(str(point["network"]), self.deq(point), x)
        training = LinearTraining(kernels, y, initial="zero", reduction="mean")
        curve = training.run(steps=list(self.steps), step_size=self.step_size)
        return {"steps": np.array(self.steps), "loss": curve.loss.cpu().numpy()}

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
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
                    for key, value in _numbers(found, rows["deq"], wide, self.steps).items():
                        summary[f"{name}_{key}"] = value
        return summary

    @styled
    def plot(self, results: Sequence[Result]) -> Figure:
        """A panel for each dataset, activation and width."""
        cases = self._cases()
        rows, columns = len(cases), len(self.widths)
        figure = new_figure(3.4 * columns + 0.8, 2.7 * rows + 0.4)
        panels: Any = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey="row")
        for row, case in enumerate(cases):
            wide = {n: r[0] for n, r in self._rows(results, case, "inf").items()}
            for column, width in enumerate(self.widths):
                axes = panels[row, column]
                draw_curves(axes, self._rows(results, case, width), wide)
                activation = title_of(by_name(self.activations)[str(case["activation"])])
                axes.set_title(f"{activation}, {case['dataset']}, width {width}", fontsize=10)
            panels[row, 0].set_ylabel("loss / predicted loss of DEQ")
        for axes in panels[-1]:
            axes.set_xlabel("step")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        return figure

    def _cases(self) -> list[Point]:
        return [
            {"dataset": dataset, "activation": activation}
            for dataset in self.datasets
            for activation in by_name(self.activations)
        ]

    def _rows(
        self, results: Sequence[Result], case: Point, width: int | str
    ) -> Mapping[str, list[Result]]:
        return {
            name: matching(results, {**case, "network": name, "width": width})
            for name in self.networks
        }


def _loss(outputs: Tensor, y: Tensor) -> Tensor:
    """The loss at each of the steps."""
    return (outputs - y).square().sum((1, 2)) / (2 * len(y))


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
