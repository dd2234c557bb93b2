"""Matrices compared in spectral norm, and their eigenvalues: figures 5 to 7.

On the left the samples are those of a Gaussian mixture, on the right images of two digits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

import shoal
from experiments.claims import Claim, Criterion, short
from experiments.drawing import COLORS, GRAY, Axes, draw_densities, draw_limiting, draw_panels
from experiments.experiment import Arrays, Point, by_point, experiment, grid, matching
from experiments.ling2024 import sizes
from experiments.networks import DEQs, by_name, features, network_for
from experiments.samples import image_pair
from shoal.architectures import DEQ, Architecture
from shoal.kernels import Kernels

_UNSTATED = "neither the scaling of images nor σ_b is stated; nearer with σ_b² = 0.2"


def estimated_kernels(deq: DEQ, x: Tensor, *, width: int, seed: int) -> Kernels:
    r"""$G^*$ estimated by $z_i^\top z_j$, and $K^* = G^*/(1 - \sigma_a^2 \dot E^*)$ likewise.

    $\dot E^*$ is the mean of $\varphi'(u)\varphi'(v)$ over the units, as in section 4;
    it is not the NTK of the finite network.
    """
    network = network_for(deq, x, width=width, seed=seed)
    with torch.no_grad():
        z = network.solve(x).value
        recurrent = network.get_parameter("recurrent")
        arguments = deq.recurrent_variance**0.5 * (z @ recurrent.T) + network.inject(x)
        slopes = deq.activations[0].derivative(arguments)
    ck = z @ z.T
    return Kernels(ck, ck / (1 - deq.recurrent_variance / width * (slopes @ slopes.T)))


class Spectra(DEQs):
    """Matrices of one sample for each point, and of one network by which they are estimated.

    ``norms`` are the keys of arrays in the summary, and ``caption`` states some of them in words.
    """

    logarithmic = False  # the axis of eigenvalues; the density is then of their logarithms

    width: int = 2**12  # of the networks by which the paper estimates the kernels

    def compute(self, point, seed, device):
        sample = self.sample(point, seed)
        return self.compare(self.deq(point), sample._replace(x=sample.x.to(device)), seed)

    def comparable(self) -> Mapping[str, float]:
        """The printed numbers, if this is the paper's setting; it states no number of draws."""
        whole, free = type(self)(), self.free
        return self.printed if replace(self, **{free: getattr(whole, free)}) == whole else {}

    def plot(self, results):
        def panel(axes: Axes, name: str, column: Point) -> str:
            (result,) = matching(results, {"activation": name, **column})
            self.draw(axes, result.arrays)
            words = self.caption.format_map({key: float(result.arrays[key]) for key in self.norms})
            if log:
                return f"{self.point_title(result.point)}, {column['preprocessing']}\n{words}"
            printed = f", printed {self.printed[name]}" if name in self.comparable() else ""
            return f"{self.point_title(result.point)}: {words}{printed}"

        columns, log = self.columns(), self.logarithmic
        size = 3.1 * len(columns) + 0.6 if log else 7.0, 2.9 * len(self.activations)
        labels = {"x": "eigenvalue", "y": "density of logarithms" if log else "density"}
        options = {"title": 9 if log else 11, "legend": None}
        figure = draw_panels(self.names, columns, panel, size, **labels, **options)
        figure.axes[0].legend(loc="upper right", fontsize=8)
        return figure


class MixtureSpectra(Spectra):
    """On samples of the paper's mixture; the figure shows the first trial."""

    free = "trials"

    samples: int = 800  # n
    features: int = 1000  # p
    trials: int = 5
    small = dict(samples=160, features=200, width=512, trials=1)

    def columns(self) -> Sequence[Point]:
        return [{"trial": 0}]

    def points(self):
        return grid("trial", activation=self.names, trial=range(self.trials))

    def sample(self, point: Point, seed: int) -> sizes.Sample:
        mixture = shoal.GaussianMixture.ling2024(self.features)
        return sizes.Sample(*mixture.sample(self.samples, seed), mixture)

    def summarize(self, results):
        summary: dict[str, float] = {}
        for name in self.names:
            for key in self.norms:
                values = [r.arrays[key] for r in matching(results, {"activation": name})]
                summary[f"{name}_{key}"] = float(np.mean(values))
                summary[f"{name}_{key}_deviation"] = float(np.std(values))
            if name in self.comparable():
                summary[f"{name}_printed"] = self.printed[name]
        return summary


