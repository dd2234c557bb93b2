"""Spectra of kernels and of their equivalents on the mixture (Ling 2024, figures 5 and 6, left)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

import shoal
from shoal.lab.claims import Claim
from shoal.lab.experiment import Arrays, Point
from shoal.lab.registry import register
from shoal.pages.figures import Axes
from shoal.reproductions.ling2024.comparison import Comparison, equivalent_claim
from shoal.reproductions.ling2024.histograms import draw_equivalent
from shoal.reproductions.ling2024.mixture_trials import MixtureTrials
from shoal.reproductions.ling2024.setting import FORMS, PAPER_GROUPS, Kind

__all__ = ["CKSpectra", "NTKSpectra"]


@dataclass(frozen=True)
class _MixtureSpectra(MixtureTrials):
    """Eigenvalues and absolute errors in spectral norm, with exact and estimated kernels."""

    kind: ClassVar[Kind]
    norms: ClassVar[tuple[str, ...]] = (
        "exact_paper",
        "exact_norms",
        "exact_measured",
        "estimate_paper",
        "estimate_norms",
        "noise",
        "size",
    )

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """The printed errors of the paper's form."""
        found = {name: summary[f"{name}_exact_paper"] for name in self.printed}
        words = ", ".join(f"{value:.2f}" for value in found.values())
        remark = "neither σ_b nor the number of networks is stated"
        return (equivalent_claim(self.kind, "mixture", self.printed, found, words, remark),)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """Errors, eigenvalues and the predicted density of one sample."""
        mixture = shoal.GaussianMixture.ling2024(self.features)
        x, labels = mixture.sample(self.samples, seed)
        deq = self.deq(point)
        comparison = Comparison(self.kind, FORMS, self.width)
        found = comparison.arrays(deq, x.to(device), labels, seed=seed, mixture=mixture)
        spectra = shoal.spectrum(
            deq, mixture, n=self.samples, trainable=PAPER_GROUPS, tau0=mixture.tau0
        )
        predicted = getattr(spectra, self.kind)
        grid = np.concatenate([np.linspace(low, high, 400) for low, high in predicted.edges])
        return found | {
            "grid": grid,
            "density": predicted.density(grid),
            "spikes": np.array([spike.value for spike in predicted.spikes]),
        }

    def draw(self, axes: Axes, arrays: Arrays) -> None:
        """Histograms, and the predicted density."""
        draw_equivalent(axes, arrays, logarithmic=False)

    def headline(self, arrays: Arrays) -> str:
        """The errors of both forms, and that against an estimated kernel."""
        paper, norms, estimate = (
            float(arrays[key]) for key in ("exact_paper", "exact_norms", "estimate_paper")
        )
        return f"error {paper:.2f}, with norms {norms:.2f}; estimated {estimate:.2f}"


@register
@dataclass(frozen=True)
class CKSpectra(_MixtureSpectra):
    """Figure 5, left: conjugate kernels on the Gaussian mixture."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "figure5")
    title: ClassVar[str] = "Eigenvalues of conjugate kernels and of their equivalents, mixture"
    kind: ClassVar[Kind] = "ck"
    printed: ClassVar[Mapping[str, float]] = {"relu": 0.26, "tanh": 0.81}


@register
@dataclass(frozen=True)
class NTKSpectra(_MixtureSpectra):
    """Figure 6, left: tangent kernels on the Gaussian mixture."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "figure6")
    title: ClassVar[str] = "Eigenvalues of tangent kernels and of their equivalents, mixture"
    kind: ClassVar[Kind] = "ntk"
    printed: ClassVar[Mapping[str, float]] = {"relu": 0.34, "tanh": 0.76}
