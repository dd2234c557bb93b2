r"""How fast the equivalents approach the exact kernels (Ling 2024, figures 1 and 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.experiments.experiment import Arrays, Experiment, Point, Result
from shoal.experiments.figures import COLORS, GRAY, style
from shoal.experiments.fits import PowerLaw, power_law
from shoal.experiments.ling2024.setting import (
    PAPER_GROUPS,
    Kind,
    by_name,
    difference_norm,
    equivalent_of,
    matrix_norm,
    title_of,
)
from shoal.experiments.registry import register

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CKError", "NTKError"]

_MATRIX = {"ck": "G", "ntk": "K"}
_PANELS = {"paper": "the form of Ling 2024", "norms": "the form with norms"}


@dataclass(frozen=True)
class _EquivalentError(Experiment):
    r"""Relative errors in spectral norm, $\|G^* - \bar G\| / \|G^*\|$, with exact kernels.

    The paper estimates $G^*$ by networks of width $2^{12}$; here it is exact. Each point is one
    sample of the paper's mixture, one size and one activation.

    Args:
        activations: Of the DEQs, which are centered. The paper does not say the slope of its leaky
            ReLU; 0.1 is ours.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        samples: The numbers of samples $n$.
        ratio: $p/n$.
        trials: How many samples are drawn for each.
        fit_from: The least $n$ that the power laws are fitted to.
    """

    kind: ClassVar[Kind]

    activations: tuple[Activation, ...] = (
        shoal.ReLU(),
        shoal.Tanh(),
        shoal.Swish(),
        shoal.LeakyReLU(0.1),
    )
    recurrent_variance: float = 0.2
    input_variance: float = 0.8
    samples: tuple[int, ...] = (100, 200, 400, 800, 1600, 3200, 6400)
    ratio: float = 0.8
    trials: int = 5
    fit_from: int = 400

    @classmethod
    def quick(cls) -> Self:
        """Two activations, few samples."""
        kinds = (shoal.ReLU(), shoal.Tanh())
        return cls(kinds, samples=(100, 200, 400), trials=1, fit_from=100)

    def points(self) -> Sequence[Point]:
        """Trial by trial: an interrupted run has something of each."""
        return [
            {"activation": name, "n": n, "trial": trial}
            for trial in range(self.trials)
            for n in self.samples
            for name in by_name(self.activations)
        ]

    def cost(self, point: Point) -> float:
        """That of a Gram matrix, and something for small ones."""
        return 1e9 + float(point["n"]) ** 3

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """The relative errors of each form, and for the NTK also with all weights trained."""
        n = int(point["n"])
        mixture = shoal.GaussianMixture.ling2024(round(self.ratio * n))
        x, labels = mixture.sample(n, seed)
        x = x.to(device)
        activation = by_name(self.activations)[str(point["activation"])]
        deq = DEQ(activation, self.recurrent_variance, self.input_variance)
        found = self._compare(deq, x, labels, mixture, PAPER_GROUPS, ("norms", "paper"))
        if self.kind == "ntk":
            groups = deq.parameter_groups
            more = self._compare(deq, x, labels, mixture, groups, ("norms",))
            found |= {f"all_{key}": error for key, error in more.items()}
        return {key: np.array(error) for key, error in found.items()}

    def _compare(
        self,
        deq: DEQ,
        x: Tensor,
        labels: Tensor,
        mixture: shoal.GaussianMixture,
        groups: tuple[str, ...],
        forms: tuple[str, ...],
    ) -> dict[str, float]:
        """The errors of some forms, and the norm of the kernel."""
        centered = shoal.centered(deq, tau0=mixture.tau0)
        exact: Tensor = getattr(shoal.kernel(centered, x, trainable=groups), self.kind)
        found = {"size": matrix_norm(exact)}
        for form in forms:
            eq = equivalent_of(form, deq, x, labels, mixture=mixture, trainable=groups)
            error = difference_norm(exact, getattr(eq, self.kind).__matmul__)
            found[form] = error / found["size"]
        return found

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The slopes with 95% intervals, and the mean errors of the largest samples."""
        summary: dict[str, float] = {}
        for name in by_name(self.activations):
            for form in (f for f in results[0].arrays if not f.endswith("size")):
                n, errors = _errors(results, name, form)
                law = self._fit(n, errors)
                key = f"{name}_{form}"
                summary[f"{key}_slope"] = law.slope
                summary[f"{key}_slope_low"], summary[f"{key}_slope_high"] = law.interval
                summary[f"{key}_error"] = float(errors[n == n.max()].mean())
        return summary

    def plot(self, results: Sequence[Result]) -> "Figure":
        """Means and standard deviations against $n$ for each activation; the paper's form first."""
        with style():
            from matplotlib.figure import Figure

            figure = Figure(figsize=(9.2, 4.6))
            panels = figure.subplots(1, len(_PANELS), sharey=True)
            for axes, (form, title) in zip(panels, _PANELS.items(), strict=True):
                for activation, color in zip(self.activations, COLORS, strict=False):
                    self._draw(axes, results, activation, form, color)
                axes.set_title(title)
                self._decorate(axes)
            low, high = panels[0].get_ylim()
            panels[0].set_ylim(low * (low / high) ** 0.6, high)  # room for the legends
            letter = _MATRIX[self.kind]
            panels[0].set_ylabel(
                rf"relative error $\|{letter}^* - \bar{{{letter}}}\| \, / \, \|{letter}^*\|$"
            )
        return figure

    def _fit(self, n: Any, errors: Any) -> PowerLaw:
        kept = n >= self.fit_from
        return power_law(n[kept], errors[kept])

    def _draw(
        self, axes: "Axes", results: Sequence[Result], activation: Activation, form: str, color: str
    ) -> None:
        (name,) = by_name([activation])
        n, errors = _errors(results, name, form)
        law = self._fit(n, errors)
        low, high = law.interval
        label = f"{title_of(activation)}: {law.slope:.2f} [{low:.2f}, {high:.2f}]"
        levels = np.unique(n)
        means = np.array([errors[n == level].mean() for level in levels])
        spread = np.array([errors[n == level].std() for level in levels])
        axes.errorbar(
            levels,
            means,
            np.minimum(spread, 0.9 * means),
            color=color,
            fmt="o-",
            markersize=4,
            linewidth=1.2,
            capsize=2,
            label=label.replace("-", "−"),
        )

    def _decorate(self, axes: "Axes") -> None:
        from matplotlib.ticker import FuncFormatter, NullFormatter

        ends = np.array([min(self.samples), max(self.samples)], dtype=np.float64)
        axes.plot(ends, 3.0 / np.sqrt(ends), "--", color=GRAY, linewidth=1.1, label="slope $-1/2$")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(self.samples, [f"{n}" for n in self.samples])
        axes.set_xlabel("samples $n$")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.legend(loc="lower left", title=f"slopes and 95% intervals, $n ≥ {self.fit_from}$")


@register
@dataclass(frozen=True)
class CKError(_EquivalentError):
    """Figure 1: the error of the conjugate kernel's equivalent against the number of samples."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "figure1")
    title: ClassVar[str] = "Error of the equivalents of conjugate kernels against sample size"
    kind: ClassVar[Kind] = "ck"


@register
@dataclass(frozen=True)
class NTKError(_EquivalentError):
    """Figure 4: the same for the NTK of the paper, and (``all_``) with all weights trained."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "figure4")
    title: ClassVar[str] = "Error of the equivalents of tangent kernels against sample size"
    kind: ClassVar[Kind] = "ntk"


def _errors(results: Sequence[Result], activation: str, form: str) -> tuple[Any, Any]:
    """Sizes and errors of all points of one activation."""
    chosen = [result for result in results if result.point["activation"] == activation]
    n = np.array([result.point["n"] for result in chosen], dtype=np.float64)
    return n, np.array([float(result.arrays[form]) for result in chosen])