def _scaled(x: Tensor) -> Tensor:
    return x / x.square().sum(1).mean().sqrt()


# The paper's preprocessing is not stated. From pixels in [0, 1], as rows:
PREPROCESSINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "pixels": lambda x: x / math.sqrt(x.shape[1]),
    "scaled": _scaled,  # to mean squared norm 1
    "unit": normalize,  # each to norm 1
    "centered": lambda x: _scaled(x - x.mean(0)),
    "centered-unit": lambda x: normalize(x - x.mean(0)),
}


class ImageSpectra(Spectra):
    """Matrices of images of two digits, for several preprocessings."""

    logarithmic = True
    free = "preprocessings"

    digits: tuple[int, int] = (6, 8)
    samples: int = 3000  # n, half of each class
    preprocessings: tuple[str, ...] = tuple(PREPROCESSINGS)
    seed: int = 0  # of the choice of samples
    dataset: str = "mnist"
    small = dict(
        samples=200, preprocessings=("scaled", "centered-unit"), width=512, dataset="digits"
    )

    def columns(self) -> Sequence[Point]:
        return grid(preprocessing=self.preprocessings)

    def points(self):
        return grid("preprocessing", activation=self.names, preprocessing=self.preprocessings)

    def sample(self, point: Point, seed: int) -> sizes.Sample:
        chosen = self.dataset, "train", self.samples, self.seed, self.digits, torch.float64
        x, labels = image_pair(*chosen)
        return sizes.Sample(PREPROCESSINGS[point["preprocessing"]](x.flatten(1)), labels)

    def summarize(self, results):
        summary = by_point(results, lambda r: {key: float(r.arrays[key]) for key in self.norms})
        return summary | {f"{name}_printed": error for name, error in self.comparable().items()}


