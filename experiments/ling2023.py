"""The experiments of Ling 2023, and its theorems on Gram matrices."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import shoal
from experiments.claims import Claim, Criterion, short
from experiments.drawing import GRAY, draw_lines, new_row
from experiments.experiment import experiment, matching
from experiments.monitored import MonitoredWidths, Task
from experiments.networks import features, network_for
from experiments.samples import image_pair, on_sphere, parted
from experiments.statistics import power_law, spread
from experiments.widths import GramWidth, WidthDraws
from shoal.architectures import DEQ
from shoal.gaussian import dual

_ENOUGH = 200  # layers that stand for infinitely many: ‖W‖ is about 0.8


@experiment("ling2023", "figure1")
class Losses(MonitoredWidths):
    r"""Training losses and norms of DEQs of several widths.

    ``"sphere"``: uniform points on the sphere of radius $\sqrt d$ with standard normal labels.
    Others: images of the classes 0 and 1, half of each, scaled to norm $\sqrt d$, labels $\pm1$.
    """

    panels = {"loss": ("training loss", None), "norm": (r"$\|W\|$", 1.0)}
    datasets_below = False

    datasets: tuple[str, ...] = ("sphere", "mnist", "cifar-10")
    step_share: float = 1.5
    weight_variance: float = 0.08  # σ_w²
    dimension: int = 1000  # of the sphere
    small = dict(
        datasets=("sphere", "digits"), samples=60, widths=(64, 128, 256), steps=100, dimension=60
    )

    def architecture(self, features: int) -> DEQ:
        return DEQ.ling2023(self.weight_variance, features)

    def task(self, dataset: str) -> Task:
        return _task(dataset, self.samples, self.dimension, self.seed)

    def claims(self, summary):
        section = "Ling 2023, Figure 1"
        losses = [summary[f"sphere_{width}_loss"] for width in self.widths]
        norm = max(value for key, value in summary.items() if key.endswith("_norm"))
        upper = max(value for key, value in summary.items() if key.endswith("_norm_upper"))
        words = f"sphere: {', '.join(map(short, losses))} at widths 500 to 4000"
        remark = "the step size explains it, not stable Gram matrices"
        yield Claim(
            "Wider DEQs train faster, to smaller losses", "a figure", words, section,
            self.falls(summary, "loss"), corrected=True, remark=remark,
        )  # fmt: skip
        words = f"at most {norm:.3f}, certified below {upper:.3f}"
        asked = Criterion("largest certified norm at most 1", upper, most=1)
        yield Claim("‖W‖ < 1 throughout", "a figure", words, section, (asked,))


@lru_cache(maxsize=4)
def _task(dataset: str, samples: int, dimension: int, seed: int) -> Task:
    if dataset == "sphere":
        return Task(*(part.float() for part in on_sphere(samples, dimension, seed)))
    images, labels = image_pair(dataset, "train", samples, seed)
    x = functional.normalize(images.flatten(1).double())
    return Task(parted((math.sqrt(x.shape[1]) * x).float(), seed), 2.0 * labels - 1)


@experiment("ling2023", "theorem2")
class Concentration(GramWidth):
    r"""Gram matrices of random DEQs against their population matrix.

    Theorem 2: $\lambda_{\min}(G) \ge m\lambda_*/2$. The matrices here are divided by $m$.
    """

    share = 0.5
    symbols = ("G/m", "K", r"\lambda_*")
    claimed = (
        "λ_0 ≥ mλ_\\*/2 for wide DEQs",
        "m ≥ const·(n/λ_\\*)² log(n/(λ_\\* t))",
        "Ling 2023, Theorem 2",
    )

    weight_variance: float = 0.08  # σ_w²
    small = dict(widths=(64, 128, 256, 512), draws=6, samples=12, features=24)

    def deq(self) -> DEQ:
        return DEQ.ling2023(self.weight_variance, self.features)

    def inputs(self) -> Tensor:
        r"""Points on the sphere of radius $\sqrt d$."""
        return on_sphere(self.samples, self.features, self.seed)[0]

    def gram(self, x: Tensor, width: int, seed: int) -> Tensor:
        z = features(network_for(self.deq(), x, width=width, seed=seed), x)
        return z @ z.T / width

    def limit(self, x: Tensor) -> Tensor:
        return shoal.kernel(self.deq(), x).ck


@experiment("ling2023", "depth")
class Depth(WidthDraws):
    r"""Convergence of Gram matrices in the depth (Theorems 3 to 5).

    $Z^{(l)} = \phi(WZ^{(l-1)} + UX)$ from $Z^{(0)} = 0$, $G^{(l)} = Z^{(l)\top}Z^{(l)}$. Theorem 3
    is on $\|K - K^{(l)}\|_F$, Theorem 4 on $\|G - G^{(l)}\|_F/m$ and Theorem 5 on
    $\|G^{(l)}/m - K^{(l)}\|_F$; the page on reproductions has what is true of them.
    """

    widths: tuple[int, ...] = (256, 1024, 4096)
    layers: int = 16  # the largest depth
    features: int = 64
    weight_variance: float = 0.08  # σ_w²
    small = dict(widths=(128, 256, 512), draws=4, samples=12, features=24)

    def compute(self, point, seed, device):
        x = on_sphere(self.samples, self.features, self.seed)[0].to(device)
        width = point["width"]
        deq = DEQ.ling2023(self.weight_variance, self.features)
        net = network_for(deq, x, width=width, seed=seed)
        recurrent, injection = net.get_parameter("recurrent").detach(), net.inject(x).detach()
        z = [injection.relu()]  # Z^(1), Z^(2), and so on, one row for each input
        while len(z) < _ENOUGH:
            z.append((z[-1] @ recurrent.T + injection).relu())
        limits, limit = self._population(x), shoal.kernel(deq, x).ck
        grams = [layer @ layer.T / width for layer in z]
        pairs = list(zip(grams[: self.layers], limits, strict=True))
        return {
            "population": [float((limit - k).norm()) for _, k in pairs],
            "tied": [float((grams[-1] - g).norm()) for g, _ in pairs],
            "finite": [float((g - k).norm()) for g, k in pairs],
        }

    def _population(self, x: Tensor) -> list[Tensor]:
        """$K^{(l)}$ for each depth (Definition 1)."""
        injection = 2 * x @ x.T / self.features
        kernels, kernel = [], torch.zeros_like(injection)
        for _ in range(self.layers):
            covariance = 2 * self.weight_variance * kernel + injection
            diagonal = covariance.diagonal()
            kernel = dual(
                shoal.activations.ReLU(), diagonal[:, None], diagonal[None, :], covariance
            )
            kernels.append(kernel)
        return kernels

    def bounds(self) -> dict[str, Any]:
        """The rates of the paper's bounds, but for constants."""
        depths = np.arange(1, self.layers + 1)
        contraction = (8 * self.weight_variance) ** (depths / 2)
        population = depths * self.weight_variance**depths
        return {"population": population, "tied": contraction, "finite": contraction}

    def summarize(self, results):
        r"""Rates per layer, and slopes against the width at half of the depth.

        The rate of Theorem 3 is taken over the second quarter of the depths, before rounding
        matters, that of Theorem 4 over the second half; ``finite_depth`` is the largest depth at
        which all networks of a width keep the bound of Theorem 5.
        """
        root, middle = math.sqrt(self.weight_variance), self.layers // 2
        summary = {
            "population_rate": _rate(results[0].arrays["population"][self.layers // 4 : middle]),
            "population_rate_predicted": self.weight_variance,
            "tied_rate_predicted": root,
            "paper_rate": math.sqrt(8) * root,
        }
        for width in self.widths:
            runs = matching(results, {"width": width})
            tied = np.exp(np.mean([np.log(r.arrays["tied"]) for r in runs], axis=0))
            summary[f"{width}_tied_rate"] = _rate(tied[middle:])
            errors = np.array([r.arrays["finite"] for r in runs])
            kept = np.all(errors <= self.samples * self.bounds()["finite"], axis=0)
            summary[f"{width}_finite_depth"] = float(np.argmin(np.append(kept, [False])))
            summary[f"{width}_finite"] = float(errors[:, -1].mean())
        widths = [r.point["width"] for r in results]
        for key in ("tied", "finite"):
            law = power_law(widths, [r.arrays[key][middle - 1] for r in results])
            summary |= law.numbers(key)
        return summary

    def claims(self, summary):
        population, tied = summary["population_rate"], summary[f"{self.widths[-1]}_tied_rate"]
        predicted, bound = summary["population_rate_predicted"], summary["paper_rate"]
        yield Claim(
            "Gram matrices converge in the depth",
            "σ_w^{2l}·l and (2√2σ_w)^l = 0.8^l",
            f"{population:.4f}^l and {tied:.3f}^l",
            "Ling 2023, Theorems 3 to 5",
            (
                Criterion("Theorem 3: rate at most 1.02 σ_w²", population / predicted, most=1.02),
                Criterion("Theorem 4: rate at most 2√2σ_w", tied / bound, most=1),
            ),
            remark="faster; Theorem 5 holds for small depths only",
        )

    def plot(self, results):
        titles = {
            "population": r"Theorem 3: $\|K - K^{(l)}\|_F$",
            "tied": r"Theorem 4: $\|G - G^{(l)}\|_F\,/\,m$",
            "finite": r"Theorem 5: $\|G^{(l)}/m - K^{(l)}\|_F$",
        }
        figure, panels = new_row(12.2, 3.9, 3)
        depths, middle = np.arange(1, self.layers + 1), self.layers // 2
        rates = {"population": self.weight_variance, "tied": math.sqrt(self.weight_variance)}
        for axes, (key, title) in zip(panels, titles.items(), strict=True):
            every = {f"width {width}": width for width in self.widths}
            if key == "population":  # has no width
                every = {"$K$": self.widths[0]}
            means = {n: spread(matching(results, {"width": m}), key)[0] for n, m in every.items()}
            draw_lines(axes, depths, means, markersize=3)
            mean = [*means.values()][-1]
            bound = self.bounds()[key]  # with a constant that makes it touch the first layer
            scale = self.samples if key == "finite" else results[0].arrays[key][0] / bound[0]
            axes.plot(depths, scale * bound, "--", color=GRAY, lw=1.2, label="the paper's bound")
            if key in rates:  # through the middle of the depths
                line = mean[middle - 1] * rates[key] ** (depths - middle)
                axes.plot(depths, line, ":", color=GRAY, linewidth=1.6, label="predicted rate")
            axes.set_ylim(0.3 * mean.min())
            axes.set(yscale="log", xlabel="layers $l$", title=title)
            axes.legend()
        return figure


def _rate(errors: Any) -> float:
    """The factor per layer, fitted to the logarithms."""
    return float(np.exp(np.polyfit(np.arange(len(errors)), np.log(errors), 1)[0]))
