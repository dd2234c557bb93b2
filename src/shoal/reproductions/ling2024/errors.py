r"""How fast the equivalents approach the exact kernels (Ling 2024, figures 1 and 4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

import shoal
from shoal.architectures import DEQ
from shoal.lab import Claim, Criterion, Point, Result, register
from shoal.lab.experiment import named
from shoal.lab.figures import new_row
from shoal.lab.formatting import short, signed
from shoal.pages.figures import COLORS, Figure
from shoal.reproductions.ling2024.sample_sizes import SampleSizes, make_room
from shoal.reproductions.ling2024.setting import PAPER_GROUPS, Kind, difference_norm, equivalent_of
from shoal.reproductions.ling2024.spectra import Sample

_MATRIX = {"ck": "G", "ntk": "K"}
_PANELS = {"paper": "the form of Ling 2024", "norms": "the form with norms"}


@dataclass(frozen=True)
class _EquivalentError(SampleSizes):
    r"""Relative errors in spectral norm, $\|G^* - \bar G\| / \|G^*\|$, with exact kernels.

    The paper estimates $G^*$ by networks of width $2^{12}$; here it is exact.
    """

    kind: ClassVar[Kind]

    @classmethod
    def quick(cls) -> Self:
        """Two activations, few samples."""
        kinds = (shoal.ReLU(), shoal.Tanh())
        return cls(kinds, samples=(100, 200, 400), trials=1, fit_from=100)

    def cost(self, point: Point) -> float:
        """The cost of a point: that of a Gram matrix, and something for small ones."""
        return 1e9 + float(point["n"]) ** 3

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Any]:
        """The relative errors of each form, and for the NTK also with all weights trained."""
        n, deq = int(point["n"]), self.deq(point)
        mixture = self.mixture(n)
        x, labels = mixture.sample(n, seed)
        sample = Sample(x.to(device), labels, mixture)
        found = self._compare(deq, sample, PAPER_GROUPS, ("norms", "paper"))
        if self.kind == "ntk":
            more = self._compare(deq, sample, deq.parameter_groups, ("norms",))
            found |= named("all", more)
        return found

    def _compare(
        self, deq: DEQ, sample: Sample, groups: tuple[str, ...], forms: tuple[str, ...]
    ) -> dict[str, float]:
        """The errors of some forms, and the norm of the kernel."""
        assert sample.mixture is not None
        centered = shoal.centered(deq, tau0=sample.mixture.tau0)
        exact: Tensor = getattr(shoal.kernel(centered, sample.x, trainable=groups), self.kind)
        found = {"size": difference_norm(exact)}
        for form in forms:
            eq = equivalent_of(form, deq, *sample, trainable=groups)
            error = difference_norm(exact, getattr(eq, self.kind))
            found[form] = error / found["size"]
        return found

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The slopes with 95% intervals, and the mean errors of the largest samples."""
        forms = [form for form in results[0].arrays if not form.endswith("size")]
        laws = [self.laws(results, name, form) for name in self.names for form in forms]
        return {key: value for law in laws for key, value in law.items()}

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """The theorem's rate, for the paper's form with corrected coefficients."""
        names = [f"{name}_paper" for name in self.names]
        slopes = [summary[f"{name}_slope"] for name in names]
        highest = max(summary[f"{name}_slope_high"] for name in names)
        errors = [100 * summary[f"{name}_error"] for name in names]
        claim = Claim(
            f"Errors of {self.kind.upper()} equivalents fall with n",
            "a figure; the theorem says n^(−1/2)",
            f"slopes {signed(max(slopes))} to {signed(min(slopes))}, "
            f"{short(min(errors))}% to {short(max(errors))}% at n = 6400",
            f"Ling 2024, Figure {self.name[1][-1]}",
            (Criterion("upper ends of all slopes' intervals at most −0.5", highest, most=-0.5),),
            corrected=True,
        )
        return (claim,)

    def plot(self, results: Sequence[Result]) -> Figure:
        """Means and standard deviations against $n$ for each activation; the paper's form first."""
        from matplotlib.ticker import FuncFormatter, NullFormatter

        figure, panels = new_row(9.2, 4.6, len(_PANELS), sharey=True)
        for axes, (form, title) in zip(panels, _PANELS.items(), strict=True):
            for name, color in zip(self.names, COLORS, strict=False):
                self.draw_errors(axes, results, name, form, color=color)
            axes.set_title(title)
            self.label_axes(axes, 3.0)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        make_room(panels[0])
        letter = _MATRIX[self.kind]
        panels[0].set_ylabel(
            rf"relative error $\|{letter}^* - \bar{{{letter}}}\| \, / \, \|{letter}^*\|$"
        )
        return figure


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
