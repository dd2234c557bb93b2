"""TODO."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import shoal
from experiments.claims import Claim, Criterion, near_printed, short
from experiments.drawing import COLORS, GRAY, Axes, draw_panels
from experiments.experiment import Arrays, Point, by_point, experiment, grid, matching
from experiments.ling2024.setting import PAPER_GROUPS, Sample, difference_norm, equivalent_of
from experiments.ling2024.sizes import cached_design
from experiments.networks import DEQs, by_name, features, network_for
from experiments.samples import image_pair
from shoal.architectures import DEQ, Architecture
from shoal.kernels import Kernels
from shoal.networks import EquilibriumNetwork

_BINS = 60

Curve = tuple[Any, dict[str, Any]]
"""Eigenvalues, and how their histogram looks."""


@dataclass(frozen=True)
class Spectra(DEQs):
    r"""Matrices of one sample for each point, and of one network by which they are estimated."""

    width: int = 2**12  # of the networks by which the paper estimates the kernels

    @abstractmethod
    def sample(self, point: Point, seed: int) -> Sample:
        """The inputs of a point."""

    @abstractmethod
    def compare(self, deq: DEQ, sample: Sample, seed: int) -> Mapping[str, Any]:
        """The norms that the summary has, and eigenvalues."""

    @abstractmethod
    def draw(self, axes: Axes, arrays: Arrays) -> None:
        """Draw the eigenvalues of one point."""

    def headline(self, arrays: Arrays) -> str:
        """The norms of one point; on the mixture the last is the one that the paper prints."""
        return self.told.format_map({key: float(arrays[key]) for key in self.norms})

    @abstractmethod
    def title_of(self, point: Point, arrays: Arrays) -> str:
        """What a panel shows, with its headline."""

    @property
    @abstractmethod
    def columns(self) -> Sequence[Point]:
        """What panels side by side are about."""

    def draw_densities(
        self,
        axes: Axes,
        curves: Sequence[Curve],
        overlay: Callable[[float], None] | None = None,
    ) -> None:
        """Densities of eigenvalues, on a logarithmic axis so that single ones are seen."""
        every = np.concatenate([values for values, _ in curves])
        least, largest = float(every.min()), float(every.max())
        if self.logarithmic:
            least = max(least, 1e-4 * largest)
            edges: Any = np.geomspace(0.9 * least, 1.1 * largest, _BINS)
            axes.set_xscale("log")
        else:
            margin = 0.03 * (largest - least)
            edges = np.linspace(least - margin, largest + margin, 2 * _BINS)
        widths = np.diff(np.log(edges)) if self.logarithmic else np.diff(edges)
        for values, look in curves:
            counts, _ = np.histogram(values, edges)
            axes.stairs(counts / (len(values) * widths), edges, **look)
        single = float(1 / (len(curves[0][0]) * widths.max()))
        if overlay is not None:
            overlay(single)
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.5 * single)

    def compute(self, point, seed, device):
        sample = self.sample(point, seed)
        return self.compare(self.deq(point), sample._replace(x=sample.x.to(device)), seed)

    def plot(self, results):

        def panel(axes: Axes, name: str, column: Point) -> str:
            result = matching(results, {"activation": name, **column})[0]
            self.draw(axes, result.arrays)
            return self.title_of(result.point, result.arrays)

        rows, columns, log = len(self.activations), len(self.columns), self.logarithmic
        figure = draw_panels(
            self.names,
            self.columns,
            panel,
            (3.1 * columns + 0.6 if log else 7.0, 2.9 * rows),
            x="eigenvalue",
            y="density of logarithms" if log else "density",
            title=9 if log else None,
            legend=None,
        )
        figure.axes[0].legend(loc="upper right", fontsize=8 if log else None)
        return figure


@dataclass(frozen=True)
class MixtureSpectra(Spectra):
    r"""Matrices of samples of the paper's mixture."""

    logarithmic = False

    samples: int = 800  # $n$
    features: int = 1000  # $p$
    trials: int = 5  # how many samples and networks are drawn; the figure shows the first

    small = dict(samples=160, features=200, width=512, trials=1)

    @property
    def columns(self) -> Sequence[Point]:
        """The first trial."""
        return [{"trial": 0}]

    def points(self):
        return grid("trial", activation=self.names, trial=range(self.trials))

    def sample(self, point: Point, seed: int) -> Sample:
        """One of the mixture."""
        mixture = shoal.GaussianMixture.ling2024(self.features)
        return Sample(*mixture.sample(self.samples, seed), mixture)

    def summarize(self, results):
        summary: dict[str, float] = {}
        for name in self.names:
            chosen = [r.arrays for r in matching(results, {"activation": name})]
            for key in self.norms:
                values = [float(arrays[key]) for arrays in chosen]
                summary[f"{name}_{key}"] = float(np.mean(values))
                summary[f"{name}_{key}_deviation"] = float(np.std(values))
            if name in self._comparable():
                summary[f"{name}_printed"] = self.printed[name]
        return summary

    def title_of(self, point: Point, arrays: Arrays) -> str:
        """The activation, the norms, and what is printed."""
        known, name = self._comparable(), str(point["activation"])
        printed = f", printed {known[name]}" if name in known else ""
        return f"{self.title_at(point)}: {self.headline(arrays)}{printed}"

    def _comparable(self) -> Mapping[str, float]:
        """What the paper prints, if this is its setting."""
        whole = type(self)()
        return self.printed if replace(self, trials=whole.trials) == whole else {}


