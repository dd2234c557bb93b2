"""Spectra of DEQs and of the networks designed for them (Ling 2024, figure 7)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

import shoal
from shoal.architectures import DEQ
from shoal.lab import Arrays, Claim, Criterion, Result, register
from shoal.lab.descent import features, network_for
from shoal.lab.formatting import short
from shoal.pages.figures import COLORS, GRAY, Axes
from shoal.reproductions.deqs import by_name
from shoal.reproductions.ling2024.designs import cached_design
from shoal.reproductions.ling2024.equivalent_spectra import estimated_kernels
from shoal.reproductions.ling2024.setting import difference_norm
from shoal.reproductions.ling2024.spectra import ImageSpectra, MixtureSpectra, Sample, Spectra


@dataclass(frozen=True)
class _DesignSpectra(Spectra):
    r"""Conjugate kernels of DEQs and of their designs.

    The DEQ is centered, and the design is made, at the mixture's $\tau_0$, or else at the samples'
    root mean square norm.

    Args:
        families: Of the designs, one for each activation.
    """

    norms: ClassVar[tuple[str, ...]] = ("exact", "estimate", "deq_noise", "design_noise", "size")
    place: ClassVar[tuple[str, str]]  # where the samples are from, and the point that is claimed

    families: tuple[str, ...] = ("leaky_relu", "hard_tanh")

    def compare(self, deq: DEQ, sample: Sample, seed: int) -> Mapping[str, Any]:
        r"""Spectral norms and eigenvalues of the conjugate kernels of both networks.

        ``exact`` is $\|G^* - \Sigma\|$ and ``estimate`` the same for kernels that are estimated by
        one network of each kind, as in the paper; ``deq_noise`` and ``design_noise`` are the norms
        of what the estimates are off, and ``size`` is $\|G^*\|$.
        """
        x, width = sample.x, self.width
        known = sample.mixture
        tau0 = float(x.square().sum(1).mean().sqrt()) if known is None else known.tau0
        (name,) = by_name(deq.activations)
        design = cached_design(deq, tau0, "ck", self.families[self.names.index(name)])
        exact, designed = design.kernels(x)
        estimate = estimated_kernels(design.original, x, width=width, seed=seed).ck
        other = estimated_ck(design.architecture, x, width=width, seed=seed + 1)
        found: dict[str, Any] = {
            "exact": difference_norm(exact - designed),
            "estimate": difference_norm(estimate - other),
            "deq_noise": difference_norm(estimate - exact),
            "design_noise": difference_norm(other - designed),
            "size": difference_norm(exact),
        }
        pairs = {"deq": exact, "design": designed}
        pairs |= {"deq_estimate": estimate, "design_estimate": other}
        return found | {f"{k}_eigenvalues": torch.linalg.eigvalsh(m) for k, m in pairs.items()}

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The summary with differences relative to the size."""
        found = super().summarize(results)  # type: ignore[safe-super]  # that of the samples
        names = [key.removesuffix("_exact") for key in found if key.endswith("_exact")]
        return found | {f"{n}_relative": found[f"{n}_exact"] / found[f"{n}_size"] for n in names}

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """Designs are as near as printed, or nearer."""
        place, way = self.place
        claim = Claim(
            f"Error of the designs: ReLU, Tanh, {place}",
            ", ".join(f"{value:.2f}" for value in self.printed.values()),
            ", ".join(short(summary[f"{name}_{way}exact"]) for name in self.printed),
            "Ling 2024, Figure 7",
            tuple(
                Criterion(
                    f"{name}: at most {value:g}, as printed",
                    max(
                        v for k, v in summary.items() if k.startswith(name) and k.endswith("_exact")
                    ),
                    most=value,
                )
                for name, value in self.printed.items()
            ),
            corrected=True,
            remark="nearer than printed, which has the size of random networks' noise",
        )
        return (claim,)

    def draw(self, axes: Axes, arrays: Arrays) -> None:
        """Densities of the eigenvalues of both exact kernels, and of both estimates."""
        looks: dict[str, dict[str, Any]] = {
            "deq": {"color": COLORS[5], "fill": True, "label": "DEQ"},
            "design": {"color": COLORS[1], "linewidth": 1.4, "label": "design"},
            "deq_estimate": {"color": GRAY, "linewidth": 0.9, "label": "DEQ, estimated"},
            "design_estimate": {
                "color": GRAY, "linewidth": 0.9, "linestyle": ":", "label": "design, estimated"
            },
        }  # fmt: skip
        curves = [(arrays[f"{name}_eigenvalues"], look) for name, look in looks.items()]
        self.draw_densities(axes, curves)


@register
@dataclass(frozen=True)
class DesignSpectra(_DesignSpectra, MixtureSpectra):
    """Figure 7, left: on the Gaussian mixture."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "figure7")
    title: ClassVar[str] = "Eigenvalues of DEQs and of their designs, mixture"
    printed: ClassVar[Mapping[str, float]] = {"relu": 0.32, "tanh": 0.88}
    place: ClassVar[tuple[str, str]] = ("mixture", "")
    told: ClassVar[str] = "$\\|G^* - \\Sigma\\|$ = {exact:.2g}, estimated {estimate:.2f}"


@register
@dataclass(frozen=True)
class DesignImageSpectra(_DesignSpectra, ImageSpectra):
    """Figure 7, right: on two digits of MNIST, for several preprocessings."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "mnist-figure7")
    title: ClassVar[str] = "Eigenvalues of DEQs and of their designs, MNIST"
    printed: ClassVar[Mapping[str, float]] = {"relu": 2.34, "tanh": 4.79}
    place: ClassVar[tuple[str, str]] = ("MNIST, `pixels`", "pixels_")
    told: ClassVar[str] = "difference {exact:.3g}, estimated {estimate:.3g}"


def estimated_ck(architecture: shoal.Architecture, x: Tensor, *, width: int, seed: int) -> Tensor:
    """The conjugate kernel of one random network of an explicit architecture."""
    z = features(network_for(architecture, x, width=width, seed=seed), x)
    return z @ z.T
