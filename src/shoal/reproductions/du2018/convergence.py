r"""Gradient descent on the three architectures of Du 2018, watched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.activations import Activation, Softplus
from shoal.lab import Claim, Criterion, Experiment, Point, Result, grid, matching, register
from shoal.lab.descent import network_for
from shoal.lab.figures import draw_panels, logarithmic_axes
from shoal.lab.fits import curve, power_law
from shoal.lab.formatting import signed
from shoal.pages.figures import COLORS, GRAY, Axes, Figure
from shoal.reproductions.du2018.setting import KINDS, TITLES, Data


@register
@dataclass(frozen=True)
class LinearConvergence(Experiment):
    r"""Losses against $(1 - \eta\lambda_0/2)^k$, and how far Gram matrices drift, by the width.

    All layers are trained by full batches for $\frac12\|f - f_0 - y\|^2$ with the initial function
    $f_0$, random labels of $\pm 1$ and a step size of one over the largest eigenvalue of the NTK at
    the start. So errors start alike at all widths. $\lambda_0$ is that of the infinitely wide
    network; the Gram matrix is the last layer's share $G^{(H)}$.

    Args:
        activation: Of all layers.
        depth: $H$.
        widths: Of the networks, ascending.
        draws: How many networks of each width.
        samples: How many inputs.
        features: Their size, a multiple of four.
        constant: $c_\lambda$.
        steps: How many steps.
        every: After how many steps the Gram matrix is looked at.
        seed: Of inputs and labels.
    """

    name: ClassVar[tuple[str, str]] = ("du2018", "convergence")
    title: ClassVar[str] = "Linear convergence and Gram stability of the networks of Du 2018"

    activation: Activation = Softplus()  # noqa: RUF009  (a value)
    depth: int = 3
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    draws: int = 5
    samples: int = 10
    features: int = 24
    constant: float = 0.5
    steps: int = 1000
    every: int = 20
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Narrow networks, and few steps."""
        return cls(widths=(64, 128, 256), draws=3, samples=4, features=8, steps=40, every=8)

    def points(self) -> Sequence[Point]:
        """Every architecture, width and draw."""
        draws = range(self.draws)
        return grid("network", "draw", network=KINDS, width=self.widths, draw=draws)

    def cost(self, point: Point) -> float:
        """The cost of a point, in proportion to the number of weights."""
        pixels = self.features / 4 if point["network"] == "convolutional" else 1
        return float(point["width"]) ** 2 * pixels

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Tensor]:
        """Losses, their bound, and the last layer's Gram matrix along the way."""
        kind = str(point["network"])
        data = Data(kind, self.samples, self.features, self.seed)
        x = data.inputs().to(device)
        generator = torch.Generator().manual_seed(self.seed)
        signs = torch.randn(self.samples, generator=generator, dtype=torch.float64).sign()
        architecture = data.architecture(self.activation, self.depth, self.constant)
        limit = data.limit(architecture)
        network = network_for(architecture, x, width=int(point["width"]), seed=seed)
        with torch.no_grad():
            labels = network(x)[:, 0] + signs.to(device)
        run = shoal.train(
            network,
            x,
            labels,
            steps=self.steps,
            step_size="auto",
            monitor=self.every,
            least_eigenvalue=limit,
        )
        assert run.loss_bound is not None
        return {
            "losses": run.losses,
            "bound": run.loss_bound,
            "steps": run.monitor_steps,
            "drift": run.monitors["drift"] / limit,
            "least": run.monitors["least_eigenvalue"] / limit,
        }

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The share of runs below the bound, losses at the end, and the slopes of the drift."""
        summary: dict[str, float] = {}
        for kind in KINDS:
            mine = matching(results, {"network": kind})
            widest = matching(mine, {"width": self.widths[-1]})
            name = kind.replace("-", "_")
            summary[f"{name}_below_bound"] = float(np.mean([_below(r.arrays) for r in mine]))
            rates = [_final(r.arrays) for r in widest]
            summary[f"{name}_loss_ratio"] = float(np.exp(np.mean(np.log(rates))))
            summary |= power_law(*curve(mine, "width", "drift")).numbers(f"{name}_drift")
        return summary

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """The bound of the loss, for every architecture."""
        kept = min(value for key, value in summary.items() if key.endswith("_below_bound"))
        claim = Claim(
            "Linear convergence, three architectures",
            "loss ≤ (1 − ηλ_0/2)^k",
            f"kept by {100 * kept:.0f}% of the runs",
            "Du 2018, Theorems 3.1, 4.1 and 5.1",
            (Criterion("share of the runs below the bound at least 1", kept, least=1),),
        )
        return (claim,)

    def plot(self, results: Sequence[Result]) -> Figure:
        """Losses with their bounds above, the largest drift against the width below."""
        draws = {
            r"loss $\Phi(k)/\Phi(0)$": self._draw_losses,
            r"$\max_k\, \|G^{(H)}(k) - G^{(H)}(0)\| / \lambda_0$": self._draw_drifts,
        }

        def panel(axes: Axes, label: str, kind: str) -> str:
            draws[label](axes, matching(results, {"network": kind}))
            if kind == KINDS[0]:
                axes.set_ylabel(label)
            return TITLES[kind] if label == next(iter(draws)) else ""

        return draw_panels(draws, KINDS, panel, (11.5, 6.8), legend=None)

    def _draw_losses(self, axes: Axes, results: Sequence[Result]) -> None:
        for width, color in zip((self.widths[0], self.widths[-1]), COLORS, strict=False):
            for result in matching(results, {"width": width}):
                first = result.point["draw"] == 0
                losses = result.arrays["losses"] / result.arrays["losses"][0]
                label = f"width {width}" if first else None
                axes.plot(np.maximum(losses, 1e-28), color=color, linewidth=1.0, label=label)
        bound = results[-1].arrays["bound"] / results[-1].arrays["bound"][0]
        axes.plot(bound, "--", color=GRAY, label=r"$(1 - \eta\lambda_0/2)^k$")
        axes.set_yscale("log")
        axes.set_xlabel("step $k$")
        axes.legend()

    def _draw_drifts(self, axes: Axes, results: Sequence[Result]) -> None:
        measured = curve(results, "width", "drift")
        law = power_law(*measured)
        axes.plot(*measured, ".", color=COLORS[0], alpha=0.6)
        label = f"slope {signed(law.slope)}"
        axes.plot(self.widths, law(self.widths), color=COLORS[0], label=label)
        axes.axhline(0.25, linestyle="--", color=GRAY, label="1/4, what the proofs allow")
        logarithmic_axes(axes, self.widths, "width $m$")
        axes.legend()


def _final(arrays: Mapping[str, Any]) -> float:
    """What is left of the loss, but for rounding."""
    return max(float(arrays["losses"][-1] / arrays["losses"][0]), 1e-28)


def _below(arrays: Mapping[str, Any]) -> bool:
    """Whether no loss is above its bound, but for rounding."""
    floor = 1e-26 * float(arrays["losses"][0])
    return bool((arrays["losses"] <= arrays["bound"] * (1 + 1e-9) + floor).all())
