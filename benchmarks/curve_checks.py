"""How far predicted learning curves are from the truth, and how often as far as they say.

python benchmarks/curve_checks.py [--datasets N]

Linear regression on Gaussian features of a known spectrum, where the error of kernel ridge
regression is known in closed form (Simon et al. 2021): the mean of what is predicted over the
truth, and the share of predictions within one and two stated deviations of it.
"""

import argparse
import math

import torch
from scipy.optimize import brentq
from torch import Tensor

import shoal

LINEAR = shoal.FullyConnected((shoal.activations.Identity(),))
FEATURES, SAMPLES = 1000, 200
SIZES = [10, 25, 50, 100, 150, 200, 300, 400]


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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=24)
    options = parser.parse_args()
    coverage(options.datasets)


if __name__ == "__main__":
    main()