def _scaled(x: Tensor) -> Tensor:
    return x / x.square().sum(1).mean().sqrt()


_unit = torch.nn.functional.normalize

# The paper's preprocessing is not stated. From pixels in [0, 1], as rows:
PREPROCESSINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "pixels": lambda x: x / math.sqrt(x.shape[1]),
    "scaled": _scaled,  # to mean squared norm 1
    "unit": _unit,  # each to norm 1
    "centered": lambda x: _scaled(x - x.mean(0)),
    "centered-unit": lambda x: _unit(x - x.mean(0)),
}


@dataclass(frozen=True)
class ImageSpectra(Spectra):
    r"""Matrices of images of two digits, for several preprocessings.

    The files of the dataset must be at hand, see :func:`shoal.data.load`; the quick size takes
    scikit-learn's digits, which need none.
    """

    logarithmic = True

    digits: tuple[int, int] = (6, 8)  # the two classes
    samples: int = 3000  # $n$, half of each class
    preprocessings: tuple[str, ...] = tuple(PREPROCESSINGS)  # names out of ``PREPROCESSINGS``
    seed: int = 0  # of the choice of samples
    dataset: str = "mnist"  # where the images are from, a name that shoal.data.load knows

    small = dict(
        samples=200, preprocessings=("scaled", "centered-unit"), width=512, dataset="digits"
    )

    @property
    def columns(self) -> Sequence[Point]:
        """The preprocessings."""
        return grid(preprocessing=self.preprocessings)

    def points(self):
        return grid("preprocessing", activation=self.names, preprocessing=self.preprocessings)

    def sample(self, point: Point, seed: int) -> Sample:
        """The images, as many of each digit."""
        x, labels = image_pair(
            self.dataset, "train", self.samples, self.seed, self.digits, torch.float64
        )
        return Sample(PREPROCESSINGS[point["preprocessing"]](x.flatten(1)), labels)

    def summarize(self, results):
        summary = by_point(results, lambda r: {key: float(r.arrays[key]) for key in self.norms})
        if replace(self, preprocessings=()) == replace(type(self)(), preprocessings=()):
            summary |= {f"{name}_printed": error for name, error in self.printed.items()}
        return summary

    def title_of(self, point: Point, arrays: Arrays) -> str:
        """The activation, the preprocessing and the norms."""
        return f"{self.title_at(point)}, {point['preprocessing']}\n{self.headline(arrays)}"


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

    @abstractmethod
    def errors(self, summary: Mapping[str, float]) -> tuple[dict[str, float], str, str, str]:
        """The errors beside the printed ones, where they are from, in words, and a remark."""

    def claims(self, summary):
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
    forms = FORMS
    norms = _norms(FORMS)
    told = "error {exact_paper:.2f}, with norms {exact_norms:.2f}; estimated {estimate_paper:.2f}"

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

    forms = ("paper", "measured")
    norms = _norms(("paper", "measured"))
    told = "error {exact_paper:.3g}, with norms {exact_measured:.3g}"

    def errors(self, summary: Mapping[str, float]) -> tuple[dict[str, float], str, str, str]:
        """The errors of the paper's form, for the preprocessing that is nearest."""
        best = {name: summary[f"{name}_centered-unit_exact_paper"] for name in self.printed}
        words = ", ".join(short(value, 3) for value in best.values())
        remark = "neither the scaling of images nor σ_b is stated; nearer with σ_b² = 0.2"
        return best, "MNIST", f"{words} at best, with σ_b² = 0.8", remark