class _EquivalentSpectra(Spectra):
    """Kernels and their equivalents; the first of ``forms`` says where the DEQ is centered."""

    def claims(self, summary):
        place, way, decimals, more, remark = self.claimed
        errors = {name: summary[f"{name}_{way}exact_paper"] for name in self.printed}
        criteria = tuple(
            Criterion(
                f"{name} within {words} of {value:g}", errors[name], low * value, high * value
            )
            for name, value in self.printed.items()
            for words, low, high in (("10%", 0.9, 1.1), ("a factor of 2", 0.5, 2.0))
        )
        yield Claim(
            f"Error of the {self.kind.upper()} equivalents: ReLU, Tanh, {place}",
            ", ".join(f"{value:.2f}" for value in self.printed.values()),
            ", ".join(format(value, decimals) for value in errors.values()) + more,
            f"Ling 2024, Figure {self.name[1][-1]}",
            criteria,
            remark=remark,
        )

    def compare(self, deq: DEQ, sample: sizes.Sample, seed: int) -> Mapping[str, Any]:
        """Absolute errors with exact and estimated kernels, and eigenvalues.

        ``noise`` is the norm of the difference of the two kernels. The density is predicted where
        the mixture is known.
        """
        matrices: dict[Architecture, Tensor] = {}
        operators = {}
        for form in self.forms:
            eq = sizes.make_equivalent(form, deq, sample)
            centered = shoal.centered(deq, input_norm=eq.coefficients.input_norm)
            if centered not in matrices:
                kernels = shoal.kernel(centered, sample.x, trainable=sizes.PAPER_GROUPS)
                matrices[centered] = getattr(kernels, self.kind)
            operators[form] = centered, getattr(eq, self.kind)
        first, exact = next(iter(matrices.items()))
        estimates = estimated_kernels(first, sample.x, width=self.width, seed=seed)
        estimate = getattr(estimates, self.kind)
        arrays: dict[str, Any] = {
            "size": sizes.difference_norm(exact),
            "noise": sizes.difference_norm(estimate - exact),
            "equivalent": operators[self.forms[0]][1].eigvalsh(),
            "exact": torch.linalg.eigvalsh(exact),
            "estimate": torch.linalg.eigvalsh(estimate),
        }
        for form, (centered, operator) in operators.items():
            arrays[f"exact_{form}"] = sizes.difference_norm(matrices[centered], operator)
            if centered == first:
                arrays[f"estimate_{form}"] = sizes.difference_norm(estimate, operator)
        if (mixture := sample.mixture) is not None:
            options = {"trainable": sizes.PAPER_GROUPS, "input_norm": mixture.input_norm}
            predicted = shoal.spectrum(deq, mixture, n=len(sample.x), **options)
            predicted = getattr(predicted, self.kind)
            places = [np.linspace(low, high, 400) for low, high in predicted.edges]
            arrays["grid"] = np.concatenate(places)
            arrays["density"] = predicted.density(arrays["grid"])
            arrays["spikes"] = np.array([spike.value for spike in predicted.spikes])
        return arrays

    def draw(self, axes: Axes, arrays: Arrays) -> None:
        looks: dict[str, dict[str, Any]] = {
            "exact": {"color": COLORS[5], "fill": True, "label": "exact kernel"},
            "estimate": {"color": GRAY, "linewidth": 1.0, "label": "estimate"},
            "equivalent": {"color": COLORS[1], "linewidth": 1.2, "label": "equivalent"},
        }
        curves = [(arrays[name], look) for name, look in looks.items()]
        single = draw_densities(axes, curves, self.logarithmic)
        if "density" in arrays:
            parts = (arrays[name] for name in ("grid", "density", "spikes"))
            draw_limiting(axes, *parts, 1.2 * single)


class _OnMixture(_EquivalentSpectra, MixtureSpectra):
    forms = ("paper", "norms", "measured")
    norms = ("exact_paper", "exact_norms", "exact_measured", "estimate_paper", "estimate_norms",
             "noise", "size")  # fmt: skip
    caption = (
        "error {exact_paper:.2f}, with norms {exact_norms:.2f}; estimated {estimate_paper:.2f}"
    )
    claimed = "mixture", "", ".2f", "", "neither σ_b nor the number of networks is stated"


class _OnImages(_EquivalentSpectra, ImageSpectra):
    forms = ("paper", "measured")
    norms = ("exact_paper", "exact_measured", "estimate_paper", "noise", "size")
    caption = "error {exact_paper:.3g}, with norms {exact_measured:.3g}"
    claimed = ("MNIST", "centered-unit_", "#.3g", " at best, with σ_b² = 0.8",
               _UNSTATED)  # fmt: skip


@experiment("ling2024", "figure5")
class CKSpectra(_OnMixture):
    """Eigenvalues of conjugate kernels and of their equivalents, mixture."""

    kind, printed = "ck", {"relu": 0.26, "tanh": 0.81}


@experiment("ling2024", "figure6")
class NTKSpectra(_OnMixture):
    """Eigenvalues of tangent kernels and of their equivalents, mixture."""

    kind, printed = "ntk", {"relu": 0.34, "tanh": 0.76}


@experiment("ling2024", "mnist-figure5")
class CKImageSpectra(_OnImages):
    """Eigenvalues of conjugate kernels and of their equivalents, MNIST."""

    kind, printed = "ck", {"relu": 1.80, "tanh": 2.02}


@experiment("ling2024", "mnist-figure6")
class NTKImageSpectra(_OnImages):
    """Eigenvalues of tangent kernels and of their equivalents, MNIST."""

    kind, printed = "ntk", {"relu": 3.93, "tanh": 4.82}


