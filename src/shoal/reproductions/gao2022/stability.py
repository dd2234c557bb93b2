r"""Lemma 3.4: within which distance of $W(0)$ the Gram matrix keeps its least eigenvalue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from shoal.lab import Claim, Criterion, Point, Result, matching, register
from shoal.lab.figures import new_row
from shoal.pages.figures import COLORS, GRAY, Axes, Figure
from shoal.reproductions.gao2022.concentration import feature_weights, features_of, population
from shoal.reproductions.width_errors import WidthDraws

_DIRECTIONS = ("random", "steepest")
_RANK = 1e-12  # squares of singular values below this, relative to the largest, are rounding
_PATH = 8  # in how many steps the steepest descent is followed


@register
@dataclass(frozen=True)
class Stability(WidthDraws):
    r"""The Gram matrix of the feature map at weights $W$ with $\|W - W(0)\| = sR$.

    $R = \sqrt m\lambda_0/(16c\|X\|^2)$ is the radius of Lemma 3.4, with $c = \|W(0)\|/\sqrt m$ and
    $\lambda_0 = \lambda_{\min}(G^\infty)$: within it, $\|G - G(0)\| \le \lambda_0/4$ and
    $\lambda_{\min}(G) \ge \lambda_0/2$ if $\lambda_{\min}(G(0)) \ge \frac34\lambda_0$. ``random``:
    Gaussian directions. ``steepest``: along the steepest descent of $\lambda_{\min}(G)$ in the
    spectral norm, in several steps.

    Args:
        widths: The widths $m$.
        draws: How many networks are drawn for each.
        factors: $s$, ascending.
        samples: $n$.
        features: The dimension of the inputs.
        seed: Of the inputs.
    """

    name: ClassVar[tuple[str, str]] = ("gao2022", "lemma3.4")
    title: ClassVar[str] = "Least eigenvalues within and beyond the stability radius"

    widths: tuple[int, ...] = (1024, 8192, 65536)
    draws: int = 4
    factors: tuple[float, ...] = tuple(2.0**k for k in range(-1, 9))
    samples: int = 32
    features: int = 64
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Narrow networks, few inputs."""
        return cls(widths=(512, 4096), draws=3, samples=12, features=24)

    def cost(self, point: Point) -> float:
        """The cost of a point: that of singular values."""
        return 1e3 + float(point["width"])

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Any]:
        r"""Least eigenvalues and drifts over $\lambda_0$, for both directions and all factors."""
        x = self.inputs().to(device)
        start = feature_weights(x, int(point["width"]), seed)
        least = float(torch.linalg.eigvalsh(population(x))[0])
        initial = _gram(x, start)
        # sqrt(m) λ_0/(16 c ‖X‖²) with c = ‖W(0)‖/sqrt(m)
        norms = [float(torch.linalg.matrix_norm(matrix, 2)) for matrix in (start, x)]
        radius = len(start) * least / (16 * norms[0] * norms[1] ** 2)
        noise = feature_weights(x, len(start), seed + 1)
        arrays: dict[str, Any] = {
            "radius": radius,
            "initial": float(torch.linalg.eigvalsh(initial)[0]) / least,
        }
        for direction in _DIRECTIONS:
            grams = []
            for factor in self.factors:
                reach = factor * radius
                if direction == "steepest":
                    moved = _descended(x, start, reach)
                else:
                    moved = start + noise * (reach / torch.linalg.matrix_norm(noise, 2))
                grams.append(_gram(x, moved))
            values = [float(torch.linalg.eigvalsh(g)[0]) for g in grams]
            drifts = [float(torch.linalg.matrix_norm(g - initial, 2)) for g in grams]
            arrays[f"{direction}_least"] = np.array(values) / least
            arrays[f"{direction}_drift"] = np.array(drifts) / least
        return arrays

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        r"""For each width and direction, the extremes at the radius, and the first factor too far.

        ``least`` is the least $\lambda_{\min}(G)/\lambda_0$ at $s = 1$ and below, ``drift`` the
        largest $\|G - G(0)\|/\lambda_0$; ``breaks`` is the smallest factor at which some network
        has $\lambda_{\min}(G) < \lambda_0/2$, left out if there is none.
        """
        summary: dict[str, float] = {}
        factors = np.array(self.factors)
        for width in self.widths:
            found = [r.arrays for r in matching(results, {"width": width})]
            summary[f"{width}_initial"] = min(float(a["initial"]) for a in found)
            for direction in _DIRECTIONS:
                least = np.min([a[f"{direction}_least"] for a in found], axis=0)
                drift = np.max([a[f"{direction}_drift"] for a in found], axis=0)
                broken = factors[least < 0.5]
                name = f"{width}_{direction}"
                summary[f"{name}_least"] = float(least[factors <= 1].min())
                summary[f"{name}_drift"] = float(drift[factors <= 1].max())
                if len(broken):
                    summary[f"{name}_breaks"] = float(broken[0])
        return summary

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """The eigenvalue within the radius, along the steepest way down."""
        least = min(value for key, value in summary.items() if key.endswith("steepest_least"))
        breaks = min(value for key, value in summary.items() if key.endswith("_breaks"))
        claim = Claim(
            "λ_min(G) ≥ λ_0/2 within the radius R",
            "½",
            f"at least {least:.2f}; below ½ first at {breaks:g} R",
            "Gao 2022, Lemma 3.4",
            (Criterion("least λ_min(G)/λ_0 within R at least ½", least, least=0.5),),
            remark="with much room",
        )
        return (claim,)

    def plot(self, results: Sequence[Result]) -> Figure:
        """Least eigenvalues on the left, drifts on the right."""
        figure, (left, right) = new_row(9.6, 3.9)
        self._draw(left, results, "least", (0.5, r"$\lambda_0/2$"))
        left.set_title(r"$\lambda_{\min}(G)\,/\,\lambda_0$")
        self._draw(right, results, "drift", (0.25, r"$\lambda_0/4$"))
        right.set(yscale="log", title=r"$\|G - G(0)\|\,/\,\lambda_0$")
        right.legend(loc="lower right")
        return figure

    def _draw(
        self, axes: Axes, results: Sequence[Result], key: str, bound: tuple[float, str]
    ) -> None:
        for width, color in zip(self.widths, COLORS, strict=False):
            for direction, line in zip(_DIRECTIONS, ("-", "--"), strict=True):
                rows = [r.arrays[f"{direction}_{key}"] for r in matching(results, {"width": width})]
                extreme = np.min(rows, axis=0) if key == "least" else np.max(rows, axis=0)
                label = f"width {width}, {direction}"
                axes.plot(self.factors, extreme, line, color=color, linewidth=1.4, label=label)
        axes.axhline(bound[0], color=GRAY, linewidth=1.2, linestyle=":", label=bound[1])
        axes.axvline(1, color=GRAY, linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xlabel(r"$\|W - W(0)\|\,/\,R$")


def _gram(x: Tensor, weights: Tensor) -> Tensor:
    phi = features_of(x, weights)
    return phi @ phi.T


def _descended(x: Tensor, start: Tensor, reach: float) -> Tensor:
    r"""Weights at most ``reach`` from the start, of a small $\lambda_{\min}(G)$.

    Each step goes along the polar factor of the gradient, the steepest direction in the spectral
    norm; the steps' lengths add up to ``reach``.
    """
    weights = start
    for _ in range(_PATH):
        phi = features_of(x, weights)
        vector = torch.linalg.eigh(phi @ phi.T).eigenvectors[:, 0]
        # λ_min = |φᵀv|², and the derivative of relu is the indicator of φ > 0
        active = (phi > 0).to(x.dtype) * (phi.T @ vector)[None, :]
        gradient = active.T @ (vector[:, None] * x)
        weights = weights - (reach / _PATH) * _polar(gradient)
    return weights


def _polar(tall: Tensor) -> Tensor:
    r"""$M(M^\top M)^{-1/2}$ on the range of $M^\top$, of spectral norm 1."""
    squares, vectors = torch.linalg.eigh(tall.T @ tall)
    kept = squares > _RANK * squares[-1]
    inverse = vectors[:, kept] / squares[kept].sqrt()
    factor: Tensor = tall @ inverse @ vectors[:, kept].T
    return factor
