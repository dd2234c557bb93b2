"""Learning curves from the covariance alone, beside simulations and digits.

python benchmarks/hermite_law.py [--sets 8] [--out hermite_law]

Gaussian inputs whose variances fall as i^-a, a target of three linear parts and two products, and
scikit-learn's digits, centered and of norm one: what is predicted, what is measured.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import shoal

DEQ = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
TARGET = {(0,): 1.0, (1,): 0.5, (5,): 0.5, (0, 1): 0.5, (2, 3): 0.3}
LAWS = {0.3: 100, 1.0: 100, 1.5: 100}  # powers and dimensions
COLORS = ("#0072B2", "#009E73", "#E69F00")
SIZES, NOISE, RIDGE = [25, 50, 100, 200, 400], 0.1, 0.1


def variances(power: float, count: int) -> Tensor:
    """Of the components, with a sum of one."""
    values = torch.arange(1, count + 1, dtype=torch.float64) ** -power
    return values / values.sum()


def drawn(n: int, spread: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, len(spread) + 1, generator=generator, dtype=torch.float64)
    y = z[:, 0] + 0.5 * z[:, 1] + 0.5 * z[:, 5] + 0.5 * z[:, 0] * z[:, 1] + 0.3 * z[:, 2] * z[:, 3]
    return z[:, :-1] * spread.sqrt(), y + NOISE**0.5 * z[:, -1]


def error(x: Tensor, y: Tensor, new: Tensor, truth: Tensor) -> float:
    """Of a regression on new samples."""
    inner = shoal.kernel(DEQ, x).ntk + RIDGE * torch.eye(len(x))
    values = shoal.kernel(DEQ, new, x).ntk @ torch.linalg.solve(inner, y)
    return float((values - truth).square().mean())


def digits() -> tuple[Tensor, Tensor]:
    """Centered, of norm one, shuffled, with indicators of classes."""
    data = shoal.data.load("digits", split="all", dtype=torch.float64)
    x = data.x.flatten(1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.normalize((x - x.mean(0))[order])
    return x, torch.nn.functional.one_hot(data.y[order].long()).double()


def repeated(x: Tensor, y: Tensor, n: int, sets: int) -> float:
    """The mean error of regressions on random samples, tested on the others."""
    total = 0.0
    for seed in range(sets):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        some, new = order[:n], order[n:]
        total += error(x[some], y[some], x[new], y[new]) / sets
    return total


def main() -> None:
    """Draw eigenvalues, curves of Gaussian inputs, and the curve of digits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("hermite_law"))
    options = parser.parse_args()
    figure = Figure(figsize=(12.6, 3.9), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for (power, count), color in zip(LAWS.items(), COLORS, strict=True):
        law = shoal.learning.HermiteLaw(variances(power, count), TARGET, NOISE)
        spectrum, (x, _) = law.spectrum(DEQ), drawn(1500, law.variances, 1)
        sampled = torch.linalg.eigvalsh(shoal.kernel(DEQ, x).ntk).flip(0) / 1500
        ranks, shown = torch.arange(1, 101), f"dimension {spectrum.effective_dimension:.0f}"
        left.plot(ranks, spectrum.values[:100], color=color, label=shown)
        some = torch.tensor([1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 94])
        left.plot(some, sampled[some - 1], "o", color=color, markersize=4)
        curve = shoal.learning_curve(DEQ, law, n=SIZES, ridge=RIDGE)
        truth = []
        for n in SIZES:
            runs = (
                error(*drawn(n, law.variances, 10 + s), *drawn(1500, law.variances, 900 + s))
                for s in range(options.sets)
            )
            truth.append(sum(runs) / options.sets)
        off = [float(p) / t - 1 for p, t in zip(curve.test_error, truth, strict=True)]
        print(f"{shown}: " + " ".join(f"{value:+.1%}" for value in off), flush=True)
        middle.plot(SIZES, curve.test_error, color=color, label=shown)
        middle.plot(SIZES, truth, "o", color=color, markersize=4)
    x, y = digits()
    sizes = [25, 50, 100, 200, 400, 600]
    curve = shoal.learning_curve(
        DEQ, shoal.learning.HermiteLaw.fit(x[:1000], y[:1000]), n=sizes, ridge=0.1
    )
    low, high = (curve.test_error + sign * curve.uncertainty for sign in (-1, 1))
    right.fill_between(sizes, low, high, color=COLORS[0], alpha=0.25, linewidth=0)
    right.plot(sizes, curve.test_error, color=COLORS[0], label="covariance and moments")
    truth = [repeated(x[1000:], y[1000:], n, options.sets) for n in sizes]
    right.plot(sizes, truth, "o", color=COLORS[0], markersize=4, label="measured")
    off = [float(p) / t - 1 for p, t in zip(curve.test_error, truth, strict=True)]
    print("digits, checks: " + " ".join(f"{c.deviation:+.1%}" for c in curve.checks))
    print("digits: " + " ".join(f"{value:+.1%}" for value in off))
    titles = ("eigenvalues, predicted and sampled", "errors, predicted and measured", "digits")
    for axes, title in zip((left, middle, right), titles, strict=True):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(title)
        axes.legend(framealpha=0.7, edgecolor="none", fontsize=8)
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.set_xlabel("rank" if axes is left else "training samples")
    for axes, ticks in ((middle, SIZES), (right, sizes)):
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="y", which="both", labelsize=7)
    figure.savefig(options.out.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
