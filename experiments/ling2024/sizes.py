"""Errors of equivalents and of designs against the number of samples: figures 1, 2 and 4."""

import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

import shoal
from experiments.claims import Claim, Criterion, criteria_for, interval, short, signed
from experiments.drawing import COLORS, Axes, draw_laws, new_row
from experiments.experiment import Result, experiment, grid, matching, named
from experiments.networks import DEQs, activation_title
from experiments.statistics import curve, power_law
from shoal.activations import Activation, LeakyReLU, ReLU, Swish, Tanh
from shoal.architectures import DEQ
from shoal.asymptotics import Basis, Coefficients, Equivalent, EquivalentOperator
from shoal.numerics import Operator, symmetric_norm

Kind = Literal["ck", "ntk"]

PAPER_GROUPS = ("readout", "recurrent")  # the NTK of the paper, K* = G*/(1 − σ_a²Ė*), is theirs
_REACH = 4.0  # of the activations that are shown, in units of input_norm
_WORDS = {"hard_tanh": " → hard tanh", "leaky_relu": " → leaky ReLU"}


class Sample(NamedTuple):
    """Inputs as rows, their classes, and the mixture that they are drawn from, if it is known."""

    x: Tensor
    labels: Tensor
    mixture: shoal.GaussianMixture | None = None


class PaperEquivalent(NamedTuple):
    """Equivalents in the paper's form, with their coefficients."""

    ck: EquivalentOperator
    ntk: EquivalentOperator
    coefficients: Coefficients


def paper_equivalent(deq: DEQ, sample: Sample, trainable: Sequence[str]) -> PaperEquivalent:
    r"""Theorems 3.3 and 3.4: $V = [J/\sqrt p, \psi]$, $\psi_i = \|x_i - E x_i\|^2 - E\|\cdot\|^2$.

    $\tau_0$, $T$, traces and means are those of the mixture, or estimated from the samples.
    """
    x, labels, mixture = sample
    mixture = mixture or shoal.GaussianMixture.fit(x, labels, covariance="scalar")
    p, traces = mixture.dimension, mixture.statistics.traces
    square = float(mixture.proportions @ traces)
    c = shoal.coefficients(deq, input_norm=math.sqrt(square), trainable=trainable)
    member = torch.nn.functional.one_hot(labels.to(x.device)).double()
    means = (mixture.means / math.sqrt(p)).to(x.device)
    around = (x.double() - means[labels.to(x.device)]).square().sum(1)
    psi = around - member @ traces.to(x.device)
    basis = Basis(x, torch.cat((member / math.sqrt(p), psi[:, None]), 1).to(x))
    t = math.sqrt(p) * (traces - square)
    operators = []
    for k in (c.ck, c.ntk):
        core = k.alpha2 * torch.outer(*2 * [torch.cat((t, torch.ones(1, dtype=t.dtype)))])
        core[:-1, :-1] += k.alpha3 * mixture.trace_products
        core = ((core + core.T) / 2).to(x.device)
        shift = k.gamma2 - square * k.alpha1
        operators.append(EquivalentOperator(basis, scale=k.alpha1, core=core, shift=shift))
    return PaperEquivalent(*operators, c)


def make_equivalent(
    form: str, deq: DEQ, sample: Sample, trainable: Sequence[str] = PAPER_GROUPS
) -> Equivalent | PaperEquivalent:
    """The equivalent, as in the ``paper`` or with ``norms``, or ``measured``.

    The last is that with norms, without knowing the mixture: for the DEQ centered at the samples'
    own root mean square norm, not at the τ_0 of the mixture.
    """
    x, labels, mixture = sample
    options: dict[str, Any] = {}
    if form == "paper":
        return paper_equivalent(deq, sample, trainable)
    if form == "norms" and mixture is not None:
        options = {"mixture": mixture, "input_norm": mixture.input_norm}
    with warnings.catch_warnings():  # the distance from the theory is measured here
        warnings.simplefilter("ignore", UserWarning)
        return shoal.equivalent(deq, x, labels, trainable=trainable, **options)


def difference_norm(matrix: Tensor, less: Operator | None = None) -> float:
    """The norm of a symmetric matrix, or of its difference from an operator."""

    def product(v: Tensor) -> Tensor:
        return matrix @ v if less is None else matrix @ v - less @ v

    return symmetric_norm(product, len(matrix), device=matrix.device)


@lru_cache(maxsize=64)
def cached_design(deq: DEQ, input_norm: float, kind: Kind, family: str) -> shoal.designs.Design:
    """A design by moments; trials with the same mixture have it in common."""
    method = shoal.designs.MomentMatching(family=family)
    return shoal.design(deq, input_norm=input_norm, which=kind, method=method)


