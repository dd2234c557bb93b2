"""The experiments of Gao 2022, and its lemmas on the Gram matrix of the feature map."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import shoal
from experiments.claims import Claim, Criterion, criteria_for, short
from experiments.drawing import COLORS, GRAY, new_row
from experiments.experiment import experiment, matching
from experiments.monitored import MonitoredWidths, Task
from experiments.samples import gray, image_pair, parted
from experiments.widths import GramWidth, WidthDraws
from shoal.architectures import ImplicitNetwork

_DIRECTIONS = ("random", "steepest")
_RANK = 1e-12  # squares of singular values below this, relative to the largest, are rounding
_PATH = 8  # in how many steps the steepest descent is followed


@experiment("gao2022", "figure1")
class Losses(MonitoredWidths):
    """Losses and norms of implicit networks of several widths.

    Images of the classes 0 and 1, half of each, gray, 28 by 28 pixels, scaled to norm 1, no two of
    them parallel. SVHN is left out; its name stays, since seeds depend on it.
    """

    panels = {
        "loss": ("training loss", None),
        "test": ("test loss", None),
        "norm": (r"$\gamma\|A\|/\sqrt{m}$", None),
    }

    datasets: tuple[str, ...] = ("mnist", "fashion-mnist", "cifar-10", "svhn")
    gamma: float = 0.1
    tests: int = 1000  # images to test with
    optional: tuple[str, ...] = ("svhn",)
    small = dict(datasets=("digits",), samples=100, tests=60, widths=(64, 128, 256), steps=40)

    def architecture(self, features: int) -> ImplicitNetwork:
        return ImplicitNetwork(self.gamma)

    def task(self, dataset: str) -> Task | None:
        if dataset in self.optional:
            return None
        test = _images(dataset, "test", self.tests, self.seed)
        return Task(*_images(dataset, "train", self.samples, self.seed), test)

    def claims(self, summary):
        section = "Gao 2022, Figure 1"
        first, last = self.widths[0], self.widths[-1]
        sets = [name for name in self.datasets if f"{name}_{first}_loss" in summary]

        def ends(key: str) -> dict[str, tuple[float, float]]:
            return {d: (summary[f"{d}_{first}_{key}"], summary[f"{d}_{last}_{key}"]) for d in sets}

        def words(key: str) -> str:
            return "; ".join(f"{short(a)} → {short(b)}" for a, b in ends(key).values())

        means = [float(np.mean(column)) for column in zip(*ends("norm").values(), strict=True)]
        growth = {d: b / a for d, (a, b) in ends("norm").items()}
        norms = [value for key, value in summary.items() if key.endswith("_norm")]
        off = max(abs(norm / (2 * self.gamma) - 1) for norm in norms)
        losses = f"last losses, widths {first} → {last}: {words('loss')}"
        yield Claim(
            "Wider networks train faster", "a figure", losses, section,
            self.falls(summary, "loss"), remark="slightly, since the rate converges with the width",
        )  # fmt: skip
        yield Claim(
            "Wider networks have a smaller test loss", "a figure", words("test"), section,
            self.falls(summary, "test"), remark="on CIFAR-10 only",
        )  # fmt: skip
        near = Criterion("all within 2.5% of 2γ", off, most=0.025)
        yield Claim(
            "γ‖A‖/√m stays near its start, and is slightly larger for larger m",
            "a figure; axis 0.1980 to 0.1992",
            f"means over datasets {means[0]:.4f} → {means[1]:.4f}",
            section,
            (near, *criteria_for("{}: at least that of the narrowest", growth, least=1)),
            remark="near it, and larger on two datasets of three",
        )


@lru_cache(maxsize=8)
def _images(dataset: str, split: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    images, labels = image_pair(dataset, split, count, seed)
    x = functional.normalize(gray(images, 28).double()).float()
    return parted(x, seed), 2.0 * labels - 1


def feature_weights(x: Tensor, width: int, seed: int) -> Tensor:
    """Standard Gaussian weights $W$ for inputs like ``x``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(width, x.shape[1], dtype=x.dtype, generator=generator).to(x.device)


