"""How near designed networks are to DEQs (Ling 2024, figure 2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch

import shoal
from shoal.activations import Activation
from shoal.architectures import DEQ, FullyConnected
from shoal.experiments.experiment import Arrays, Experiment, Point, Result
from shoal.experiments.figures import COLORS, GRAY, style
from shoal.experiments.fits import PowerLaw, power_law
from shoal.experiments.ling2024.setting import Kind, by_name, matrix_norm, title_of
from shoal.experiments.registry import register

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DesignError", "cached_design"]

_REACH = 4.0  # of the activations that are shown, in units of tau0
_WORDS = {"hard_tanh": "hard tanh", "leaky_relu": "leaky ReLU", "sinusoid": "sinusoid"}
_TITLES = {"ck": "conjugate kernels", "ntk": "tangent kernels, all weights trained"}


@lru_cache(maxsize=64)
def cached_design(deq: DEQ, tau0: float, kind: Kind, family: str) -> shoal.Design:
    """A design by moments; trials with the same mixture have it in common."""
    return shoal.design(deq, tau0=tau0, match=kind, family=family)


@register
@dataclass(frozen=True)
class DesignError(Experiment):
    r"""Figure 2: relative errors of designed networks, $\|G^* - \Sigma\| / \|G^*\|$, exact kernels.

    Each point is one sample of the paper's mixture, one size and one activation. The designs are
    for both kernels of the centered DEQ, the NTK being that of all weights.

    Args:
        activations: Of the DEQs, which are centered.
        families: Of the designs: which are computed for ``"relu_ck"``, ``"relu_ntk"`` and so on.
            The paper has leaky ReLUs and hard tanh for the conjugate kernels.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        samples: The numbers of samples $n$.
        ratio: $p/n$.
        trials: How many samples are drawn for each.
        fit_from: The least $n$ that the power laws are fitted to.
    """

    name: ClassVar[tuple[str, str]] = ("ling2024", "figure2")
    title: ClassVar[str] = "Activations and errors of designed networks against sample size"

    activations: tuple[Activation, ...] = (shoal.ReLU(), shoal.Tanh())
    families: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("relu_ck", ("leaky_relu", "sinusoid")),
        ("relu_ntk", ("sinusoid",)),  # no leaky ReLUs have these coefficients
        ("tanh_ck", ("hard_tanh", "sinusoid")),
        ("tanh_ntk", ("hard_tanh", "sinusoid")),
    )
    recurrent_variance: float = 0.2
    input_variance: float = 0.8
    samples: tuple[int, ...] = (100, 200, 400, 800, 1600, 3200, 6400)
    ratio: float = 0.8
    trials: int = 5
    fit_from: int = 400

    @classmethod
    def quick(cls) -> Self:
        """Few samples, and the families of the paper."""
        families = (
            ("relu_ck", ("leaky_relu",)),
            ("relu_ntk", ("sinusoid",)),
            ("tanh_ck", ("hard_tanh",)),
            ("tanh_ntk", ("hard_tanh",)),
        )
        return cls(families=families, samples=(100, 200, 400), trials=1, fit_from=100)

    def points(self) -> Sequence[Point]:
        """Trial by trial: an interrupted run has something of each."""
        return [
            {"activation": name, "n": n, "trial": trial}
            for trial in range(self.trials)
            for n in self.samples
            for name in by_name(self.activations)
        ]

    def cost(self, point: Point) -> float:
        """That of Gram matrices, and of designing."""
        return 5e10 + float(point["n"]) ** 3

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """The relative errors of all designs of one DEQ."""
        n, name = int(point["n"]), str(point["activation"])
        mixture = shoal.GaussianMixture.ling2024(round(self.ratio * n))
        x = mixture.sample(n, seed)[0].to(device)
        deq = self._deq(name)
        exact = shoal.kernel(shoal.centered(deq, tau0=mixture.tau0), x)
        sizes = {"ck": matrix_norm(exact.ck), "ntk": matrix_norm(exact.ntk)}
        found = {f"{kind}_size": size for kind, size in sizes.items()}
        for kind, family in self._designs(name):
            design = cached_design(deq, mixture.tau0, kind, family)
            designed = shoal.kernel(design.architecture, x)
            difference = getattr(designed, kind) - getattr(exact, kind)
            del designed  # two matrices less while the norm is sought
            found[f"{kind}_{family}"] = matrix_norm(difference) / sizes[kind]
        return {key: np.array(value) for key, value in found.items()}

    def _deq(self, name: str) -> DEQ:
        activation = by_name(self.activations)[name]
        return DEQ(activation, self.recurrent_variance, self.input_variance)

    def _designs(self, name: str) -> list[tuple[Kind, str]]:
        """Kernels and families of the designs of one DEQ."""
        families: Mapping[str, tuple[str, ...]] = dict(self.families)
        kinds: tuple[Kind, Kind] = ("ck", "ntk")
        return [(k, family) for k in kinds for family in families.get(f"{name}_{k}", ())]

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The slopes with 95% intervals, and the mean errors of the largest samples."""
        summary: dict[str, float] = {}
        for name in by_name(self.activations):
            for kind, family in self._designs(name):
                n, errors = _errors(results, name, f"{kind}_{family}")
                law = self._fit(n, errors)
                key = f"{name}_{kind}_{family}"
                summary[f"{key}_slope"] = law.slope
                summary[f"{key}_slope_low"], summary[f"{key}_slope_high"] = law.interval
                summary[f"{key}_error"] = float(errors[n == n.max()].mean())
        return summary

    def plot(self, results: Sequence[Result]) -> "Figure":
        """Activations, then the errors of the designs for each kernel."""
        with style():
            from matplotlib.figure import Figure

            figure = Figure(figsize=(13.0, 4.4))
            left, *panels = figure.subplots(1, 3)
            self._draw_activations(left)
            kinds: tuple[Kind, Kind] = ("ck", "ntk")
            for axes, kind in zip(panels, kinds, strict=True):
                self._draw_errors(axes, results, kind)
            panels[0].set_ylabel(r"relative error $\|G^* - \Sigma\| \, / \, \|G^*\|$")
        return figure

    def _draw_activations(self, axes: "Axes") -> None:
        """Those of the DEQs, dashed, and of the first designs for their conjugate kernels."""
        tau0 = shoal.GaussianMixture.ling2024(round(self.ratio * max(self.samples))).tau0
        x = torch.linspace(-_REACH, _REACH, 801, dtype=torch.float64) * tau0
        for activation, color in zip(self.activations, COLORS, strict=False):
            (name,) = by_name([activation])
            centered = shoal.centered(self._deq(name), tau0=tau0)
            assert isinstance(centered, DEQ)  # centering shifts the activation alone
            axes.plot(x, centered.activation(x), "--", color=color, label=title_of(activation))
            chosen = [family for kind, family in self._designs(name) if kind == "ck"]
            if not chosen:
                continue
            designed = cached_design(self._deq(name), tau0, "ck", chosen[0]).architecture
            assert isinstance(designed, FullyConnected)
            for layer, sigma in enumerate(designed.activations, start=1):
                place = f", layer {layer}" if designed.depth > 1 else ""
                label = f"its {_WORDS[chosen[0]]} design{place}"
                line = ("-", ":")[layer - 1]
                axes.plot(x, sigma(x), line, color=color, linewidth=1.6, label=label)
        axes.set_title("activations, of DEQs (dashed) and CK designs")
        axes.set_xlabel("$x$")
        axes.legend(loc="upper left")

    def _draw_errors(self, axes: "Axes", results: Sequence[Result], kind: Kind) -> None:
        from matplotlib.ticker import NullFormatter

        for activation, color in zip(self.activations, COLORS, strict=False):
            (name,) = by_name([activation])
            families = [family for k, family in self._designs(name) if k == kind]
            for family, mark in zip(families, ("o-", "s:"), strict=False):
                n, errors = _errors(results, name, f"{kind}_{family}")
                law = self._fit(n, errors)
                low, high = law.interval
                label = f"{title_of(activation)} → {_WORDS[family]}: "
                label += f"{law.slope:.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
                _error_bars(axes, n, errors, fmt=mark, color=color, label=label)
        ends = np.array([min(self.samples), max(self.samples)], dtype=np.float64)
        axes.plot(ends, 1.5 / np.sqrt(ends), "--", color=GRAY, linewidth=1.1, label="slope $−1/2$")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(self.samples, [f"{n}" for n in self.samples])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("samples $n$")
        axes.set_title(_TITLES[kind])
        low, high = axes.get_ylim()
        axes.set_ylim(low * (low / high) ** 0.6, high)  # room for the legend
        axes.legend(loc="lower left", title=f"slopes and 95% intervals, $n ≥ {self.fit_from}$")

    def _fit(self, n: Any, errors: Any) -> PowerLaw:
        kept = n >= self.fit_from
        return power_law(n[kept], errors[kept])


def _errors(results: Sequence[Result], activation: str, key: str) -> tuple[Any, Any]:
    """Sizes and errors of all points of one activation."""
    chosen = [result for result in results if result.point["activation"] == activation]
    n = np.array([result.point["n"] for result in chosen], dtype=np.float64)
    return n, np.array([float(result.arrays[key]) for result in chosen])


def _error_bars(axes: "Axes", n: Any, errors: Any, **options: Any) -> None:
    """Means and standard deviations against the size."""
    levels = np.unique(n)
    means = np.array([errors[n == level].mean() for level in levels])
    spread = np.array([errors[n == level].std() for level in levels])
    lengths = np.minimum(spread, 0.9 * means)
    axes.errorbar(levels, means, lengths, markersize=4, linewidth=1.2, capsize=2, **options)
