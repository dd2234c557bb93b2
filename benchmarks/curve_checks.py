"""How far predicted learning curves are from the truth, and how often as far as they say.

python benchmarks/curve_checks.py [--datasets N] [--pools N]

First, linear regression on Gaussian features of a known spectrum, where the error of kernel ridge
regression is known in closed form (Simon et al. 2021): the mean of what is predicted over the
truth, and the share of predictions within one and two stated deviations of it. Then mixtures of
growing dimension, whose predicted errors come from equivalents alone: differences from simulations,
and the power of the dimension with which they fall.
"""

import argparse
import math

import mixture_curves
import numpy as np
import torch
from scipy.optimize import brentq, curve_fit
from torch import Tensor

import shoal

LINEAR = shoal.FullyConnected((shoal.activations.Identity(),))
FEATURES, SAMPLES = 1000, 200
SIZES = [10, 25, 50, 100, 150, 200, 300, 400]
RIDGE = 0.3  # of the mixtures


def normal(*shape: int, seed: int) -> Tensor:
    """Independent standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def exact_error(spectrum: Tensor, noise: float, n: int, ridge: float) -> float:
    """The test error for coefficients of one, from the spectrum of the features."""

    def excess(log: float) -> float:
        return float((spectrum / (spectrum + math.exp(log))).sum()) + ridge / math.exp(log) - n

    learned = spectrum / (spectrum + math.exp(brentq(excess, -80, 60)))
    bias = float(((1 - learned) ** 2 * spectrum).sum()) + noise**2
    return bias * n / (n - float((learned**2).sum()))


def coverage(datasets: int) -> None:
    """Predictions from many datasets beside the truth."""
    scale = float(shoal.kernel(LINEAR, torch.eye(1, FEATURES, dtype=torch.float64)).ck)
    print(f"{'decay':>5} {'noise':>5} {'ridge':>5} | by n = {SIZES}")
    for decay in (0.7, 1.5):
        spectrum = torch.arange(1, FEATURES + 1, dtype=torch.float64) ** -decay
        for noise, ridge in ((s, r) for s in (0.0, 0.5) for r in (0.0, 0.1, 2.0)):
            truth = torch.tensor([exact_error(spectrum, noise, n, ridge) for n in SIZES])
            found = []
            for seed in range(datasets):
                x = normal(SAMPLES, FEATURES, seed=10 * seed) * spectrum.sqrt()
                y = x.sum(1) + noise * normal(SAMPLES, seed=10 * seed + 1)
                curve = shoal.learning_curve(
                    LINEAR, x, y, SIZES, ridge=ridge * scale, which="ck", seed=seed
                )
                found.append(torch.stack([curve.test_error, curve.uncertainty]))
            error, deviation = torch.stack(found, 1)
            off = (error - truth).abs() / deviation
            claimed = ~error.isnan()
            rows = {
                "mean over truth": (error / truth).nanmean(0),
                "within one": ((off < 1) & claimed).sum(0) / claimed.sum(0),
                "within two": ((off < 2) & claimed).sum(0) / claimed.sum(0),
            }
            for name, row in rows.items():
                numbers = " ".join(f"{value:6.2f}" for value in row.tolist())
                print(f"{decay:5} {noise:5} {ridge:5} | {numbers}  {name}", flush=True)


def simulated(mixture: shoal.GaussianMixture, n: int, pools: int) -> tuple[Tensor, Tensor]:
    """Squared error and error rate of regressions on samples, and their standard errors."""
    traces = torch.stack([torch.as_tensor(c.trace()) for c in mixture.covariances])
    norms = (mixture.means.square().sum(1) + traces) / mixture.means.shape[1]
    net = shoal.centered(mixture_curves.DEQ, math.sqrt(float(mixture.proportions @ norms)))
    sets, means = max(1, 960 // n), []
    for seed in range(pools):
        x, labels = mixture.sample(sets * n + 2000, seed=100 + seed, shuffle=True)
        matrix = shoal.kernel(net, x, x[: sets * n]).ntk
        y, new = torch.nn.functional.one_hot(labels, 2).double(), slice(sets * n, None)
        errors = []
        for k in range(sets):
            own = slice(k * n, (k + 1) * n)
            system = matrix[own, own] + RIDGE * torch.eye(n, dtype=torch.float64)
            values = matrix[new, own] @ torch.linalg.solve(system, y[own])
            wrong = (values.argmax(1) != labels[new]).double().mean()
            errors.append(torch.stack([(values - y[new]).square().mean(), wrong]))
        means.append(torch.stack(errors).mean(0))
    found = torch.stack(means)
    return found.mean(0), found.std(0) / math.sqrt(pools)


def slopes(pools: int) -> None:
    """Differences of theory and simulation against the dimension."""
    rows = []
    for p in (20, 40, 80, 160):
        mixture, n = mixture_curves.mixture(p), 3 * p // 2
        curve = shoal.learning_curve(mixture_curves.DEQ, mixture, n=n, ridge=RIDGE)
        theory = torch.tensor([float(curve.test_error), float(curve.error_rate)]).double()
        mean, deviation = simulated(mixture, n, pools)
        off = mean - theory
        rows.append([p, *off.tolist(), *deviation.tolist()])
        print(
            f"p = {p}: squared error {off[0]:+.5f} ± {deviation[0]:.5f}, "
            f"error rate {off[1]:+.5f} ± {deviation[1]:.5f}",
            flush=True,
        )
    table = np.array(rows)
    (_, power), covariance = curve_fit(
        lambda p, size, power: size * (p / 40) ** power,
        table[:, 0],
        table[:, 2],
        p0=(table[1, 2], -0.5),
        sigma=table[:, 4],
        absolute_sigma=True,
    )
    print(f"the difference of error rates falls as p^({power:.2f} ± {covariance[1, 1] ** 0.5:.2f})")


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=24)
    parser.add_argument("--pools", type=int, default=30)
    options = parser.parse_args()
    coverage(options.datasets)
    slopes(options.pools)


if __name__ == "__main__":
    main()
