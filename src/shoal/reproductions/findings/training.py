r"""Do the designs of a DEQ train like it?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch

from shoal.convergence import LinearTraining
from shoal.lab.descent import full_batch, make
from shoal.lab.experiment import Point, Result, grid, matching, named
from shoal.lab.figures import draw_panels
from shoal.lab.fits import spread, z_scores
from shoal.lab.registry import register
from shoal.lab.rivals import TITLES, rival, wide_kernels
from shoal.pages.figures import COLORS, GRAY, Axes, Figure
from shoal.reproductions.deqs import DEQs
from shoal.reproductions.samples import Samples, image_samples

_NETWORKS = ("deq", "ntk-design", "ck-design", "naive")
_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 25, 35, 50, 70, 100, 140, 200, 280, 400)


@register
@dataclass(frozen=True)
class TrainingCurves(DEQs):
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
        cases = grid(dataset=self.datasets, activation=self.names, network=self.networks)
        sizes = list(zip(self.widths, self.trials, strict=True))
        draws = [(m, k) for k in range(max(self.trials)) for m, count in sizes if k < count]
        found: list[Point] = [{**case, "width": "inf", "trial": 0} for case in cases]
        return found + [{**c, "width": m, "trial": k} for m, k in draws for c in cases]

    def cost(self, point: Point) -> float:
        """The cost of a point: that of products with the weights, and of launching them."""
        if point["width"] == "inf":
            return 1e-9 * self.samples**3
        width, deq = float(point["width"]), point["network"] == "deq"
        share = width**2 * 4 if deq else width * 4000
        return self.steps[-1] * (1 + 4 * deq + 4e-11 * self.samples * share * 10)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Any]:
        """Losses and the time of a step, or the predicted losses."""
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
                    summary |= named(name, _numbers(found, rows["deq"], wide, self.steps))
        return summary

    def plot(self, results: Sequence[Result]) -> Figure:
        """A panel for each dataset, activation and width."""

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
