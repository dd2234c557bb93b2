r"""Whether a Gaussian process finds the recurrent variance of the DEQ that its data come from."""

from typing import Any

import numpy as np
import torch
from numpy.polynomial import Chebyshev
from torch import Tensor

import shoal
from experiments.drawing import COLORS, GRAY, Axes, logarithmic_axes, new_row, plain_numbers
from experiments.experiment import Experiment, Result, by_point, experiment, grid, matching
from experiments.networks import by_name, network_for
from shoal.activations import Activation

_WIDER = 8  # widths over observations from which on a network counts as infinitely wide
_FINE = 4001  # points at which posteriors are summed
_SCALES = ("known", "free")
# of posteriors: the ends of a 95% interval, mean, mode, and the probability below the truth
_PARTS = ("low", "high", "mean", "mode", "rank")


@experiment("shoal", "recovery")
class Recovery(Experiment):
    r"""Recurrent variances that Gaussian processes recover from data.

    Each draw has a true $\sigma_a^2$, uniform where $0 < \sigma_a^2 L^2 < 1$; a function with the
    conjugate kernel as its covariance, or that of a wide random network; and noise. The posterior
    is computed with the scale of the function known, and with it free, its prior flat in the
    logarithm (noise is relative to it).
    """

    activations: tuple[Activation, ...] = (shoal.activations.ReLU(), shoal.activations.Erf())
    samples: tuple[int, ...] = (50, 200, 800)
    draws: int = 100  # data sets of each kind
    sources: tuple[str, ...] = ("process", "network")
    width: int = 1600  # of networks, for up to an eighth as many samples: beyond, spectra differ
    features: int = 8
    norms: tuple[float, float] = (0.5, 2.0)  # of the inputs, uniform in the logarithm
    noise: float = 1e-3  # its variance
    input_variance: float = 1.0
    degree: int = 20  # of the interpolation of marginal likelihoods in σ_a²
    seed: int = 0  # of inputs; all else has the seed of its point
    small = dict(
        activations=(shoal.activations.ReLU(),), samples=(40, 120), draws=40, sources=("process",),
        degree=12,
    )  # fmt: skip

    def points(self):
        """All draws of one kind share inputs, and so the kernels of the interpolation."""
        names = by_name(self.activations)
        points = grid("samples", activation=names, samples=self.samples, source=self.sources)
        wide = self.width / _WIDER
        return [p for p in points if p["source"] == "process" or p["samples"] <= wide]

    def inputs(self, samples: int) -> Tensor:
        """Directions and norms, the same for all draws."""
        generator = torch.Generator().manual_seed(self.seed)
        x = torch.randn(samples, self.features, dtype=torch.float64, generator=generator)
        low, high = np.log(self.norms)
        share = torch.rand(samples, 1, dtype=torch.float64, generator=generator)
        return torch.nn.functional.normalize(x) * torch.exp(low + (high - low) * share)

    def compute(self, point, seed, device):
        phi = by_name(self.activations)[point["activation"]]
        x = self.inputs(point["samples"]).to(device)
        limit = 1 / phi.lipschitz**2
        random = np.random.default_rng(seed)

        def deq(variance: float) -> shoal.DEQ:
            return shoal.DEQ(phi, float(variance), self.input_variance)

        truths = random.uniform(0, limit, self.draws)
        values = [self._values(deq(v), x, point["source"], random) for v in truths]
        y = torch.stack(values)
        noise = random.standard_normal(tuple(y.shape)) * np.sqrt(self.noise)
        y = y + torch.from_numpy(noise).to(device)
        nodes = np.cos(np.pi * (np.arange(self.degree + 1) + 0.5) / (self.degree + 1))
        variances = limit * (1 + nodes) / 2
        logs = np.stack([self._log_likelihoods(deq(v), x, y) for v in variances])
        arrays: dict[str, Any] = {"truth": truths, "limit": limit}
        for scale, table in zip(_SCALES, logs.transpose(1, 2, 0), strict=True):
            pairs = zip(table, truths, strict=True)
            rows = [posterior(variances, row, limit, truth) for row, truth in pairs]
            for key, column in zip(_PARTS, zip(*rows, strict=True), strict=True):
                arrays[f"{scale}_{key}"] = column
        return arrays

    def _values(self, deq: shoal.DEQ, x: Tensor, source: str, random: Any) -> Tensor:
        """One function of the prior, at the inputs."""
        if source == "process":
            eigenvalues, vectors = torch.linalg.eigh(shoal.kernel(deq, x).ck)
            normal = torch.from_numpy(random.standard_normal(len(x))).to(x)
            return vectors @ (eigenvalues.clamp(min=0).sqrt() * normal)
        network = network_for(deq, x, width=self.width, seed=int(random.integers(2**31)))
        with torch.no_grad():
            return network(x)[:, 0]

    def _log_likelihoods(self, deq: shoal.DEQ, x: Tensor, y: Tensor) -> Any:
        """Log likelihoods of all draws, with known and with free scale. shape: (2, draws)."""
        eigenvalues, vectors = torch.linalg.eigh(shoal.kernel(deq, x).ck)
        spread = eigenvalues.clamp(min=0) + self.noise
        fit = ((y @ vectors) ** 2 / spread).sum(1)
        volume = spread.log().sum()
        # free: the scale is integrated out under its flat prior
        logs = torch.stack([-(fit + volume) / 2, -(len(x) * fit.log() + volume) / 2])
        return logs.cpu().numpy()

    def summarize(self, results):
        def numbers(result: Result) -> dict[str, float]:
            arrays, limit = result.arrays, float(result.arrays["limit"])
            truth = arrays["truth"]
            row: dict[str, float] = {}
            for scale in _SCALES:
                low, high, mean, mode, rank = (arrays[f"{scale}_{k}"] for k in _PARTS)
                row |= {
                    f"{scale}_coverage": ((low <= truth) & (truth <= high)).mean(),
                    f"{scale}_length": (high - low).mean() / limit,
                    f"{scale}_error": np.sqrt(np.mean((mean - truth) ** 2)) / limit,
                    f"{scale}_mode_error": np.sqrt(np.mean((mode - truth) ** 2)) / limit,
                    f"{scale}_rank": rank.mean(),
                }
            return row

        return by_point(results, numbers)

    def plot(self, results):
        names = list(by_name(self.activations))
        figure, (*panels, last) = new_row(4.4 * (len(names) + 1), 4.0, len(names) + 1)
        results = matching(results, {"source": self.sources[0]})
        for axes, name, color in zip(panels, names, COLORS, strict=False):
            mine = matching(results, {"activation": name})
            _draw_intervals(axes, *matching(mine, {"samples": max(self.samples)}))
            summary = self.summarize(mine)
            for scale, line in zip(_SCALES, ("o--", "o-"), strict=True):
                lengths = [v for key, v in summary.items() if key.endswith(f"{scale}_length")]
                look = {"color": color, "markersize": 4, "label": f"{name}, scale {scale}"}
                last.plot(self.samples, lengths, line, **look)
        logarithmic_axes(last, self.samples, "observations $n$")
        last.set_ylabel("mean length of intervals / range of the prior")
        plain_numbers(last)
        last.legend()
        return figure


