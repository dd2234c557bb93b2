r"""Theorems 3 to 5: Gram matrices of $l$ layers against those of infinitely many."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal import data
from shoal.architectures import DEQ
from shoal.gaussian import dual
from shoal.lab import Claim, Criterion, Point, Result, matching, register
from shoal.lab.descent import network_for
from shoal.lab.figures import new_row
from shoal.lab.fits import power_law, spread
from shoal.networks import EquilibriumNetwork
from shoal.pages.figures import COLORS, GRAY, Axes, Figure
from shoal.reproductions.width_errors import WidthDraws

_ENOUGH = 200  # layers that stand for infinitely many: ‖W‖ is about 0.8

_TITLES = {
    "population": r"Theorem 3: $\|K - K^{(l)}\|_F$",
    "tied": r"Theorem 4: $\|G - G^{(l)}\|_F\,/\,m$",
    "finite": r"Theorem 5: $\|G^{(l)}/m - K^{(l)}\|_F$",
}


@register
@dataclass(frozen=True)
class Depth(WidthDraws):
    r"""How fast $G^{(l)}$ and its population matrix $K^{(l)}$ converge in the depth $l$.

    $Z^{(l)} = \phi(WZ^{(l-1)} + UX)$ from $Z^{(0)} = 0$, $G^{(l)} = Z^{(l)\top}Z^{(l)}$. What the
    paper proves, and what is asymptotically true:

    - Theorem 3: $\|K - K^{(l)}\|_F = O(nl\sigma_w^{2l})$. The rate is $\sigma_w^2$, without the
      $l$: off the diagonal $K_{ij}$ contracts by $\sigma_w^2 Q' < \sigma_w^2$.
    - Theorem 4: $\|G - G^{(l)}\|_F/m = O(n(2\sqrt2\sigma_w)^l)$. The rate is at first that of
      Theorem 3, and then $\sigma_w$, the spectral radius of $DW$ with the slopes $D$, of which half
      are one (circular law); that part falls about like $m^{-1/2}$.
    - Theorem 5: $\|G^{(l)}/m - K^{(l)}\|_F \le n(2\sqrt2\sigma_w)^l$ with a probability that
      becomes void as $l$ grows. At one width it does not fall with the depth at all; it falls like
      $m^{-1/2}$.

    Args:
        widths: The widths $m$.
        draws: How many networks are drawn for each.
        layers: The largest depth.
        samples: $n$.
        features: $d$.
        weight_variance: $\sigma_w^2$.
        seed: Of the inputs.
    """

    name: ClassVar[tuple[str, str]] = ("ling2023", "depth")
    title: ClassVar[str] = "Convergence of Gram matrices in the depth (Theorems 3 to 5)"

    widths: tuple[int, ...] = (256, 1024, 4096)
    draws: int = 8
    layers: int = 16
    samples: int = 32
    features: int = 64
    weight_variance: float = 0.08
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Narrow networks, few inputs."""
        return cls(widths=(128, 256, 512), draws=4, samples=12, features=24)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Any]:
        """The three distances at each depth from 1 on."""
        x = data.sphere(self.samples, self.features, seed=self.seed, dtype=torch.float64).x
        x, width = x.to(device), int(point["width"])
        deq = DEQ.ling2023(self.weight_variance, self.features)
        net = network_for(deq, x, width=width, seed=seed)
        assert isinstance(net, EquilibriumNetwork)  # it is that of a DEQ
        found = _layers(net.get_parameter("recurrent").detach(), net.inject(x).detach())
        limits, limit = self._population(x), shoal.kernel(deq, x).ck
        grams = [z @ z.T / width for z in found]
        pairs = list(zip(grams[: self.layers], limits, strict=True))
        return {
            "population": [float((limit - k).norm()) for _, k in pairs],
            "tied": [float((grams[-1] - g).norm()) for g, _ in pairs],
            "finite": [float((g - k).norm()) for g, k in pairs],
        }

    def _population(self, x: Tensor) -> list[Tensor]:
        """$K^{(l)}$ for each depth (Definition 1)."""
        injection = 2 * x @ x.T / self.features
        found, kernel = [], torch.zeros_like(injection)
        for _ in range(self.layers):
            covariance = 2 * self.weight_variance * kernel + injection
            own = covariance.diagonal()
            kernel = dual(shoal.ReLU(), own[:, None], own[None, :], covariance)
            found.append(kernel)
        return found

    def bounds(self) -> Mapping[str, Any]:
        """The rates of the paper's bounds, with constants that make them touch the first layer."""
        depths = np.arange(1, self.layers + 1)
        contraction = (8 * self.weight_variance) ** (depths / 2)
        population = depths * self.weight_variance**depths
        return {"population": population, "tied": contraction, "finite": contraction}

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        r"""Rates per layer, and slopes against the width at half of the depth.

        The rate of Theorem 3 is taken over the second quarter of the depths, before rounding
        matters, that of Theorem 4 over the second half. ``..._predicted`` is what they should be,
        ``finite_depth`` the largest depth at which all networks of a width keep the bound of
        Theorem 5.
        """
        root, middle = math.sqrt(self.weight_variance), self.layers // 2
        summary = {
            "population_rate": _rate(results[0].arrays["population"][self.layers // 4 : middle]),
            "population_rate_predicted": self.weight_variance,
            "tied_rate_predicted": root,
            "paper_rate": math.sqrt(8) * root,
        }
        for width in self.widths:
            found = matching(results, {"width": width})
            tied = np.exp(np.mean([np.log(r.arrays["tied"]) for r in found], axis=0))
            summary[f"{width}_tied_rate"] = _rate(tied[middle:])
            errors = np.array([r.arrays["finite"] for r in found])
            kept = np.all(errors <= self.samples * self.bounds()["finite"], axis=0)
            summary[f"{width}_finite_depth"] = float(np.argmin(np.append(kept, [False])))
            summary[f"{width}_finite"] = float(errors[:, -1].mean())
        widths = [float(r.point["width"]) for r in results]
        for key in ("tied", "finite"):
            law = power_law(widths, [float(r.arrays[key][middle - 1]) for r in results])
            summary |= law.numbers(key)
        return summary

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """The rates of Theorems 3 and 4."""
        population, tied = summary["population_rate"], summary[f"{self.widths[-1]}_tied_rate"]
        predicted, bound = summary["population_rate_predicted"], summary["paper_rate"]
        claim = Claim(
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
        return (claim,)

    def plot(self, results: Sequence[Result]) -> Figure:
        """A panel for each theorem."""
        figure, panels = new_row(12.2, 3.9, 3)
        for axes, key in zip(panels, _TITLES, strict=True):
            self._draw(axes, key, results)
        return figure

    def _draw(self, axes: Axes, key: str, results: Sequence[Result]) -> None:
        depths = np.arange(1, self.layers + 1)
        for width, color in zip(self.widths, COLORS, strict=False):
            mean = spread(matching(results, {"width": width}), key)[0]
            if key == "population":
                axes.plot(depths, mean, "o-", color=color, markersize=3, label="$K$")
                break
            axes.plot(depths, mean, "o-", color=color, markersize=3, label=f"width {width}")
        first = results[0].arrays[key][0]
        bound, words = self.bounds()[key], "as the paper bounds it"
        scale = self.samples if key == "finite" else first / bound[0]
        axes.plot(depths, scale * bound, "--", color=GRAY, linewidth=1.2, label=words)
        rates = {"population": self.weight_variance, "tied": math.sqrt(self.weight_variance)}
        if key in rates:  # through the middle of the depths
            middle = self.layers // 2
            line = mean[middle - 1] * rates[key] ** (depths - middle)
            axes.plot(depths, line, ":", color=GRAY, linewidth=1.6, label="predicted rate")
        axes.set(yscale="log", xlabel="layers $l$", title=_TITLES[key])
        axes.set_ylim(0.3 * mean.min())
        axes.legend()


def _layers(recurrent: Tensor, injection: Tensor) -> list[Tensor]:
    """$Z^{(1)}, Z^{(2)}$, and so on, one row for each input."""
    found = [injection.relu()]
    while len(found) < _ENOUGH:
        found.append((found[-1] @ recurrent.T + injection).relu())
    return found


def _rate(errors: Any) -> float:
    """The factor per layer, fitted to the logarithms."""
    return float(np.exp(np.polyfit(np.arange(len(errors)), np.log(errors), 1)[0]))
