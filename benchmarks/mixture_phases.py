"""Errors on a Gaussian mixture over samples and ridge: theory as a plane, simulations as points.

python benchmarks/mixture_phases.py [--dimension 100] [--repeats 3] [--out mixture_phases]

Writes OUT.png, and prints how far the points are off the plane.
"""

import argparse
import math
from pathlib import Path

import torch
from matplotlib.figure import Figure
from mixture_curves import DEQ, mixture

import shoal

RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)  # samples over dimensions
RIDGES = (0.01, 0.1, 1.0, 10.0)
NEW = 1500  # samples to test on


def simulated(mix: shoal.GaussianMixture, n: int, repeats: int) -> torch.Tensor:
    """Mean squared errors and error rates for each ridge, from one kernel matrix a repetition."""
    found = []
    norms = mix.means.square().sum(1) + torch.tensor([c.trace() for c in mix.covariances])
    network = shoal.centered(DEQ, math.sqrt(float(mix.proportions @ norms) / mix.dimension))
    for seed in range(repeats):
        x, labels = mix.sample(n + NEW, seed=seed, shuffle=True)
        kernel = shoal.kernel(network, x, x[:n]).ntk
        y = torch.nn.functional.one_hot(labels, 2).double()
        rows = []
        for ridge in RIDGES:
            inner = kernel[:n] + ridge * torch.eye(n, dtype=torch.float64)
            values = kernel[n:] @ torch.linalg.solve(inner, y[:n])
            wrong = (values.argmax(1) != labels[n:]).double().mean()
            rows.append([float((values - y[n:]).square().mean()), float(wrong)])
        found.append(rows)
    return torch.tensor(found, dtype=torch.float64).mean(0)


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dimension", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("mixture_phases"))
    options = parser.parse_args()
    p = options.dimension
    mix = mixture(p)
    ratios, ridges = torch.logspace(-0.8, 0.8, 25), torch.logspace(-2.5, 1.5, 25)
    sizes = (ratios * p).round().long().tolist()
    plane = [shoal.learning_curve(DEQ, mix, n=sizes, ridge=float(r)) for r in ridges]
    points = torch.stack([simulated(mix, int(r * p), options.repeats) for r in RATIOS])
    figure = Figure(figsize=(10.4, 4.0), layout="constrained")
    titles = ("mean squared error on new samples", "share of wrong classes")
    for k, (axes, title) in enumerate(zip(figure.subplots(1, 2), titles, strict=True)):
        heights = torch.stack([c.error_rate if k else c.test_error for c in plane])
        low, high = float(heights.min()), float(heights.max())
        levels = torch.linspace(low, high, 15).tolist()
        colored = axes.contourf(ratios, ridges, heights, levels, vmin=low, vmax=high)
        where = torch.cartesian_prod(torch.tensor(RATIOS), torch.tensor(RIDGES)).T
        colors = points[..., k].flatten()
        axes.scatter(*where, c=colors, vmin=low, vmax=high, s=70, edgecolors="white")
        figure.colorbar(colored, ax=axes, format="%.2f")
        best = heights.argmin(0)
        axes.plot(ratios, ridges[best], "--", color="white", label="best ridge")
        axes.set(title=title, xlabel="samples / dimension", ylabel="ridge λ")
        axes.set(xscale="log", yscale="log")
        axes.xaxis.set_minor_formatter("")
        axes.set_xticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS])
        axes.legend(loc="lower left", labelcolor="white", framealpha=0.0)
    figure.savefig(options.out.with_suffix(".png"), dpi=110)
    theory = torch.stack(
        [
            torch.stack([curve.test_error, curve.error_rate], 1)
            for r in RIDGES
            for curve in [shoal.learning_curve(DEQ, mix, n=[int(a * p) for a in RATIOS], ridge=r)]
        ],
        1,
    )
    off = points - theory
    for name, values, base in zip(titles, off.unbind(2), theory.unbind(2), strict=True):
        print(f"{name}: simulated less theory, rows of {RATIOS}, columns of ridges {RIDGES}")
        print(values.numpy().round(3), f"at most {float((values / base).abs().max()):.1%}")


if __name__ == "__main__":
    main()
