r"""How fast the training of finite DEQs approaches what is predicted for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

import shoal
from shoal.lab import Point, Result, grid, matching, register
from shoal.lab.descent import full_batch, make
from shoal.lab.figures import draw_law, draw_panels, draw_slope, logarithmic_axes
from shoal.lab.fits import curve, power_law
from shoal.pages.figures import COLORS, Axes, Figure
from shoal.reproductions.deqs import DEQs
from shoal.reproductions.width_errors import unit_inputs

_LABELS = {"train": "training predictions", "test": "test predictions"}


@register
@dataclass(frozen=True)
class PredictedTraining(DEQs):
    r"""Gaps between predicted and measured training of DEQs of width $m$, about $m^{-1/2}$.

    Each point is one network. :func:`shoal.gradient_flow` predicts full-batch gradient descent from
    the function that the network is before it. Inputs lie at random on the unit sphere. Gaps are
    root mean squares, over steps and inputs, of the differences of predictions at training and
    test inputs, relative to those of the predictions.

    Args:
        activations: Of the DEQs.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        widths: The widths $m$.
        draws: How many networks are drawn for each.
        samples: The number of training inputs, and of test inputs.
        features: Their dimension.
        step_share: The step size, as a share of the largest stable one.
        steps: After which numbers of steps gaps are taken, ascending.
        seed: Of the inputs.
    """

    name: ClassVar[tuple[str, str]] = ("shoal", "predicted-training")
    title: ClassVar[str] = "Predicted and measured training of DEQs against their width"

    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    draws: int = 16
    samples: int = 32
    features: int = 16
    step_share: float = 0.25
    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Narrow networks, few inputs and steps."""
        return cls(widths=(64, 128, 256), draws=4, samples=16, features=8, steps=(1, 4, 12))

    def points(self) -> Sequence[Point]:
        """Every width, then every width again: an interrupted run has something of each."""
        axes = {"width": self.widths, "draw": range(self.draws)}
        return grid("draw", "width", activation=self.names, **axes)

    def cost(self, point: Point) -> float:
        """The cost of a point: that of products with the weights."""
        return 1e5 + float(point["width"]) ** 2

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Any]:
        """The gaps of one network, and its losses."""
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

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The slopes in the logarithms, with 95% confidence intervals, and the last gaps."""
        summary: dict[str, float] = {}
        for case in grid(activation=self.names, kind=_LABELS):
            law = power_law(*_gaps(results, *map(str, case.values())))
            name = f"{case['activation']}_{case['kind']}"
            summary |= {**law.numbers(name), f"{name}_widest": float(law(max(self.widths)))}
        return summary

    def plot(self, results: Sequence[Result]) -> Figure:
        """All gaps and the fitted power laws, a panel for each activation."""

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
