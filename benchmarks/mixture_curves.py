"""Errors on a Gaussian mixture against the number of samples: theory, and simulated points.

python benchmarks/mixture_curves.py [--dimension 100] [--repeats 4] [--out mixture_curves]

Prints a table of theory over simulation for growing dimensions, and writes OUT.png.
"""

import argparse
import math
from pathlib import Path

import torch
from matplotlib.figure import Figure

import shoal

DEQ = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
RIDGES = {0.0: "#0072B2", 0.3: "#E69F00", 3.0: "#009E73"}
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)


def mixture(dimension: int) -> shoal.GaussianMixture:
    """Two classes that differ a little in their means and in their norms."""
    means = torch.zeros(2, dimension, dtype=torch.float64)
    means[0, 0], means[1, 1] = 2.0, -1.0
    return shoal.GaussianMixture(means, [1.0, 1 + 2 / math.sqrt(dimension)], [0.6, 0.4])


def simulated(
    mix: shoal.GaussianMixture, n: int, ridge: float, repeats: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean squared error and error rate on new samples, and their standard errors."""
    p = mix.dimension
    norms = (mix.means.square().sum(1) + torch.tensor([c.trace() for c in mix.covariances])) / p
    network = shoal.centered(DEQ, math.sqrt(float(mix.proportions @ norms)))
    found = []
    for seed in range(repeats):
        x, labels = mix.sample(n + 1000, seed=seed, shuffle=True)
        kernel = shoal.kernel(network, x, x[:n]).ntk
        y = torch.nn.functional.one_hot(labels, 2).double()
        inner = kernel[:n] + ridge * torch.eye(n, dtype=torch.float64)
        values = kernel[n:] @ torch.linalg.solve(inner, y[:n])
        wrong = (values.argmax(1) != labels[n:]).double().mean()
        found.append([float((values - y[n:]).square().mean()), float(wrong)])
    table = torch.tensor(found, dtype=torch.float64)
    return table.mean(0), table.std(0) / math.sqrt(repeats)


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dimension", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("mixture_curves"))
    options = parser.parse_args()
    for p in (25, 50, 100, 200):
        mix, n = mixture(p), 3 * p // 2
        curve = shoal.learning_curve(DEQ, mix, n=n, ridge=0.3)
        mean, error = simulated(mix, n, 0.3, options.repeats * 200 // p)
        print(
            f"p = {p}, n = {n}: test error {float(curve.test_error):.5f}, simulated {mean[0]:.5f} "
            f"± {error[0]:.5f}; rate {float(curve.error_rate):.4f}, {mean[1]:.4f} ± {error[1]:.4f}",
            flush=True,
        )
    figure = Figure(figsize=(10.4, 3.8), layout="constrained")
    errors, rates = figure.subplots(1, 2)
    mix = mixture(options.dimension)
    fine = torch.logspace(math.log10(0.2), math.log10(5), 20) * options.dimension
    for ridge, color in RIDGES.items():
        curve = shoal.learning_curve(DEQ, mix, n=fine.round().long().tolist(), ridge=ridge)
        ratios = curve.sizes / options.dimension
        errors.plot(ratios, curve.test_error, color=color, label=f"λ = {ridge:g}")
        rates.plot(ratios, curve.error_rate, color=color)
        for ratio in RATIOS:
            mean, error = simulated(mix, int(ratio * options.dimension), ridge, options.repeats)
            for axes, m, e in zip((errors, rates), mean, error, strict=True):
                axes.errorbar(ratio, m, 2 * e, fmt="o", color=color, markersize=4)
    errors.set_title("mean squared error on new samples")
    rates.set_title("share of wrong classes")
    errors.legend(framealpha=0.7, edgecolor="none")
    for axes in (errors, rates):
        axes.set_xscale("log")
        axes.set_xlabel("samples / dimension")
        axes.xaxis.set_minor_formatter("")
        axes.grid(color="#e4e4e4", linewidth=0.6)
    figure.savefig(options.out.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
