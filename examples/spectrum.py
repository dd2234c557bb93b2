"""The spectrum of a DEQ's kernel, exact and predicted: makes docs/images/spectrum.png."""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

import shoal

mpl.use("Agg")
from matplotlib import pyplot as plt

DIMENSION, SAMPLES = 1000, 2000


def mixture() -> shoal.GaussianMixture:
    """Two classes with different means, and with covariances that have a few large directions."""
    means = np.zeros((2, DIMENSION))
    means[0, 0], means[1, 1] = 4, -4
    first = np.repeat([0.7, 1.0, 5.0], [450, 450, 100])
    second = np.repeat([1.0, 0.7, 5.5], [450, 450, 100])
    return shoal.GaussianMixture(means, [first, second], [0.6, 0.4])


def main(path: Path) -> None:
    """Draw the picture."""
    deq = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)
    mix = mixture()
    predicted = shoal.spectrum(deq, mix, n=SAMPLES).ck
    x, _ = mix.sample(SAMPLES, seed=0)
    norm = float(x.square().sum(1).mean().sqrt())
    kernel = shoal.kernel(shoal.centered(deq, norm), x).ck
    eigenvalues = torch.linalg.eigvalsh(kernel).numpy()

    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    # half of the eigenvalues are the atom; the histogram shows the others at their true mass
    atom = predicted.atoms[0]
    start = (atom.value + predicted.edges[0, 0]) / 2
    top = max(eigenvalues[-1], predicted.spikes[-1].value) * 1.05
    bins = np.linspace(start, top, 160)
    weights = np.full(len(eigenvalues), 1 / (len(eigenvalues) * (bins[1] - bins[0])))
    axes.hist(eigenvalues, bins, weights=weights, color="#9ecae1", label="exact kernel")
    grid = np.linspace(start, top, 3000)
    axes.plot(grid, predicted.density(grid), color="#08306b", lw=1.2, label="predicted density")
    for edge in predicted.edges.flat:
        axes.axvline(edge, color="#08306b", lw=0.6, ls=":")
    beyond = [s.value for s in predicted.spikes if s.value > predicted.edges[-1, 1]]
    height = axes.get_ylim()[1]
    axes.plot(beyond, [0.04 * height] * len(beyond), "v", color="#cb181d", label="predicted spikes")
    outside = eigenvalues[eigenvalues > 1.02 * predicted.edges[-1, 1]]
    axes.plot(outside, [0.0] * len(outside), "|", color="black", ms=12, label="eigenvalues outside")
    axes.set(xlabel="eigenvalue", ylabel="density", xlim=(0, top))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
    sys.stdout.write(f"{predicted}\n{outside}\n")


if __name__ == "__main__":
    main(Path(__file__).parents[1] / "docs" / "images" / "spectrum.png")