class SampleSizes(DEQs):
    """Relative errors on samples of the paper's mixture, whose numbers and dimensions grow.

    Each point is one sample of one size, and one activation of a DEQ, which is centered.
    """

    samples: tuple[int, ...] = (100, 200, 400, 800, 1600, 3200, 6400)
    ratio: float = 0.8  # p/n
    trials: int = 5
    fit_from: int = 400  # the least n that the power laws are fitted to

    def points(self):
        return grid("trial", "n", activation=self.names, n=self.samples, trial=range(self.trials))

    def mixture(self, n: int) -> shoal.GaussianMixture:
        return shoal.GaussianMixture.ling2024(round(self.ratio * n))

    def laws(self, results: Sequence[Result], name: str, key: str) -> dict[str, float]:
        """The slope of an error with its 95% interval, and the mean for the largest samples."""
        n, errors = curve(matching(results, {"activation": name}), "n", key)
        law = power_law(n[n >= self.fit_from], errors[n >= self.fit_from])
        largest = float(errors[n == n.max()].mean())
        return law.numbers(f"{name}_{key}") | {f"{name}_{key}_error": largest}

    def draw(self, axes: Axes, results: Sequence[Result], rows: Sequence[tuple[str, str]]) -> None:
        """Draw errors against $n$; ``rows`` has activations and keys of errors."""
        curves = {}
        for name, key in rows:
            place = {"activation": name}
            label = self.point_title(place) + _WORDS.get(key.partition("_")[2], "")
            curves[label] = curve(matching(results, place), "n", key)
        draw_laws(axes, curves, "samples $n$", least=self.fit_from)


class _EquivalentError(SampleSizes):
    r"""Relative errors in spectral norm, $\|G^* - \bar G\| / \|G^*\|$, with exact kernels."""

    activations: tuple[Activation, ...] = (
        ReLU(), Tanh(), Swish(), LeakyReLU(0.1)
    )  # fmt: skip
    small = dict(
        activations=(shoal.activations.ReLU(), shoal.activations.Tanh()),
        samples=(100, 200, 400),
        trials=1,
        fit_from=100,
    )

    def compute(self, point, seed, device):
        n, deq = int(point["n"]), self.deq(point)
        mixture = self.mixture(n)
        x, labels = mixture.sample(n, seed)
        sample = Sample(x.to(device), labels, mixture)
        errors = self._compare(deq, sample, PAPER_GROUPS, ("norms", "paper"))
        if self.kind == "ntk":  # also with all weights trained
            errors |= named("all", self._compare(deq, sample, deq.parameter_groups, ("norms",)))
        return errors

    def _compare(
        self, deq: DEQ, sample: Sample, groups: tuple[str, ...], forms: tuple[str, ...]
    ) -> dict[str, float]:
        """The errors of some forms, and the norm of the kernel."""
        centered = shoal.centered(deq, input_norm=sample.mixture.input_norm)
        exact: Tensor = getattr(shoal.kernel(centered, sample.x, trainable=groups), self.kind)
        errors = {"size": difference_norm(exact)}
        for form in forms:
            eq = make_equivalent(form, deq, sample, groups)
            errors[form] = difference_norm(exact, getattr(eq, self.kind)) / errors["size"]
        return errors

    def summarize(self, results):
        forms = [form for form in results[0].arrays if not form.endswith("size")]
        laws = [self.laws(results, name, form) for name in self.names for form in forms]
        return {key: value for law in laws for key, value in law.items()}

    def claims(self, summary):
        names = [f"{name}_paper" for name in self.names]
        slopes = [summary[f"{name}_slope"] for name in names]
        highest = max(summary[f"{name}_slope_high"] for name in names)
        errors = [100 * summary[f"{name}_error"] for name in names]
        yield Claim(
            f"Errors of {self.kind.upper()} equivalents fall with n",
            "a figure; the theorem says n^(−1/2)",
            f"slopes {signed(max(slopes))} to {signed(min(slopes))}, "
            f"{short(min(errors))}% to {short(max(errors))}% at n = 6400",
            f"Ling 2024, Figure {self.name[1][-1]}",
            (Criterion("upper ends of all slopes' intervals at most −0.5", highest, most=-0.5),),
            corrected=True,
        )

    def plot(self, results):
        titles = {"paper": "the form of Ling 2024", "norms": "the form with norms"}
        figure, panels = new_row(9.2, 4.6, len(titles), sharey=True)
        for axes, (form, title) in zip(panels, titles.items(), strict=True):
            self.draw(axes, results, [(name, form) for name in self.names])
            axes.set_title(title)
        G = {"ck": "G", "ntk": "K"}[self.kind]
        panels[0].set_ylabel(rf"relative error $\|{G}^* - \bar{{{G}}}\| \, / \, \|{G}^*\|$")
        return figure