def random_features(x: Tensor, weights: Tensor) -> Tensor:
    r"""$\phi = m^{-1/2}\sigma(Wx)$, one row for each input."""
    return (x @ weights.T).relu() / math.sqrt(len(weights))


def _gram(x: Tensor, weights: Tensor) -> Tensor:
    phi = random_features(x, weights)
    return phi @ phi.T


def population(x: Tensor) -> Tensor:
    r"""$G^\infty$: the share of the readout $v$ in the NTK, which no $\gamma$ changes."""
    return shoal.kernel(ImplicitNetwork(gamma=0.0), x, trainable=("skip",)).ntk


@experiment("gao2022", "lemma3.3")
class Concentration(GramWidth):
    r"""Gram matrices of random feature maps against their limit.

    The equilibrium has no part in it, so the networks can be very wide.
    """

    share = 0.25
    symbols = ("G(0)", r"G^\infty", r"\lambda_0")
    claimed = (
        "λ_min(G(0)) ≥ ¾λ_0 for wide networks",
        "m ≥ const·(n/λ_0)² log(n/δ)",
        "Gao 2022, Lemma 3.3",
    )

    widths: tuple[int, ...] = tuple(4**k for k in range(3, 10))
    small = dict(widths=tuple(4**k for k in range(3, 9)), draws=6, samples=12, features=24)

    def gram(self, x: Tensor, width: int, seed: int) -> Tensor:
        return _gram(x, feature_weights(x, width, seed))

    def limit(self, x: Tensor) -> Tensor:
        return population(x)


