r"""How well limiting spectra predict the eigenvalues of exact kernels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch

import shoal
from shoal.architectures import DEQ
from shoal.lab.experiment import Experiment, Point, Result, by_point, grid, named
from shoal.lab.figures import draw_panels
from shoal.lab.registry import register
from shoal.pages.figures import COLORS, Axes, Figure
from shoal.spectra import Spectrum

_KINDS = {"ck": "conjugate kernel", "ntk": "tangent kernel"}
_DEQ = DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)
_MEAN = 4.0  # norms of √p E x: strong enough for isolated eigenvalues


@register
@dataclass(frozen=True)
class SpectrumError(Experiment):
    r"""Limiting spectra against the eigenvalues of exact kernels and of equivalents.

    The mixture has three classes of unequal size, with two means and covariances that are no
    multiples of the identity. For each $p/n$:

    - ``ks``: the Kolmogorov-Smirnov distance between the limit and the exact kernel's eigenvalues;
      if $p < n$, between their continuous parts, the $p$ largest eigenvalues.
    - ``low``, ``high``: how far the first and the last eigenvalue that is not isolated is outside
      of the limit's edges (inside, if negative), relative to the length between them.
    - ``spikes``: the largest relative distance between predicted isolated eigenvalues and the
      equivalent's; ``spikes_exact``: and the exact kernel's, for those beyond the outer edges.
    - if $p < n$: ``atom``, the predicted mass of the atom; ``atom_shift`` and ``atom_smear``, the
      mean distance to it and the standard deviation of the $n - p$ smallest eigenvalues, relative
      to it.

    Args:
        architecture: The DEQ, which is centered.
        samples: $n$.
        ratios: The values of $p/n$.
    """

    name: ClassVar[tuple[str, str]] = ("shoal", "spectrum")
    title: ClassVar[str] = "Limiting spectra against eigenvalues of exact kernels"

    architecture: DEQ = _DEQ
    samples: int = 4000
    ratios: tuple[float, ...] = (0.5, 1.25, 2.0)

    @classmethod
    def quick(cls) -> Self:
        """Few samples."""
        return cls(samples=400)

    def points(self) -> Sequence[Point]:
        """One for each ratio."""
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

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Any]:
        """Eigenvalues of exact kernels and equivalents, and what is predicted of them."""
        mixture = self.mixture(float(point["ratio"]))
        x, labels = mixture.sample(self.samples, seed)
        x = x.to(device)
        predicted = shoal.spectrum(self.architecture, mixture, n=self.samples)
        eq = shoal.equivalent(self.architecture, x, labels, mixture=mixture)
        exact = shoal.kernel(eq.coefficients.architecture, x)
        found: dict[str, Any] = {}
        for kind in _KINDS:
            limit: Spectrum = getattr(predicted, kind)
            eigenvalues = torch.linalg.eigvalsh(getattr(exact, kind)).cpu().numpy()
            equivalent = getattr(eq, kind).eigvalsh().cpu().numpy()
            places = np.concatenate([np.linspace(low, high, 400) for low, high in limit.edges])
            found |= named(kind, _compare(limit, eigenvalues, equivalent))
            found |= {
                f"{kind}_eigenvalues": eigenvalues,
                f"{kind}_grid": places,
                f"{kind}_density": limit.density(places),
                f"{kind}_isolated": np.array([spike.value for spike in limit.spikes]),
            }
        return found

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """All distances, by ratio and kernel."""
        return by_point(
            results, lambda r: {key: float(v) for key, v in r.arrays.items() if v.ndim == 0}
        )

    def plot(self, results: Sequence[Result]) -> Figure:
        """Histograms and densities: a kernel in each row, a ratio in each column."""

        def panel(axes: Axes, kind: str, result: Result) -> str:
            if result is results[0]:
                axes.set_ylabel(f"density, {_KINDS[kind]}")
            _draw(axes, kind, result)
            return f"$p/n = {result.point['ratio']}$: KS {float(result.arrays[f'{kind}_ks']):.4f}"

        size = 3.6 * len(results) + 0.4, 5.6
        figure = draw_panels(_KINDS, results, panel, size, x="eigenvalue", legend=None)
        figure.axes[0].legend(loc="upper right", fontsize=8)
        return figure


def _compare(limit: Spectrum, eigenvalues: Any, equivalent: Any) -> dict[str, float]:
    """The distances that :class:`SpectrumError` lists; eigenvalues come in increasing order."""
    atoms = round(sum(atom.mass for atom in limit.atoms) * len(eigenvalues))
    isolated = np.array([spike.value for spike in limit.spikes])
    low, high = float(limit.edges[0, 0]), float(limit.edges[-1, 1])
    below, above = int((isolated < low).sum()), int((isolated > high).sum())
    bulk = eigenvalues[atoms + below * (atoms == 0) : len(eigenvalues) - above]
    found = {
        "ks": _distance(limit, eigenvalues[atoms:]),
        "low": (low - float(bulk[0])) / (high - low),
        "high": (float(bulk[-1]) - high) / (high - low),
        "spikes_count": float(len(isolated)),
    }
    if len(isolated):
        found["spikes"] = _spike_error(limit, equivalent, hidden=True)
        found["spikes_exact"] = _spike_error(limit, eigenvalues, hidden=False)
    for atom in limit.atoms:
        smeared = eigenvalues[:atoms]
        found["atom"] = atom.mass
        found["atom_shift"] = float(smeared.mean()) / atom.value - 1
        found["atom_smear"] = float(smeared.std()) / atom.value
    return found


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
    others = eigenvalues
    for atom in limit.atoms:
        others = others[np.abs(others / atom.value - 1) > 1e-9]
    errors = [0.0]
    for place, value in enumerate(isolated):
        if value > high:
            found = eigenvalues[place - len(isolated)]
        elif value < low and not limit.atoms:
            found = eigenvalues[place]
        elif hidden:
            found = others[np.abs(others - value).argmin()]
        else:
            continue
        errors.append(abs(float(found) / float(value) - 1))
    return max(errors)


def _draw(axes: Axes, kind: str, result: Result) -> None:
    arrays = result.arrays
    values, isolated = arrays[f"{kind}_eigenvalues"], arrays[f"{kind}_isolated"]
    edges: Any = np.linspace(0.98 * values[0], 1.05 * values[-1], 160)
    axes.hist(values, edges, density=True, color=COLORS[5], label="exact kernel")
    density = arrays[f"{kind}_density"]
    density = np.where(density > 0, density, np.nan)
    axes.plot(arrays[f"{kind}_grid"], density, color="black", linewidth=1.2, label="limit")
    least = 1 / (len(values) * float(edges[1] - edges[0]))
    axes.plot(isolated, np.full(len(isolated), 1.3 * least), "kv", markersize=4, label="isolated")
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5 * least)