@experiment("ling2024", "figure1")
class CKError(_EquivalentError):
    """Error of the equivalents of conjugate kernels against sample size."""

    kind = "ck"


@experiment("ling2024", "figure4")
class NTKError(_EquivalentError):
    """Error of the equivalents of tangent kernels against sample size."""

    kind = "ntk"


@experiment("ling2024", "figure2")
class DesignError(SampleSizes):
    """Activations and errors of designed networks against sample size.

    The designs are for both kernels of the centered DEQ, the NTK being that of all weights.
    Sinusoids are left out; their name stays, since seeds depend on it.
    """

    families: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("relu_ck", ("leaky_relu", "sinusoid")),
        ("relu_ntk", ("sinusoid",)),
        ("tanh_ck", ("hard_tanh", "sinusoid")),
        ("tanh_ntk", ("hard_tanh", "sinusoid")),
    )
    small = dict(
        families=(
            ("relu_ck", ("leaky_relu",)), ("relu_ntk", ("sinusoid",)),
            ("tanh_ck", ("hard_tanh",)), ("tanh_ntk", ("hard_tanh",)),
        ),
        samples=(100, 400), trials=2, fit_from=100,
    )  # fmt: skip

    def compute(self, point, seed, device):
        n, deq = int(point["n"]), self.deq(point)
        mixture = self.mixture(n)
        x = mixture.sample(n, seed)[0].to(device)
        exact = shoal.kernel(shoal.centered(deq, input_norm=mixture.input_norm), x)
        sizes = {"ck": difference_norm(exact.ck), "ntk": difference_norm(exact.ntk)}
        arrays = {f"{kind}_size": size for kind, size in sizes.items()}
        for name, kind, family in self._designs():
            if name == point["activation"]:
                design = cached_design(deq, mixture.input_norm, kind, family)
                designed = shoal.kernel(design.architecture, x)
                difference = getattr(designed, kind) - getattr(exact, kind)
                del designed  # two matrices less while the norm is sought
                arrays[f"{kind}_{family}"] = difference_norm(difference) / sizes[kind]
        return arrays

    def _designs(self) -> list[tuple[str, Kind, str]]:
        """Activations, kernels and families."""
        named = [(*name.split("_"), f) for name, families in self.families for f in families]
        return [design for design in named if design[-1] != "sinusoid"]

    def summarize(self, results):
        laws = [self.laws(results, name, f"{k}_{family}") for name, k, family in self._designs()]
        return {key: value for law in laws for key, value in law.items()}

    def claims(self, summary):
        designs = {"ReLU": "relu_ck_leaky_relu_slope", "Tanh": "tanh_ck_hard_tanh_slope"}
        ends = {name: summary[f"{key}_high"] for name, key in designs.items()}
        yield Claim(
            "Errors of designed networks fall with n",
            "a figure; the examples say n^(−1/2)",
            ", ".join(f"{name} {interval(summary, key)}" for name, key in designs.items()),
            "Ling 2024, Figure 2",
            criteria_for("{}: upper end of the slope at most −0.5", ends, most=-0.5),
            corrected=True,
        )

    def plot(self, results):
        figure, (left, *panels) = new_row(13.0, 4.4, 3)
        self._draw_activations(left)
        for axes, kind in zip(panels, ("ck", "ntk"), strict=True):
            rows = [(name, f"{k}_{family}") for name, k, family in self._designs() if k == kind]
            self.draw(axes, results, rows)
        panels[0].set_title("conjugate kernels")
        panels[1].set_title("tangent kernels, all weights trained")
        panels[0].set_ylabel(r"relative error $\|G^* - \Sigma\| \, / \, \|G^*\|$")
        return figure

    def _draw_activations(self, axes: Axes) -> None:
        """Draw the DEQs' activations, dashed, and those of the first designs for their CKs."""
        input_norm = self.mixture(max(self.samples)).input_norm
        x = torch.linspace(-_REACH, _REACH, 801, dtype=torch.float64) * input_norm
        for name, color in zip(self.names, COLORS, strict=False):
            deq = self.deq({"activation": name})
            (centered,) = shoal.centered(deq, input_norm=input_norm).activations
            axes.plot(x, centered(x), "--", color=color, label=activation_title(deq.activations[0]))
            family = dict(self.families)[f"{name}_ck"][0]
            layers = cached_design(deq, input_norm, "ck", family).architecture.activations
            for place, sigma in enumerate(layers):
                label = _WORDS[family] + f", layer {place + 1}" * (len(layers) > 1)
                axes.plot(x, sigma(x), ("-", ":")[place], color=color, linewidth=1.6, label=label)
        axes.set(title="activations, of DEQs (dashed) and CK designs", xlabel="$x$")
        axes.legend(loc="upper left")