@experiment(
    "ling2024", "figure5", "Eigenvalues of conjugate kernels and of their equivalents, mixture"
)
class CKSpectra(_OnMixture):
    """Figure 5, left: conjugate kernels on the Gaussian mixture."""

    kind = "ck"
    printed = {"relu": 0.26, "tanh": 0.81}


@experiment(
    "ling2024", "figure6", "Eigenvalues of tangent kernels and of their equivalents, mixture"
)
class NTKSpectra(_OnMixture):
    """Figure 6, left: tangent kernels on the Gaussian mixture."""

    kind = "ntk"
    printed = {"relu": 0.34, "tanh": 0.76}


@experiment(
    "ling2024", "mnist-figure5", "Eigenvalues of conjugate kernels and of their equivalents, MNIST"
)
class CKImageSpectra(_OnImages):
    """Figure 5, right: conjugate kernels on two digits of MNIST."""

    kind = "ck"
    printed = {"relu": 1.80, "tanh": 2.02}


@experiment(
    "ling2024", "mnist-figure6", "Eigenvalues of tangent kernels and of their equivalents, MNIST"
)
class NTKImageSpectra(_OnImages):
    """Figure 6, right: tangent kernels on two digits of MNIST."""

    kind = "ntk"
    printed = {"relu": 3.93, "tanh": 4.82}


def estimated_kernels(deq: Architecture, x: Tensor, *, width: int, seed: int) -> Kernels:
    r"""$G^*$ estimated by $z_i^\top z_j$, and $K^* = G^*/(1 - \sigma_a^2 \dot E^*)$ likewise.

    $\dot E^*_{ij}$, the expectation of $\varphi'(u)\varphi'(v)$, is the mean over the units. This
    is not the NTK of the finite network (:func:`shoal.empirical_kernel`), but what section 4 and
    the caption of figure 4 describe.
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


@dataclass(frozen=True)
class _DesignSpectra(Spectra):
    r"""Conjugate kernels of DEQs and of their designs.

    The DEQ is centered, and the design is made, at the mixture's $\tau_0$, or else at the samples'
    root mean square norm.
    """

    norms = ("exact", "estimate", "deq_noise", "design_noise", "size")

    # of the designs, one for each activation
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

    def summarize(self, results):
        found = super().summarize(results)  # type: ignore[safe-super]  # that of the samples
        names = [key.removesuffix("_exact") for key in found if key.endswith("_exact")]
        return found | {f"{n}_relative": found[f"{n}_exact"] / found[f"{n}_size"] for n in names}

    def claims(self, summary):
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


@experiment("ling2024", "figure7", "Eigenvalues of DEQs and of their designs, mixture")
class DesignSpectra(_DesignSpectra, MixtureSpectra):
    """Figure 7, left: on the Gaussian mixture."""

    printed = {"relu": 0.32, "tanh": 0.88}
    place = ("mixture", "")
    told = "$\\|G^* - \\Sigma\\|$ = {exact:.2g}, estimated {estimate:.2f}"


@experiment("ling2024", "mnist-figure7", "Eigenvalues of DEQs and of their designs, MNIST")
class DesignImageSpectra(_DesignSpectra, ImageSpectra):
    """Figure 7, right: on two digits of MNIST, for several preprocessings."""

    printed = {"relu": 2.34, "tanh": 4.79}
    place = ("MNIST, `pixels`", "pixels_")
    told = "difference {exact:.3g}, estimated {estimate:.3g}"


def estimated_ck(architecture: shoal.Architecture, x: Tensor, *, width: int, seed: int) -> Tensor:
    """The conjugate kernel of one random network of an explicit architecture."""
    z = features(network_for(architecture, x, width=width, seed=seed), x)
    return z @ z.T