class _DesignSpectra(Spectra):
    r"""Conjugate kernels of DEQs and of their designs, at $\tau_0$ or the samples' own norm."""

    norms = ("exact", "estimate", "deq_noise", "design_noise", "size")

    families: tuple[str, ...] = ("leaky_relu", "hard_tanh")  # one for each activation

    def compare(self, deq: DEQ, sample: sizes.Sample, seed: int) -> Mapping[str, Any]:
        r"""$\|G^* - \Sigma\|$ of exact kernels, and of estimates by one network of each kind."""
        x, mixture = sample.x, sample.mixture
        norm = x.square().sum(1).mean().sqrt() if mixture is None else mixture.input_norm
        input_norm = float(norm)
        (name,) = by_name(deq.activations)
        design = sizes.cached_design(deq, input_norm, "ck", self.families[self.names.index(name)])
        exact, designed = design.kernels(x)
        estimate = estimated_kernels(design.original, x, width=self.width, seed=seed).ck
        z = features(network_for(design.architecture, x, width=self.width, seed=seed + 1), x)
        other = z @ z.T
        differences = {
            "exact": exact - designed, "estimate": estimate - other,
            "deq_noise": estimate - exact, "design_noise": other - designed, "size": exact,
        }  # fmt: skip
        arrays: dict[str, Any] = {key: sizes.difference_norm(m) for key, m in differences.items()}
        pairs = {"deq": exact, "design": designed}
        pairs |= {"deq_estimate": estimate, "design_estimate": other}
        return arrays | {f"{k}_eigenvalues": torch.linalg.eigvalsh(m) for k, m in pairs.items()}

    def summarize(self, results):
        summary = super().summarize(results)
        names = [key.removesuffix("_exact") for key in summary if key.endswith("_exact")]
        return summary | {
            f"{n}_relative": summary[f"{n}_exact"] / summary[f"{n}_size"] for n in names
        }

    def claims(self, summary):
        place, way = self.place
        largest = {
            name: max(v for k, v in summary.items() if k.startswith(name) and k.endswith("_exact"))
            for name in self.printed
        }
        yield Claim(
            f"Error of the designs: ReLU, Tanh, {place}",
            ", ".join(f"{value:.2f}" for value in self.printed.values()),
            ", ".join(short(summary[f"{name}_{way}exact"]) for name in self.printed),
            "Ling 2024, Figure 7",
            tuple(
                Criterion(f"{name}: at most {value:g}, as printed", largest[name], most=value)
                for name, value in self.printed.items()
            ),
            corrected=True,
            remark="smaller than printed; the printed errors have the size of sampling noise",
        )

    def draw(self, axes: Axes, arrays: Arrays) -> None:
        thin = {"color": GRAY, "linewidth": 0.9}
        looks: dict[str, dict[str, Any]] = {
            "deq": {"color": COLORS[5], "fill": True, "label": "DEQ"},
            "design": {"color": COLORS[1], "linewidth": 1.4, "label": "design"},
            "deq_estimate": {"label": "DEQ, estimated", **thin},
            "design_estimate": {"label": "design, estimated", "linestyle": ":", **thin},
        }
        curves = [(arrays[f"{name}_eigenvalues"], look) for name, look in looks.items()]
        draw_densities(axes, curves, self.logarithmic)


@experiment("ling2024", "figure7")
class DesignSpectra(_DesignSpectra, MixtureSpectra):
    """Eigenvalues of DEQs and of their designs, mixture."""

    printed = {"relu": 0.32, "tanh": 0.88}
    place = ("mixture", "")
    caption = "$\\|G^* - \\Sigma\\|$ = {exact:.2g}, estimated {estimate:.2f}"


@experiment("ling2024", "mnist-figure7")
class DesignImageSpectra(_DesignSpectra, ImageSpectra):
    """Eigenvalues of DEQs and of their designs, MNIST."""

    printed = {"relu": 2.34, "tanh": 4.79}
    place = ("MNIST, `pixels`", "pixels_")
    caption = "difference {exact:.3g}, estimated {estimate:.3g}"