def posterior(variances: Any, logs: Any, limit: float, truth: float) -> tuple[float, ...]:
    """The parts of a posterior under a uniform prior, from log likelihoods at Chebyshev nodes."""
    series = Chebyshev.fit(variances, logs, len(logs) - 1, domain=[0, limit])
    grid = limit * (np.arange(_FINE) + 0.5) / _FINE
    values = series(grid)
    weights = np.exp(values - values.max())
    weights /= weights.sum()
    cumulative = weights.cumsum()
    low, high = np.interp((0.025, 0.975), cumulative, grid)
    rank = np.interp(truth, grid, cumulative)
    return low, high, weights @ grid, grid[values.argmax()], rank


def _draw_intervals(axes: Axes, result: Result) -> None:
    """Intervals with free scale; those that miss the truth stand out."""
    arrays, point = result.arrays, result.point
    truth, limit = arrays["truth"], float(arrays["limit"])
    low, high = arrays["free_low"], arrays["free_high"]
    hit = (low <= truth) & (truth <= high)
    for part, color in ((hit, COLORS[0]), (~hit, COLORS[1])):
        axes.vlines(truth[part], low[part], high[part], color=color, linewidth=0.8, alpha=0.7)
    axes.plot(truth, arrays["free_mode"], ".", color=GRAY, markersize=3)
    axes.plot([0, limit], [0, limit], "--", color=GRAY, linewidth=1)
    axes.set(xlabel=r"true $\sigma_a^2$", ylabel=r"95% interval and mode of $\sigma_a^2$")
    axes.set_title(f"{point['activation']}, n = {point['samples']}: covers {hit.mean():.1%}")
