"""How near designed networks are to DEQs (Ling 2024, figure 2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import torch

import shoal
from shoal.activations import Activation
from shoal.architectures import DEQ, FullyConnected
from shoal.lab import Claim, Point, Result, register
from shoal.lab.claims import each
from shoal.lab.figures import new_row
from shoal.lab.formatting import interval
from shoal.pages.figures import COLORS, Axes, Figure
from shoal.reproductions.deqs import title_of
from shoal.reproductions.ling2024.sample_sizes import SampleSizes, make_room
from shoal.reproductions.ling2024.setting import Kind, difference_norm

_REACH = 4.0  # of the activations that are shown, in units of tau0
_WORDS = {"hard_tanh": "hard tanh", "leaky_relu": "leaky ReLU", "sinusoid": "sinusoid"}
_TITLES = {"ck": "conjugate kernels", "ntk": "tangent kernels, all weights trained"}


@lru_cache(maxsize=64)
def cached_design(deq: DEQ, tau0: float, kind: Kind, family: str) -> shoal.Design:
    """A design by moments; trials with the same mixture have it in common."""
    return shoal.design(deq, tau0=tau0, match=kind, method=shoal.MomentMatching(family=family))


@register
@dataclass(frozen=True)
class DesignError(SampleSizes):
    r"""Figure 2: relative errors of designed networks, $\|G^* - \Sigma\| / \|G^*\|$, exact kernels.

    The designs are for both kernels of the centered DEQ, the NTK being that of all weights.

    Args:
        families: Of the designs: which are computed for ``"relu_ck"``, ``"relu_ntk"`` and so on.
            The paper has leaky ReLUs and hard tanh for the conjugate kernels.
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

    @classmethod
    def quick(cls) -> Self:
        """Few samples, and the families of the paper."""
        families = (
            ("relu_ck", ("leaky_relu",)),
            ("relu_ntk", ("sinusoid",)),
            ("tanh_ck", ("hard_tanh",)),
            ("tanh_ntk", ("hard_tanh",)),
        )
        return cls(families=families, samples=(100, 400), trials=2, fit_from=100)

    def cost(self, point: Point) -> float:
        """The cost of a point: that of Gram matrices, and of designing."""
        return 5e10 + float(point["n"]) ** 3

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, float]:
        """The relative errors of all designs of one DEQ."""
        n, name, deq = int(point["n"]), str(point["activation"]), self.deq(point)
        mixture = self.mixture(n)
        x = mixture.sample(n, seed)[0].to(device)
        exact = shoal.kernel(shoal.centered(deq, tau0=mixture.tau0), x)
        sizes = {"ck": difference_norm(exact.ck), "ntk": difference_norm(exact.ntk)}
        found = {f"{kind}_size": size for kind, size in sizes.items()}
        for kind, family in self._designs(name):
            design = cached_design(deq, mixture.tau0, kind, family)
            designed = shoal.kernel(design.architecture, x)
            difference = getattr(designed, kind) - getattr(exact, kind)
            del designed  # two matrices less while the norm is sought
            found[f"{kind}_{family}"] = difference_norm(difference) / sizes[kind]
        return found

    def _designs(self, name: str) -> list[tuple[Kind, str]]:
        """Kernels and families of the designs of one DEQ."""
        families: Mapping[str, tuple[str, ...]] = dict(self.families)
        kinds: tuple[Kind, Kind] = ("ck", "ntk")
        return [(k, family) for k in kinds for family in families.get(f"{name}_{k}", ())]

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The slopes with 95% intervals, and the mean errors of the largest samples."""
        designs = [(name, *design) for name in self.names for design in self._designs(name)]
        laws = [self.laws(results, name, f"{kind}_{family}") for name, kind, family in designs]
        return {key: value for law in laws for key, value in law.items()}

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """The rate of the paper's own designs, which are for conjugate kernels."""
        designs = {"ReLU": "relu_ck_leaky_relu_slope", "Tanh": "tanh_ck_hard_tanh_slope"}
        ends = {name: summary[f"{key}_high"] for name, key in designs.items()}
        claim = Claim(
            "Errors of designed networks fall with n",
            "a figure; the examples say n^(−1/2)",
            ", ".join(f"{name} {interval(summary, key)}" for name, key in designs.items()),
            "Ling 2024, Figure 2",
            each("{}: upper end of the slope at most −0.5", ends, most=-0.5),
            corrected=True,
        )
        return (claim,)

    def plot(self, results: Sequence[Result]) -> Figure:
        """Activations, then the errors of the designs for each kernel."""
        figure, (left, *panels) = new_row(13.0, 4.4, 3)
        self._draw_activations(left)
        kinds: tuple[Kind, Kind] = ("ck", "ntk")
        for axes, kind in zip(panels, kinds, strict=True):
            self._draw_errors(axes, results, kind)
        panels[0].set_ylabel(r"relative error $\|G^* - \Sigma\| \, / \, \|G^*\|$")
        return figure

    def _draw_activations(self, axes: Axes) -> None:
        """Draw the DEQs' activations, dashed, and those of the first designs for their CKs."""
        tau0 = self.mixture(max(self.samples)).tau0
        x = torch.linspace(-_REACH, _REACH, 801, dtype=torch.float64) * tau0
        for name, color in zip(self.names, COLORS, strict=False):
            deq = self.deq({"activation": name})
            centered = shoal.centered(deq, tau0=tau0)
            assert isinstance(centered, DEQ)  # centering shifts the activation alone
            label = title_of(deq.activations[0])
            axes.plot(x, centered.activations[0](x), "--", color=color, label=label)
            chosen = [family for kind, family in self._designs(name) if kind == "ck"]
            if not chosen:
                continue
            designed = cached_design(deq, tau0, "ck", chosen[0]).architecture
            assert isinstance(designed, FullyConnected)
            for layer, sigma in enumerate(designed.activations, start=1):
                place = f", layer {layer}" if designed.depth > 1 else ""
                label = f"its {_WORDS[chosen[0]]} design{place}"
                line = ("-", ":")[layer - 1]
                axes.plot(x, sigma(x), line, color=color, linewidth=1.6, label=label)
        axes.set(title="activations, of DEQs (dashed) and CK designs", xlabel="$x$")
        axes.legend(loc="upper left")

    def _draw_errors(self, axes: Axes, results: Sequence[Result], kind: Kind) -> None:
        for name, color in zip(self.names, COLORS, strict=False):
            families = [family for k, family in self._designs(name) if k == kind]
            for family, mark in zip(families, ("o-", "s:"), strict=False):
                label = f" → {_WORDS[family]}"
                self.draw_errors(
                    axes, results, name, f"{kind}_{family}", fmt=mark, color=color, label=label
                )
        self.label_axes(axes, 1.5)
        axes.set_title(_TITLES[kind])
        make_room(axes)
