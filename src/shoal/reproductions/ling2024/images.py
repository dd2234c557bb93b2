"""Spectra of kernels and of their equivalents on MNIST (Ling 2024, figures 5 and 6, right)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from shoal.lab.claims import Claim
from shoal.lab.experiment import Arrays, Point
from shoal.lab.formatting import short
from shoal.lab.registry import register
from shoal.pages.figures import Axes
from shoal.reproductions.ling2024.comparison import Comparison, equivalent_claim
from shoal.reproductions.ling2024.histograms import draw_equivalent
from shoal.reproductions.ling2024.image_trials import ImageTrials
from shoal.reproductions.ling2024.setting import Kind

__all__ = ["CKImageSpectra", "NTKImageSpectra"]


@dataclass(frozen=True)
class _ImageSpectra(ImageTrials):
    """Like those on the mixture, for two digits and several preprocessings.

    The mixture is not known: the form of the paper takes its constants from estimates, that with
    norms (``measured``) from the samples.
    """

    kind: ClassVar[Kind]
    norms: ClassVar[tuple[str, ...]] = (
        "exact_paper",
        "exact_measured",
        "estimate_paper",
        "noise",
        "size",
    )

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """The printed errors of the paper's form, for the preprocessing that is nearest."""
        best = {name: summary[f"{name}_centered-unit_exact_paper"] for name in self.printed}
        words = ", ".join(short(value, 3) for value in best.values())
        words += " at best, with σ_b² = 0.8"
        remark = "neither the scaling of images nor σ_b is stated; nearer with σ_b² = 0.2"
        return (equivalent_claim(self.kind, "MNIST", self.printed, best, words, remark),)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """Errors and eigenvalues."""
        x, labels = self.inputs(str(point["preprocessing"]))
        comparison = Comparison(self.kind, ("paper", "measured"), self.width)
        return comparison.arrays(self.deq(point), x.to(device), labels, seed=seed)

    def draw(self, axes: Axes, arrays: Arrays) -> None:
        """Histograms of logarithms."""
        draw_equivalent(axes, arrays, logarithmic=True)

    def headline(self, arrays: Arrays) -> str:
        """The errors of both forms."""
        paper, norms = (float(arrays[key]) for key in ("exact_paper", "exact_measured"))
        return f"error {paper:.3g}, with norms {norms:.3g}"


@register
@dataclass(frozen=True)
class CKImageSpectra(_ImageSpectra):
    """Figure 5, right: conjugate kernels on two digits of MNIST."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "mnist-figure5")
    title: ClassVar[str] = "Eigenvalues of conjugate kernels and of their equivalents, MNIST"
    kind: ClassVar[Kind] = "ck"
    printed: ClassVar[Mapping[str, float]] = {"relu": 1.80, "tanh": 2.02}


@register
@dataclass(frozen=True)
class NTKImageSpectra(_ImageSpectra):
    """Figure 6, right: tangent kernels on two digits of MNIST."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "mnist-figure6")
    title: ClassVar[str] = "Eigenvalues of tangent kernels and of their equivalents, MNIST"
    kind: ClassVar[Kind] = "ntk"
    printed: ClassVar[Mapping[str, float]] = {"relu": 3.93, "tanh": 4.82}
