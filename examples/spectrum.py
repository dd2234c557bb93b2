"""The spectrum of a DEQ's kernel on a mixture: predicted, and that of an exact kernel matrix.

The law has bulks, an atom and spikes; the spikes say which classes the kernel separates. Takes
about ten seconds.

    python examples/spectrum.py [--output spectrum.png]

It prints:

                              predicted    measured
    share below the bulk          0.500       0.486
    quantile  0.6                0.2333      0.2330
    quantile  0.8                0.5212      0.5246
    quantile 0.97                2.3026      2.3271
    isolated eigenvalue           3.848       3.909
    isolated eigenvalue           5.101       5.086
"""

import argparse

import numpy as np
import torch
from matplotlib.figure import Figure

import shoal
from shoal.core.figures import COLORS, GRAY, style

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--output", default="spectrum.png", help="where to save the figure")
output = parser.parse_args().output

DIMENSION, SAMPLES = 1000, 2000

# %% Two classes with different means, and with covariances that have a few large directions.
means = np.zeros((2, DIMENSION))
means[0, 0], means[1, 1] = 4, -4
first = np.repeat([0.7, 1.0, 5.0], [450, 450, 100])
second = np.repeat([1.0, 0.7, 5.5], [450, 450, 100])
mixture = shoal.GaussianMixture(means, [first, second], [0.6, 0.4])

# %% The law, without a sample, and the eigenvalues of one exact kernel matrix.
deq = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
law = shoal.spectrum(deq, mixture, n=SAMPLES).ck
x, _ = mixture.sample(SAMPLES, seed=0)
norm = float(x.square().sum(1).mean().sqrt())
eigenvalues = torch.linalg.eigvalsh(shoal.kernel(shoal.centered(deq, norm), x).ck).numpy()
outside = eigenvalues[eigenvalues > 1.02 * law.edges[-1, 1]]
beyond = [spike.value for spike in law.spikes if spike.value > law.edges[-1, 1]]

atom = law.atoms[0]
start = (atom.value + law.edges[0, 0]) / 2
print("                          predicted    measured")
print(f"share below the bulk      {atom.mass:9.3f} {np.mean(eigenvalues < start):11.3f}")
for level in (0.6, 0.8, 0.97):
    print(f"quantile {level:4}             {float(law.quantile(level)):9.4f}", end=" ")
    print(f"{np.quantile(eigenvalues, level):11.4f}")
for predicted, measured in zip(beyond, outside, strict=True):
    print(f"isolated eigenvalue       {predicted:9.3f} {measured:11.3f}")

# %% Half of the eigenvalues are the atom; the histogram shows the others at their true mass.
with style():
    figure = Figure(figsize=(8, 3.4))
    axes = figure.subplots()
    top = 1.05 * max(outside[-1], beyond[-1])
    bins = np.linspace(start, top, 160)
    weights = np.full(SAMPLES, 1 / (SAMPLES * (bins[1] - bins[0])))
    axes.hist(eigenvalues, bins, weights=weights, color="#9ecae1", label="exact kernel")
    grid = np.linspace(start, top, 3000)
    axes.plot(grid, law.density(grid), color=COLORS[0], linewidth=1.2, label="predicted density")
    for edge in law.edges.flat:
        axes.axvline(edge, color=GRAY, linewidth=0.6, linestyle=":")
    height = axes.get_ylim()[1]
    axes.plot(beyond, [0.04 * height] * 2, "v", color=COLORS[1], label="predicted spikes")
    axes.plot(outside, [0.0] * 2, "|", color="black", markersize=12, label="eigenvalues outside")
    axes.set(xlabel="eigenvalue", ylabel="density", xlim=(0, top))
    axes.legend()
    figure.savefig(output, dpi=130)
