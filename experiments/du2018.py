"""The theorems of Du 2018: linear convergence of three architectures, and eigenvalues by depth.

The paper has no experiments.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import shoal
from experiments import drawing
from experiments.claims import Claim, Criterion, criteria_for, interval, signed
from experiments.experiment import Experiment, Result, experiment, grid, matching
from experiments.networks import network_for
from experiments.samples import unit_inputs
from experiments.statistics import curve, power_law
from shoal.activations import Activation
from shoal.architectures import ConvResNet, FullyConnected, ResNet

TITLES: Mapping[str, str] = {
    "fully-connected": "Fully connected (Theorem 3.1)",
    "resnet": "ResNet (Theorem 4.1)",
    "convolutional": "Convolutional ResNet (Theorem 5.1)",
}
KINDS = tuple(TITLES)
SECTION = "Du 2018, Theorems 3.1, 4.1 and 5.1"
_CHANNELS = 4
_RESOLVED = 1e-12  # eigenvalues that rounding does not hide

Network = FullyConnected | ResNet | ConvResNet


class _Networks(Experiment):
    """Networks of several kinds for random points on the unit sphere."""

    activation: Activation = shoal.activations.Softplus()
    samples: int = 10
    features: int = 24  # a multiple of four
    constant: float = 0.5  # c_λ
    seed: int = 0  # of inputs and labels

    def inputs(self, kind: str) -> Tensor:
        """The points; as pixels in a row for a convolutional network."""
        x = unit_inputs(self.samples, self.features, self.seed)
        return x.reshape(self.samples, _CHANNELS, -1) if kind == "convolutional" else x

    def architecture(self, kind: str, depth: int) -> Network:
        r"""The architecture, whose residuals are scaled by $c_\lambda\lambda^{3/2}$.

        For pixels, too, $\lambda$ is that of whole inputs: the paper's, of matrices of two times as
        many rows as there are pixels, is zero unless a patch has as many numbers.
        """
        if kind == "fully-connected":
            return FullyConnected.du2018(self.activation, depth)
        least = min(shoal.kernels.pair_eigenvalue(self.inputs("resnet")), 1.0)
        network = ResNet if kind == "resnet" else ConvResNet
        return network(self.activation, depth, residual_scale=self.constant * math.sqrt(least) ** 3)


@lru_cache(maxsize=64)
def limit_eigenvalue(one: _Networks, kind: str, depth: int) -> float:
    """The least eigenvalue of the limit Gram matrix, the last layer's share of the NTK."""
    architecture = one.architecture(kind, depth)
    gram = shoal.kernel(architecture, one.inputs(kind), trainable={f"layer{depth}"}).ntk
    return float(torch.linalg.eigvalsh(gram)[0])


@experiment("du2018", "convergence")
class LinearConvergence(_Networks):
    r"""Linear convergence and Gram stability of the networks of Du 2018.

    All layers are trained by full batches for $\frac12\|f - f_0 - y\|^2$ with the initial function
    $f_0$, random labels of $\pm 1$ and a step size of one over the largest eigenvalue of the NTK at
    the start. So errors start alike at all widths. $\lambda_0$ is that of the infinitely wide
    network; the Gram matrix is the last layer's share $G^{(H)}$.
    """

    depth: int = 3  # H
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    draws: int = 5
    steps: int = 1000
    every: int = 20  # steps between looks at the Gram matrix
    small = dict(widths=(64, 128, 256), draws=3, samples=4, features=8, steps=40, every=8)

    def points(self):
        draws = range(self.draws)
        return grid("network", "draw", network=KINDS, width=self.widths, draw=draws)

    def compute(self, point, seed, device):
        kind = point["network"]
        x = self.inputs(kind).to(device)
        generator = torch.Generator().manual_seed(self.seed)
        signs = torch.randn(self.samples, generator=generator, dtype=torch.float64).sign()
        limit = limit_eigenvalue(self, kind, self.depth)
        architecture = self.architecture(kind, self.depth)
        network = network_for(architecture, x, width=point["width"], seed=seed)
        with torch.no_grad():
            labels = network(x)[:, 0] + signs.to(device)
        options = {"step_size": "auto", "monitor": self.every, "least_eigenvalue": limit}
        run = shoal.train(network, x, labels, steps=self.steps, **options)
        return {
            "losses": run.losses,
            "bound": run.loss_bound,
            "steps": run.monitor_steps,
            "drift": run.monitors["drift"] / limit,
            "least": run.monitors["least_eigenvalue"] / limit,
        }

    def summarize(self, results):
        summary: dict[str, float] = {}
        for kind in KINDS:
            mine = matching(results, {"network": kind})
            name = kind.replace("-", "_")
            summary[f"{name}_below_bound"] = float(
                np.mean([_is_below_bound(r.arrays) for r in mine])
            )
            ends = [r.arrays["losses"] for r in matching(mine, {"width": self.widths[-1]})]
            ratios = [max(float(a[-1] / a[0]), 1e-28) for a in ends]  # but for rounding
            summary[f"{name}_loss_ratio"] = float(np.exp(np.mean(np.log(ratios))))
            summary |= power_law(*curve(mine, "width", "drift")).numbers(f"{name}_drift")
        return summary

    def claims(self, summary):
        kept = min(value for key, value in summary.items() if key.endswith("_below_bound"))
        yield Claim(
            "Linear convergence, three architectures",
            "loss ≤ (1 − ηλ_0/2)^k",
            f"kept by {100 * kept:.0f}% of the runs",
            SECTION,
            (Criterion("share of the runs below the bound at least 1", kept, least=1),),
        )

    def plot(self, results):
        labels = {
            "loss": r"loss $\Phi(k)/\Phi(0)$",
            "drift": r"$\max_k\, \|G^{(H)}(k) - G^{(H)}(0)\| / \lambda_0$",
        }

        def panel(axes: drawing.Axes, key: str, kind: str) -> str:
            mine = matching(results, {"network": kind})
            if key == "loss":
                self._draw_losses(axes, mine)
            else:
                drawing.draw_laws(axes, {"networks": curve(mine, "width", "drift")}, "width $m$")
                drawing.draw_limit(axes, 0.25, "1/4, what the proofs allow")
            axes.legend()
            if kind == KINDS[0]:
                axes.set_ylabel(labels[key])
            return TITLES[kind] if key == "loss" else ""

        return drawing.draw_panels(labels, KINDS, panel, (11.5, 6.8), legend=None)

    def _draw_losses(self, axes: drawing.Axes, results: Sequence[Result]) -> None:
        for width, color in zip((self.widths[0], self.widths[-1]), drawing.COLORS, strict=False):
            for result in matching(results, {"width": width}):
                losses = result.arrays["losses"] / result.arrays["losses"][0]
                label = f"width {width}" if result.point["draw"] == 0 else None
                axes.plot(np.maximum(losses, 1e-28), color=color, linewidth=1.0, label=label)
        bound = results[-1].arrays["bound"] / results[-1].arrays["bound"][0]
        axes.plot(bound, "--", color=drawing.GRAY, label=r"$(1 - \eta\lambda_0/2)^k$")
        axes.set(yscale="log", xlabel="step $k$")


