r"""How fast the training of finite DEQs approaches what is predicted for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.lab.descent import full_batch, make
from shoal.lab.experiment import Arrays, Experiment, Point, Result, matching
from shoal.lab.fits import PowerLaw, power_law
from shoal.lab.registry import register
from shoal.pages.figures import COLORS, GRAY, Axes, Figure, new_figure, styled
from shoal.reproductions.ling2024.setting import by_name, title_of

__all__ = ["PredictedTraining"]

_LABELS = {"train": "training predictions", "test": "test predictions"}


@register
@dataclass(frozen=True)
class PredictedTraining(Experiment):
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

    activations: tuple[Activation, ...] = (shoal.ReLU(), shoal.Tanh())
    recurrent_variance: float = 0.2
    input_variance: float = 0.8
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
        return [
            {"activation": activation, "width": m, "draw": k}
            for k in range(self.draws)
            for m in self.widths
            for activation in by_name(self.activations)
        ]

    def cost(self, point: Point) -> float:
        """That of products with the weights."""
        return 1e5 + float(point["width"]) ** 2

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """The gaps of one network, and its losses."""
        activation = by_name(self.activations)[str(point["activation"])]
        deq = DEQ(activation, self.recurrent_variance, self.input_variance)
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
            "steps": np.array(self.steps),
            "measured": loss.cpu().numpy(),
            "predicted": predicted.loss.cpu().numpy(),
            "train": _gap(outputs, predicted.train_mean),
            "test": _gap(found, predicted.test_mean),
        }

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Training inputs, labels and test inputs, the same for all networks."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (2 * self.samples, self.features)
        x = torch.randn(shape, dtype=torch.float64, generator=generator)
        x = torch.nn.functional.normalize(x)
        y = self.features**0.5 * x[:, :1] + self.features * x[:, 1:2] * x[:, 2:3]
        return x[: self.samples], y[: self.samples], x[self.samples :]

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The slopes in the logarithms, with 95% confidence intervals, and the last gaps."""
        summary: dict[str, float] = {}
        for activation in by_name(self.activations):
            for kind in _LABELS:
                law = power_law(*_gaps(results, activation, kind))
                name = f"{activation}_{kind}"
                summary |= {**law.numbers(name), f"{name}_widest": float(law(max(self.widths)))}
        return summary

    @styled
    def plot(self, results: Sequence[Result]) -> Figure:
        """All gaps and the fitted power laws, a panel for each activation."""
        count = len(self.activations)
        figure = new_figure(4.6 * count, 4.0)
        panels: Any = figure.subplots(1, count, squeeze=False, sharey=True)[0]
        for axes, (name, phi) in zip(panels, by_name(self.activations).items(), strict=True):
            for kind, color in zip(_LABELS, COLORS, strict=False):
                _draw(axes, _LABELS[kind], color, *_gaps(results, name, kind))
            axes.set_title(f"{title_of(phi)} DEQ")
        for axes in panels:
            _decorate(axes, self.widths)
        low, high = panels[0].get_ylim()
        panels[0].set_ylim(low, 2.5 * high)  # room for the legend
        panels[0].set_ylabel("relative gap between predicted and measured")
        return figure


def _gap(found: Tensor, predicted: Tensor) -> Any:
    """A difference, relative to what was predicted."""
    return ((found - predicted).norm() / predicted.norm()).cpu().numpy()


def _gaps(results: Sequence[Result], activation: str, kind: str) -> tuple[Any, Any]:
    """Widths and gaps of all networks."""
    found = matching(results, {"activation": activation})
    widths = np.array([result.point["width"] for result in found], dtype=np.float64)
    return widths, np.array([float(result.arrays[kind]) for result in found])


def _draw(axes: Axes, label: str, color: str, widths: Any, gaps: Any) -> None:
    law: PowerLaw = power_law(widths, gaps)
    axes.plot(widths, gaps, ".", color=color, alpha=0.4, markersize=5, markeredgewidth=0)
    levels = np.unique(widths)
    low, high = law.interval
    text = f"{label}: slope {law.slope:.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
    axes.plot(levels, law(levels), color=color, linewidth=1.4, label=text)


def _decorate(axes: Axes, widths: Sequence[int]) -> None:
    """Logarithmic axes, and the slope of theory."""
    ends = np.array([min(widths), max(widths)], dtype=np.float64)
    axes.plot(ends, 0.5 / np.sqrt(ends), "--", color=GRAY, linewidth=1.2, label="slope $-1/2$")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(list(widths), [str(m) for m in widths])
    axes.set_xlabel("width $m$")
    axes.legend(loc="upper right", fontsize=8)
