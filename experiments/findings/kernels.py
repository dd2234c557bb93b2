r"""How well limiting spectra predict eigenvalues of exact kernels; designs on the sphere."""

import math
from itertools import cycle
from typing import Any

import numpy as np
import torch

import shoal
from experiments.drawing import COLORS, Axes, draw_densities, draw_limiting, draw_panels
from experiments.experiment import Experiment, Result, by_point, experiment, grid, matching
from experiments.networks import by_name
from shoal.activations import GELU, Activation, ReLU, Softplus, Swish, Tanh
from shoal.architectures import DEQ
from shoal.asymptotics import Spectrum

_MEAN = 4.0  # norms of √p E x: strong enough for isolated eigenvalues
_OUTER = (0.99, 0.999, 1.0)
_ROUNDING = 1e-16  # smaller errors are drawn here


@experiment("shoal", "spectrum")
class SpectrumError(Experiment):
    """Limiting spectra against eigenvalues of exact kernels.

    The DEQ is centered; the page on findings has what the keys of the summary are.
    """

    architecture: DEQ = DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)
    samples: int = 4000  # n
    ratios: tuple[float, ...] = (0.5, 1.25, 2.0)  # p/n
    small = dict(samples=400)

    def points(self):
        return grid(ratio=self.ratios)

    def mixture(self, ratio: float) -> shoal.GaussianMixture:
        r"""Three classes in $p$ dimensions, of traces that differ by $O(\sqrt p)$."""
        p = round(ratio * self.samples)
        means = torch.zeros(3, p, dtype=torch.float64)
        means[0, 0], means[1, p // 2] = _MEAN, _MEAN
        ramp = torch.linspace(0.4, 1.6, p, dtype=torch.float64)
        steps = torch.ones(p, dtype=torch.float64)
        steps[::2], steps[1::2] = 0.3, 1.7
        covariances = [ramp, steps, 1 + 2 / math.sqrt(p)]
        return shoal.GaussianMixture(means, covariances, [5, 3, 2])

    def compute(self, point, seed, device):
        mixture = self.mixture(point["ratio"])
        x, labels = mixture.sample(self.samples, seed)
        x = x.to(device)
        predicted = shoal.spectrum(self.architecture, mixture, n=self.samples)
        eq = shoal.equivalent(self.architecture, x, labels, mixture=mixture)
        exact = shoal.kernel(eq.coefficients.architecture, x)
        arrays: dict[str, Any] = {}
        for kind in ("ck", "ntk"):
            limit: Spectrum = getattr(predicted, kind)
            eigenvalues = torch.linalg.eigvalsh(getattr(exact, kind)).cpu().numpy()
            equivalent = getattr(eq, kind).eigvalsh().cpu().numpy()
            places = np.concatenate([np.linspace(low, high, 400) for low, high in limit.edges])
            numbers = _compare(limit, eigenvalues, equivalent)
            numbers |= {"eigenvalues": eigenvalues, "grid": places}
            numbers["density"] = limit.density(places)
            numbers["isolated"] = np.array([spike.value for spike in limit.spikes])
            arrays |= {f"{kind}_{key}": value for key, value in numbers.items()}
        return arrays

    def summarize(self, results):
        return by_point(results)

    def plot(self, results):
        kinds = {"ck": "conjugate kernel", "ntk": "tangent kernel"}

        def panel(axes: Axes, kind: str, result: Result) -> str:
            if result is results[0]:
                axes.set_ylabel(f"density, {kinds[kind]}")
            parts = ("eigenvalues", "grid", "density", "isolated")
            values, *limit = (result.arrays[f"{kind}_{part}"] for part in parts)
            look = {"color": COLORS[5], "fill": True, "label": "exact kernel"}
            draw_limiting(axes, *limit, 1.3 * draw_densities(axes, [(values, look)]))
            return f"$p/n = {result.point['ratio']}$: KS {float(result.arrays[f'{kind}_ks']):.4f}"

        size = 3.6 * len(results) + 0.4, 5.6
        figure = draw_panels(kinds, results, panel, size, x="eigenvalue", legend=None)
        figure.axes[0].legend(loc="upper right", fontsize=8)
        return figure


def _compare(limit: Spectrum, eigenvalues: Any, equivalent: Any) -> dict[str, float]:
    """Distances of a limit from eigenvalues, which come in increasing order."""
    atoms = round(sum(atom.mass for atom in limit.atoms) * len(eigenvalues))
    isolated = np.array([spike.value for spike in limit.spikes])
    low, high = float(limit.edges[0, 0]), float(limit.edges[-1, 1])
    below, above = int((isolated < low).sum()), int((isolated > high).sum())
    bulk = eigenvalues[atoms + below * (atoms == 0) : len(eigenvalues) - above]
    numbers = {
        "ks": _distance(limit, eigenvalues[atoms:]),
        "low": (low - float(bulk[0])) / (high - low),
        "high": (float(bulk[-1]) - high) / (high - low),
        "spikes_count": float(len(isolated)),
    }
    if len(isolated):
        numbers["spikes"] = _spike_error(limit, equivalent, hidden=True)
        numbers["spikes_exact"] = _spike_error(limit, eigenvalues, hidden=False)
    for atom in limit.atoms:
        numbers["atom"] = atom.mass
        numbers["atom_shift"] = float(eigenvalues[:atoms].mean()) / atom.value - 1
        numbers["atom_smear"] = float(eigenvalues[:atoms].std()) / atom.value
    return numbers


def _distance(limit: Spectrum, eigenvalues: Any) -> float:
    """Kolmogorov and Smirnov's, between the limit's continuous part and increasing values."""
    mass = sum(atom.mass for atom in limit.atoms)
    predicted = np.clip((limit.cdf(eigenvalues) - mass) / (1 - mass), 0, 1)
    steps = np.arange(len(eigenvalues) + 1) / len(eigenvalues)
    return float(max((predicted - steps[:-1]).max(), (steps[1:] - predicted).max()))


def _spike_error(limit: Spectrum, eigenvalues: Any, *, hidden: bool) -> float:
    """Isolated values beyond the outer edges are the extreme eigenvalues in order.

    Those between bulks or beside an atom, which count if ``hidden``, are the nearest eigenvalues
    that are not the atom's; in an exact kernel, whose atom is smeared, there is no telling which.
    """
    isolated = np.array([spike.value for spike in limit.spikes])
    low, high = float(limit.edges[0, 0]), float(limit.edges[-1, 1])
    candidates = eigenvalues
    for atom in limit.atoms:
        candidates = candidates[np.abs(candidates / atom.value - 1) > 1e-9]
    errors = [0.0]
    for place, value in enumerate(isolated):
        if value > high:
            nearest = eigenvalues[place - len(isolated)]
        elif value < low and not limit.atoms:
            nearest = eigenvalues[place]
        elif hidden:
            nearest = candidates[np.abs(candidates - value).argmin()]
        else:
            continue
        errors.append(abs(float(nearest) / float(value) - 1))
    return max(errors)


@experiment("shoal", "sphere")
class SphereError(Experiment):
    """Errors of designs on the sphere over all angles.

    Each point is one design of a DEQ that is not centered. The kernel of the designed network is
    that of its finished activation: it does not use the power series of the design.
    """

    activations: tuple[Activation, ...] = (
        ReLU(), Tanh(), Swish(), Softplus(), GELU()
    )  # fmt: skip
    variances: tuple[float, ...] = (0.05, 0.2, 0.24)  # σ_a²
    gains: tuple[float, ...] = (
        0.9,
        0.99,
    )  # more of them, by σ_a²L²; at one, kernels cease to exist
    input_variance: float = 0.8
    norm: float = 1.0  # of the inputs
    cosines: int = 77  # from -0.95 to 0.95; besides, some up to ±1
    small = dict(
        activations=(shoal.activations.ReLU(), shoal.activations.Tanh()),
        variances=(0.2,),
        gains=(),
        cosines=9,
    )

    def points(self):
        kinds = ("ck", "ntk")
        return grid(activation=by_name(self.activations), variance=self._variances(), kind=kinds)

    def _variances(self) -> dict[str, tuple[float, bool]]:
        """The variances by name: their value, and whether it is a gain."""
        plain = {f"variance{value:g}": (value, False) for value in self.variances}
        return plain | {f"gain{value:g}": (value, True) for value in self.gains}

    def deq(self, activation: str, variance: str) -> DEQ:
        phi = by_name(self.activations)[activation]
        value, is_gain = self._variances()[variance]
        return DEQ(phi, value / phi.lipschitz**2 if is_gain else value, self.input_variance)

    def compute(self, point, seed, device):
        deq = self.deq(point["activation"], point["variance"])
        kind, square = point["kind"], self.norm**2
        design = shoal.design(deq, input_norm=self.norm, which=kind, method="sphere")
        inner = np.linspace(-0.95, 0.95, self.cosines)
        cosines = np.concatenate([-np.array(_OUTER[::-1]), inner, _OUTER])
        products = square * torch.from_numpy(cosines)
        target, obtained = (
            getattr(shoal.kernel_function(a)(square, square, products), kind).numpy()
            for a in (deq, design.architecture)
        )
        return {"cosines": cosines, "target": target, "obtained": obtained}

    def summarize(self, results):
        def largest(result: Result) -> dict[str, float]:
            error, cosines = _error(result), np.abs(result.arrays["cosines"])
            parts = {"inner": cosines <= 0.95, "ends": cosines == 1, "anywhere": cosines <= 1}
            return {key: error[part].max() for key, part in parts.items()}

        return by_point(results, largest)

    def plot(self, results):
        names = by_name(self.activations)
        kinds = {"ck": "CK design", "ntk": "NTK design"}
        every = self._variances().values()
        signs = [rf"$\sigma_a^2{' L^2' * gain} = {value:g}$" for value, gain in every]

        def panel(axes: Axes, kind: str, name: str) -> str:
            runs = matching(results, {"activation": name, "kind": kind})
            for result, color, label in zip(runs, cycle(COLORS), signs, strict=False):
                shown = np.maximum(_error(result), _ROUNDING)
                look = {"color": color, "markersize": 3, "linewidth": 0.9, "label": label}
                axes.semilogy(result.arrays["cosines"], shown, ".-", **look)
            if name == next(iter(names)):
                axes.set_ylabel(f"{kinds[kind]}\nerror, relative to the diagonal")
            return type(names[name]).__name__ if kind == "ck" else ""

        size, x = (2.5 * len(names) + 1.6, 5.4), r"cosine $\rho$"
        return draw_panels(kinds, names, panel, size, x=x, sharex=True, sharey=True)


def _error(result: Result) -> Any:
    """Relative to the diagonal, which stands last."""
    target = result.arrays["target"]
    return np.abs(result.arrays["obtained"] - target) / target[-1]
