"""Spectra of kernels and of their equivalents (Ling 2024, figures 5 and 6)."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.architectures import DEQ, Architecture
from shoal.kernels import Kernels
from shoal.lab import Arrays, Claim, register
from shoal.lab.claims import near_printed
from shoal.lab.descent import network_for
from shoal.lab.formatting import short
from shoal.networks import EquilibriumNetwork
from shoal.pages.figures import COLORS, GRAY, Axes
from shoal.reproductions.ling2024.setting import PAPER_GROUPS, Kind, difference_norm, equivalent_of
from shoal.reproductions.ling2024.spectra import ImageSpectra, MixtureSpectra, Sample, Spectra

# "paper": the form with V of Theorems 3.3 and 3.4, "norms": shoal's form; both for the DEQ centered
# at the τ_0 of the mixture, and with the constants of the mixture. "measured": shoal's form for the
# DEQ centered at the samples' own root mean square norm, and without knowing the mixture.
FORMS = ("paper", "norms", "measured")


def _norms(forms: tuple[str, ...]) -> tuple[str, ...]:
    """What the summary has; only a form for the DEQ of the estimate is compared with that."""
    exact = (f"exact_{form}" for form in forms)
    estimate = (f"estimate_{form}" for form in forms if form != "measured")
    return (*exact, *estimate, "noise", "size")


@dataclass(frozen=True)
class _EquivalentSpectra(Spectra):
    """Eigenvalues and absolute errors in spectral norm, with exact and estimated kernels."""

    kind: ClassVar[Kind]
    forms: ClassVar[tuple[str, ...]]  # the first decides where the DEQ of the estimate is centered

    @abstractmethod
    def errors(self, summary: Mapping[str, float]) -> tuple[dict[str, float], str, str, str]:
        """The errors beside the printed ones, where they are from, in words, and a remark."""

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """The printed errors of the paper's form: Figure 5 for the CK, 6 for the NTK."""
        found, place, words, remark = self.errors(summary)
        claim = Claim(
            f"Error of the {self.kind.upper()} equivalents: ReLU, Tanh, {place}",
            ", ".join(f"{value:.2f}" for value in self.printed.values()),
            words,
            f"Ling 2024, Figure {self.name[1][-1]}",
            near_printed(found, self.printed),
            remark=remark,
        )
        return (claim,)

    def compare(self, deq: DEQ, sample: Sample, seed: int) -> Mapping[str, Any]:
        """Errors with exact and estimated kernels, the noise of the estimate, and eigenvalues.

        ``exact_FORM`` and ``estimate_FORM`` are absolute errors of equivalents, ``noise`` is the
        norm of the difference of the two kernels and ``size`` that of the exact one. ``density``
        at ``grid``, and ``spikes``, are predicted where the mixture is known.
        """
        matrices: dict[Architecture, Tensor] = {}
        operators = {}
        for form in self.forms:
            eq = equivalent_of(form, deq, *sample)
            centered = shoal.centered(deq, tau0=eq.coefficients.tau0)
            if centered not in matrices:
                kernels = shoal.kernel(centered, sample.x, trainable=PAPER_GROUPS)
                matrices[centered] = getattr(kernels, self.kind)
            operators[form] = centered, getattr(eq, self.kind)
        first, exact = next(iter(matrices.items()))
        estimate = getattr(
            estimated_kernels(first, sample.x, width=self.width, seed=seed), self.kind
        )
        found: dict[str, Any] = {
            "size": difference_norm(exact),
            "noise": difference_norm(estimate - exact),
            "equivalent": operators[self.forms[0]][1].eigvalsh(),
            "exact": torch.linalg.eigvalsh(exact),
            "estimate": torch.linalg.eigvalsh(estimate),
        }
        for form, (centered, operator) in operators.items():
            found[f"exact_{form}"] = difference_norm(matrices[centered], operator)
            if centered == first:
                found[f"estimate_{form}"] = difference_norm(estimate, operator)
        return found | self._predicted(deq, sample)

    def _predicted(self, deq: DEQ, sample: Sample) -> dict[str, Any]:
        mixture = sample.mixture
        if mixture is None:
            return {}
        spectra = shoal.spectrum(
            deq, mixture, n=len(sample.x), trainable=PAPER_GROUPS, tau0=mixture.tau0
        )
        predicted = getattr(spectra, self.kind)
        grid = np.concatenate([np.linspace(low, high, 400) for low, high in predicted.edges])
        spikes = [spike.value for spike in predicted.spikes]
        return {"grid": grid, "density": predicted.density(grid), "spikes": np.array(spikes)}

    def draw(self, axes: Axes, arrays: Arrays) -> None:
        """Exact kernel, its estimate, the equivalent and the predicted density, if there is one."""

        def predicted(single: float) -> None:
            density = np.where(arrays["density"] > 0, arrays["density"], np.nan)
            axes.plot(arrays["grid"], density, color="black", linewidth=1.2,
                      label="predicted density")  # fmt: skip
            for k, spike in enumerate(arrays["spikes"]):
                label = "predicted isolated" if k == 0 else None
                axes.plot(spike, 1.2 * single, "kv", markersize=4, label=label)

        looks: dict[str, dict[str, Any]] = {
            "exact": {"color": COLORS[5], "fill": True, "label": "exact kernel"},
            "estimate": {"color": GRAY, "linewidth": 1.0, "label": "estimate"},
            "equivalent": {"color": COLORS[1], "linewidth": 1.2, "label": "equivalent"},
        }
        curves = [(arrays[name], look) for name, look in looks.items()]
        overlay = predicted if "density" in arrays else None
        self.draw_densities(axes, curves, overlay=overlay)


