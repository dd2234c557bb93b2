"""Spectra of DEQs and of the networks designed for them (Ling 2024, figure 7)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

import shoal
from shoal.lab.claims import Claim, Criterion
from shoal.lab.experiment import Arrays, Point, Result
from shoal.lab.formatting import short
from shoal.lab.registry import register
from shoal.pages.figures import Axes
from shoal.reproductions.ling2024.design_pairs import NORMS, compare_with_design, draw_pair
from shoal.reproductions.ling2024.image_trials import ImageTrials
from shoal.reproductions.ling2024.mixture_trials import MixtureTrials
from shoal.reproductions.ling2024.setting import by_name

__all__ = ["DesignImageSpectra", "DesignSpectra"]


@register
@dataclass(frozen=True)
class DesignSpectra(MixtureTrials):
    """Figure 7, left: conjugate kernels of DEQs and of their designs on the Gaussian mixture.

    Args:
        families: Of the designs, one for each activation.
    """

    name: ClassVar[tuple[str, str]] = ("ling2024", "figure7")
    title: ClassVar[str] = "Eigenvalues of DEQs and of their designs, mixture"
    norms: ClassVar[tuple[str, ...]] = NORMS
    printed: ClassVar[Mapping[str, float]] = {"relu": 0.32, "tanh": 0.88}

    families: tuple[str, ...] = ("leaky_relu", "hard_tanh")

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """Norms and eigenvalues of one sample."""
        mixture = shoal.GaussianMixture.ling2024(self.features)
        x = mixture.sample(self.samples, seed)[0].to(device)
        family = self.families[list(by_name(self.activations)).index(str(point["activation"]))]
        return compare_with_design(
            self.deq(point), family, x, tau0=mixture.tau0, width=self.width, seed=seed
        )

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """Also the mean difference relative to the mean size."""
        return _with_relative(super().summarize(results))

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """Designs are as near as printed, or nearer."""
        return (_claim(summary, self.printed, "mixture", ""),)

    def draw(self, axes: Axes, arrays: Arrays) -> None:
        """Both histograms."""
        draw_pair(axes, arrays, logarithmic=False)

    def headline(self, arrays: Arrays) -> str:
        """The difference of the exact kernels, and of estimated ones."""
        exact, estimate = (float(arrays[key]) for key in NORMS[:2])
        return f"$\\|G^* - \\Sigma\\|$ = {exact:.2g}, estimated {estimate:.2f}"


@register
@dataclass(frozen=True)
class DesignImageSpectra(ImageTrials):
    """Figure 7, right: the same for two digits of MNIST and several preprocessings.

    The DEQ is centered, and the design is made, at the images' root mean square norm.

    Args:
        families: Of the designs, one for each activation.
    """

    name: ClassVar[tuple[str, str]] = ("ling2024", "mnist-figure7")
    title: ClassVar[str] = "Eigenvalues of DEQs and of their designs, MNIST"
    norms: ClassVar[tuple[str, ...]] = NORMS
    printed: ClassVar[Mapping[str, float]] = {"relu": 2.34, "tanh": 4.79}

    families: tuple[str, ...] = ("leaky_relu", "hard_tanh")

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:
        """Norms and eigenvalues."""
        x, _ = self.inputs(str(point["preprocessing"]))
        tau0 = float(x.square().sum(1).mean().sqrt())
        family = self.families[list(by_name(self.activations)).index(str(point["activation"]))]
        return compare_with_design(
            self.deq(point), family, x.to(device), tau0=tau0, width=self.width, seed=seed
        )

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """Also the differences relative to the size."""
        return _with_relative(super().summarize(results))

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """Designs are as near as printed, or nearer."""
        return (_claim(summary, self.printed, "MNIST, `pixels`", "pixels_"),)

    def draw(self, axes: Axes, arrays: Arrays) -> None:
        """Both histograms, of logarithms."""
        draw_pair(axes, arrays, logarithmic=True)

    def headline(self, arrays: Arrays) -> str:
        """The difference of the exact kernels, and of estimated ones."""
        exact, estimate = (float(arrays[key]) for key in NORMS[:2])
        return f"difference {exact:.3g}, estimated {estimate:.3g}"


def _claim(
    summary: Mapping[str, float], printed: Mapping[str, float], place: str, kind: str
) -> Claim:
    found = {name: summary[f"{name}_{kind}exact"] for name in printed}
    return Claim(
        f"Error of the designs: ReLU, Tanh, {place}",
        ", ".join(f"{value:.2f}" for value in printed.values()),
        ", ".join(map(short, found.values())),
        "Ling 2024, Figure 7",
        tuple(
            Criterion(
                f"{name}: at most {value:g}, as printed",
                max(v for k, v in summary.items() if k.startswith(name) and k.endswith("_exact")),
                most=value,
            )
            for name, value in printed.items()
        ),
        corrected=True,
        remark="nearer than printed, which has the size of random networks' noise",
    )


def _with_relative(summary: dict[str, float]) -> dict[str, float]:
    """The summary, and each exact difference over its size."""
    names = [key.removesuffix("_exact") for key in summary if key.endswith("_exact")]
    return summary | {f"{n}_relative": summary[f"{n}_exact"] / summary[f"{n}_size"] for n in names}