def _is_below_bound(arrays: Mapping[str, Any]) -> bool:
    """Whether no loss is above its bound, but for rounding."""
    floor = 1e-26 * float(arrays["losses"][0])
    return bool((arrays["losses"] <= arrays["bound"] * (1 + 1e-9) + floor).all())


@experiment("du2018", "depth")
class DepthEigenvalue(_Networks):
    r"""The least eigenvalue of the limit Gram matrix against the depth.

    $\lambda_0 = \lambda_{\min}(K^{(H)})$ of infinitely wide networks of depth $H$. Du 2018 has
    $\lambda_0 \sim 1/H^2$ for the ResNet, by a constant that does not depend on $H$.
    """

    depths: tuple[int, ...] = (2, 3, 4, 6, 8, 12, 16, 24, 32)
    small = dict(depths=(2, 3, 4, 6), samples=4, features=8)

    def points(self):
        return grid(network=KINDS, depth=self.depths)

    def compute(self, point, seed, device):
        return {"least": limit_eigenvalue(self, point["network"], point["depth"])}

    def summarize(self, results):
        depths, least = _resolved(results, "fully-connected")
        # factor by which a layer multiplies the eigenvalue, between the two largest depths
        factor = (least[-1] / least[-2]) ** (1 / (depths[-1] - depths[-2]))
        summary = {"fully_connected_factor": float(factor)}
        for kind in KINDS[1:]:
            summary |= power_law(*_resolved(results, kind)).numbers(kind)
        return summary

    def claims(self, summary):
        slopes = {name: summary[f"{name.lower()}_slope"] for name in ("ResNet", "convolutional")}
        resnet, other = (interval(summary, f"{name.lower()}_slope") for name in slopes)
        yield Claim(
            "λ_0 falls like H^(−2) in ResNets",
            "−2",
            f"{resnet}; convolutional {other}",
            SECTION,
            criteria_for("{}: slope within 0.05 of −2", slopes, -2.05, -1.95),
        )

    def plot(self, results):
        figure, (axes,) = drawing.new_row(5.6, 4.2, 1)
        for kind, color in zip(KINDS, drawing.COLORS, strict=False):
            depths, least = _resolved(results, kind)
            label = TITLES[kind].split(" (")[0]
            if kind != "fully-connected":
                label += f": slope {signed(power_law(depths, least).slope)}"
            axes.plot(depths, least, "o-", color=color, markersize=5, label=label)
            if kind == "resnet":
                square = 0.6 * least[0] * (depths[0] / depths) ** 2
                axes.plot(depths, square, "--", color=drawing.GRAY, lw=1.2, label="slope $-2$")
        drawing.logarithmic_axes(axes, self.depths, "depth $H$")
        axes.set_ylabel(r"$\lambda_0 = \lambda_{\min}(K^{(H)})$")
        axes.set_title(f"{type(self.activation).__name__}, {self.samples} inputs of norm one")
        axes.legend()
        return figure


def _resolved(results: Sequence[Result], kind: str) -> tuple[Any, Any]:
    """Depths and eigenvalues of an architecture, where rounding does not hide them."""
    depths, least = curve(matching(results, {"network": kind}), "depth", "least")
    return depths[least > _RESOLVED], least[least > _RESOLVED]