@dataclass(frozen=True)
class _OnMixture(_EquivalentSpectra, MixtureSpectra):
    forms: ClassVar[tuple[str, ...]] = FORMS
    norms: ClassVar[tuple[str, ...]] = _norms(FORMS)
    told: ClassVar[str] = (
        "error {exact_paper:.2f}, with norms {exact_norms:.2f}; estimated {estimate_paper:.2f}"
    )

    def errors(self, summary: Mapping[str, float]) -> tuple[dict[str, float], str, str, str]:
        """The errors of the paper's form."""
        found = {name: summary[f"{name}_exact_paper"] for name in self.printed}
        words = ", ".join(f"{value:.2f}" for value in found.values())
        return found, "mixture", words, "neither σ_b nor the number of networks is stated"


@dataclass(frozen=True)
class _OnImages(_EquivalentSpectra, ImageSpectra):
    """The mixture is not known.

    The form of the paper takes its constants from estimates, that with norms (``measured``) from
    the samples.
    """

    forms: ClassVar[tuple[str, ...]] = ("paper", "measured")
    norms: ClassVar[tuple[str, ...]] = _norms(("paper", "measured"))
    told: ClassVar[str] = "error {exact_paper:.3g}, with norms {exact_measured:.3g}"

    def errors(self, summary: Mapping[str, float]) -> tuple[dict[str, float], str, str, str]:
        """The errors of the paper's form, for the preprocessing that is nearest."""
        best = {name: summary[f"{name}_centered-unit_exact_paper"] for name in self.printed}
        words = ", ".join(short(value, 3) for value in best.values())
        remark = "neither the scaling of images nor σ_b is stated; nearer with σ_b² = 0.2"
        return best, "MNIST", f"{words} at best, with σ_b² = 0.8", remark


@register
@dataclass(frozen=True)
class CKSpectra(_OnMixture):
    """Figure 5, left: conjugate kernels on the Gaussian mixture."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "figure5")
    title: ClassVar[str] = "Eigenvalues of conjugate kernels and of their equivalents, mixture"
    kind: ClassVar[Kind] = "ck"
    printed: ClassVar[Mapping[str, float]] = {"relu": 0.26, "tanh": 0.81}


@register
@dataclass(frozen=True)
class NTKSpectra(_OnMixture):
    """Figure 6, left: tangent kernels on the Gaussian mixture."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "figure6")
    title: ClassVar[str] = "Eigenvalues of tangent kernels and of their equivalents, mixture"
    kind: ClassVar[Kind] = "ntk"
    printed: ClassVar[Mapping[str, float]] = {"relu": 0.34, "tanh": 0.76}


@register
@dataclass(frozen=True)
class CKImageSpectra(_OnImages):
    """Figure 5, right: conjugate kernels on two digits of MNIST."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "mnist-figure5")
    title: ClassVar[str] = "Eigenvalues of conjugate kernels and of their equivalents, MNIST"
    kind: ClassVar[Kind] = "ck"
    printed: ClassVar[Mapping[str, float]] = {"relu": 1.80, "tanh": 2.02}


@register
@dataclass(frozen=True)
class NTKImageSpectra(_OnImages):
    """Figure 6, right: tangent kernels on two digits of MNIST."""

    name: ClassVar[tuple[str, str]] = ("ling2024", "mnist-figure6")
    title: ClassVar[str] = "Eigenvalues of tangent kernels and of their equivalents, MNIST"
    kind: ClassVar[Kind] = "ntk"
    printed: ClassVar[Mapping[str, float]] = {"relu": 3.93, "tanh": 4.82}


def estimated_kernels(deq: Architecture, x: Tensor, *, width: int, seed: int) -> Kernels:
    r"""$G^*$ estimated by $z_i^\top z_j$, and $K^* = G^*/(1 - \sigma_a^2 \dot E^*)$ likewise.

    $\dot E^*_{ij}$, the expectation of $\varphi'(u)\varphi'(v)$, is the mean over the units. This
    is not the NTK of the finite network (:func:`shoal.empirical_kernel`), but what section 4 and
    the caption of figure 4 describe.

    Args:
        deq: The DEQ, centered.
        x: Inputs of shape (n, p).
        width: Of the network; $2^{12}$ in the paper.
        seed: Of its weights.
    """
    network = network_for(deq, x, width=width, seed=seed)
    assert isinstance(deq, DEQ)
    assert isinstance(network, EquilibriumNetwork)  # it is that of a DEQ
    with torch.no_grad():
        z = network.solve(x).value
        recurrent = network.get_parameter("recurrent")
        arguments = deq.recurrent_variance**0.5 * (z @ recurrent.T) + network.inject(x)
        slopes = deq.activations[0].derivative(arguments)
    ck = z @ z.T
    return Kernels(ck, ck / (1 - deq.recurrent_variance / width * (slopes @ slopes.T)))