@experiment("gao2022", "lemma3.4")
class Stability(WidthDraws):
    r"""Least eigenvalues within and beyond the stability radius.

    $R = \sqrt m\lambda_0/(16c\|X\|^2)$ is the radius of Lemma 3.4, with $c = \|W(0)\|/\sqrt m$ and
    $\lambda_0 = \lambda_{\min}(G^\infty)$. ``random``: Gaussian directions. ``steepest``: along the
    steepest descent of $\lambda_{\min}(G)$ in the spectral norm, in several steps.
    """

    widths: tuple[int, ...] = (1024, 8192, 65536)
    draws: int = 4
    factors: tuple[float, ...] = tuple(2.0**k for k in range(-1, 9))  # s
    features: int = 64
    small = dict(widths=(512, 4096), draws=3, samples=12, features=24)

    def compute(self, point, seed, device):
        x = self.inputs().to(device)
        start = feature_weights(x, point["width"], seed)
        least = float(torch.linalg.eigvalsh(population(x))[0])
        initial = _gram(x, start)
        norms = [float(torch.linalg.matrix_norm(matrix, 2)) for matrix in (start, x)]
        radius = len(start) * least / (16 * norms[0] * norms[1] ** 2)
        noise = feature_weights(x, len(start), seed + 1)
        noise_norm = torch.linalg.matrix_norm(noise, 2)
        arrays: dict[str, Any] = {"radius": radius}
        arrays["initial"] = float(torch.linalg.eigvalsh(initial)[0]) / least
        moved = {
            "random": lambda reach: start + noise * (reach / noise_norm),
            "steepest": lambda reach: _descended(x, start, reach),
        }
        for direction, move in moved.items():
            grams = [_gram(x, move(factor * radius)) for factor in self.factors]
            values = [float(torch.linalg.eigvalsh(g)[0]) for g in grams]
            drifts = [float(torch.linalg.matrix_norm(g - initial, 2)) for g in grams]
            arrays[f"{direction}_least"] = np.array(values) / least
            arrays[f"{direction}_drift"] = np.array(drifts) / least
        return arrays

    def summarize(self, results):
        r"""For each width and direction, extremes at $s = 1$ and below, relative to $\lambda_0$.

        ``breaks`` is the smallest factor at which some network has
        $\lambda_{\min}(G) < \lambda_0/2$, left out if there is none.
        """
        summary: dict[str, float] = {}
        factors = np.array(self.factors)
        for width in self.widths:
            runs = [r.arrays for r in matching(results, {"width": width})]
            summary[f"{width}_initial"] = min(float(a["initial"]) for a in runs)
            for direction in _DIRECTIONS:
                least = np.min([a[f"{direction}_least"] for a in runs], axis=0)
                drift = np.max([a[f"{direction}_drift"] for a in runs], axis=0)
                broken = factors[least < 0.5]
                name = f"{width}_{direction}"
                summary[f"{name}_least"] = float(least[factors <= 1].min())
                summary[f"{name}_drift"] = float(drift[factors <= 1].max())
                if len(broken):
                    summary[f"{name}_breaks"] = float(broken[0])
        return summary

    def claims(self, summary):
        least = min(value for key, value in summary.items() if key.endswith("steepest_least"))
        breaks = min(value for key, value in summary.items() if key.endswith("_breaks"))
        yield Claim(
            "λ_min(G) ≥ λ_0/2 within the radius R",
            "½",
            f"at least {least:.2f}; below ½ first at {breaks:g} R",
            "Gao 2022, Lemma 3.4",
            (Criterion("least λ_min(G)/λ_0 within R at least ½", least, least=0.5),),
            remark="with a wide margin",
        )

    def plot(self, results):
        figure, (left, right) = new_row(9.6, 3.9)
        for axes, key, height, symbol, extreme in (
            (left, "least", 0.5, r"$\lambda_0/2$", np.min),
            (right, "drift", 0.25, r"$\lambda_0/4$", np.max),
        ):
            for width, color in zip(self.widths, COLORS, strict=False):
                runs = matching(results, {"width": width})
                for direction, line in zip(_DIRECTIONS, ("-", "--"), strict=True):
                    rows = extreme([r.arrays[f"{direction}_{key}"] for r in runs], axis=0)
                    look = {"color": color, "lw": 1.4, "label": f"width {width}, {direction}"}
                    axes.plot(self.factors, rows, line, **look)
            axes.axhline(height, color=GRAY, linewidth=1.2, linestyle=":", label=symbol)
            axes.axvline(1, color=GRAY, linewidth=0.8)
            axes.set_xscale("log", base=2)
            axes.set_xlabel(r"$\|W - W(0)\|\,/\,R$")
        left.set_title(r"$\lambda_{\min}(G)\,/\,\lambda_0$")
        right.set(yscale="log", title=r"$\|G - G(0)\|\,/\,\lambda_0$")
        right.legend(loc="lower right")
        return figure


def _descended(x: Tensor, start: Tensor, reach: float) -> Tensor:
    r"""Weights at most ``reach`` from the start, of a small $\lambda_{\min}(G)$.

    Each step goes along the polar factor of the gradient, the steepest direction in the spectral
    norm; the steps' lengths add up to ``reach``.
    """
    weights = start
    for _ in range(_PATH):
        phi = random_features(x, weights)
        vector = torch.linalg.eigh(phi @ phi.T).eigenvectors[:, 0]
        # λ_min = |φᵀv|², and the derivative of relu is the indicator of φ > 0
        active = (phi > 0).to(x.dtype) * (phi.T @ vector)[None, :]
        weights = weights - (reach / _PATH) * _polar(active.T @ (vector[:, None] * x))
    return weights


def _polar(tall: Tensor) -> Tensor:
    r"""$M(M^\top M)^{-1/2}$ on the range of $M^\top$, of spectral norm 1."""
    squares, vectors = torch.linalg.eigh(tall.T @ tall)
    kept = squares > _RANK * squares[-1]
    inverse = vectors[:, kept] / squares[kept].sqrt()
    return tall @ inverse @ vectors[:, kept].T
