"""Learning curves on MNIST and Fashion-MNIST: predicted from some images, measured on others.

python benchmarks/learning_curves.py --data FOLDER [--samples 1500] [--sizes 100 ...] [--new 2000]
    [--device cpu] [--out learning_curves]

Writes FOLDER-independent numbers to OUT.json and a picture to OUT.png. With a GPU, for instance:
--device cuda --samples 20000 --sizes 100 300 1000 3000 10000 20000 40000 --new 5000.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import shoal
from shoal.kernels import kernel_function
from shoal.prediction.learning_curve import curve_of
from shoal.prediction.subsampling import Subsampling
from shoal.regression.memory import byte_limit
from shoal.regression.problem import Problem, checked_problem
from shoal.regression.ridge_path import decomposed

RIDGES = (0.0, 0.1, 1.0)
DEQ = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)
NETWORKS = {
    "DEQ, CK": (DEQ, "ck"),
    "DEQ, NTK": (DEQ, "ntk"),
    "three layers, NTK": (shoal.FullyConnected((shoal.ReLU(),) * 3), "ntk"),
}
DATASETS = ("mnist", "fashion-mnist")
REPEATS = 2  # training sets of each size, as far as they go


@dataclass(frozen=True)
class Images:
    """Shuffled training images, of norm one, and the official test images."""

    x: torch.Tensor
    labels: torch.Tensor
    test_x: torch.Tensor
    test_labels: torch.Tensor


def load(name: str, folder: str, device: str) -> Images:
    """Both splits."""
    train, test = (
        shoal.data.load(name, split=split, folder=folder, dtype=torch.float64)
        .pipe(shoal.data.flatten)
        .pipe(shoal.data.unit_norm)
        for split in ("train", "test")
    )
    order = torch.randperm(len(train.x), generator=torch.Generator().manual_seed(0))
    parts = (train.x[order], train.y[order].long(), test.x, test.y.long())
    return Images(*(part.to(device) for part in parts))


def measured(
    images: Images, network: Any, which: str, ridge: float, size: int, new: int
) -> dict[str, Any]:
    """Errors of regressions on images that are none of the first ones, if there are enough."""
    one_hot = torch.eye(10, dtype=torch.float64, device=images.x.device)
    rest = slice(len(images.x) - new, None)
    rows = []
    for k in range(REPEATS):
        stop = len(images.x) - new - k * size
        if stop - size < 0:
            break
        some = slice(stop - size, stop)
        labels = images.labels[some]
        fit = shoal.kernel_regression(
            network, images.x[some], one_hot[labels], ridge=ridge, which=which
        )
        row = []
        for x, truth in (
            (images.x[rest], images.labels[rest]),
            (images.test_x[:new], images.test_labels[:new]),
        ):
            values = fit.predict(x)
            wrong = (values.argmax(1) != truth).double().mean()
            row += [float((values - one_hot[truth]).square().mean()), float(wrong)]
        rows.append(row)
    means = torch.tensor(rows).mean(0).tolist()
    names = ("error", "rate", "official_error", "official_rate")
    return {"sets": len(rows), **dict(zip(names, means, strict=True))}


def curves(problem: Problem, sizes: list[int]) -> Iterator[shoal.LearningCurve]:
    """A curve for each ridge, from one decomposition of all samples and one of half of them."""
    limit, half = byte_limit(problem, None), problem.size // 2
    some = Problem(problem.function, problem.x[:half], problem.y[:half], 0.0, problem.kernel)
    both = [decomposed(p, limit) for p in (problem, some)]
    for ridge in RIDGES:
        whole, other = (Subsampling(parts, ridge, True) for parts in both)
        yield curve_of(whole, other, sizes, repeats=3, seed=0)


def rows_of(name: str, images: Images, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is predicted and what is measured, for all networks, ridges and sizes."""
    count = options.samples
    y = torch.eye(10, dtype=torch.float64)[images.labels[:count].cpu()].to(images.x.device)
    for label, (network, which) in NETWORKS.items():
        function = kernel_function(network)
        problem = checked_problem(function, images.x[:count], y, 0.0, which)
        for curve in curves(problem, options.sizes):
            for i, size in enumerate(options.sizes):
                found = measured(images, network, which, curve.ridge, size, options.new)
                row = {
                    "data": name,
                    "network": label,
                    "ridge": curve.ridge,
                    "size": size,
                    "limit": curve.limit,
                    "predicted": float(curve.test_error[i]),
                    "uncertainty": float(curve.uncertainty[i]),
                    "predicted_rate": float(curve.error_rate[i]),
                    **found,
                }
                print(
                    f"{name} {label} λ={curve.ridge:g} n={size}: predicted {row['predicted']:.5f} "
                    f"± {row['uncertainty']:.5f}, measured {row['error']:.5f} "
                    f"({row['predicted'] / row['error'] - 1:+.1%}), rates "
                    f"{row['predicted_rate']:.4f} {row['rate']:.4f}, official test "
                    f"{row['official_error']:.5f}",
                    flush=True,
                )
                yield row


def picture(rows: list[dict[str, Any]]) -> Figure:
    """A panel for each dataset and network, lines predicted, points measured."""
    figure = Figure(figsize=(12.6, 6.4), layout="constrained")
    panels = figure.subplots(len(DATASETS), len(NETWORKS), sharex=True)
    for data, line in zip(DATASETS, panels, strict=True):
        for network, axes in zip(NETWORKS, line, strict=True):
            for ridge, color in zip(RIDGES, ("#0072B2", "#E69F00", "#009E73"), strict=True):
                key = (data, network, ridge)
                some = [r for r in rows if (r["data"], r["network"], r["ridge"]) == key]
                sizes = [r["size"] for r in some]
                values = torch.tensor([[r["predicted"], r["uncertainty"]] for r in some])
                low, high = values[:, 0] - values[:, 1], values[:, 0] + values[:, 1]
                axes.fill_between(sizes, low, high, color=color, alpha=0.25, linewidth=0)
                axes.plot(sizes, values[:, 0], color=color, label=f"λ = {ridge:g}")
                axes.plot(sizes, [r["error"] for r in some], "o", color=color, markersize=4)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_title(f"{data}: {network}")
            axes.xaxis.set_minor_formatter("")
            axes.grid(color="#e4e4e4", linewidth=0.6)
    panels[0][0].legend(framealpha=0.7, edgecolor="none")
    figure.supxlabel("training samples")
    figure.supylabel("mean squared error on new images")
    return figure


def main() -> None:
    """Predict and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--samples", type=int, default=1500)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 200, 400, 800, 1500, 2500])
    parser.add_argument("--new", type=int, default=2000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("learning_curves"))
    options = parser.parse_args()
    rows = []
    for name in DATASETS:
        rows += list(rows_of(name, load(name, options.data, options.device), options))
    told = {"samples": options.samples, "new": options.new, "rows": rows}
    options.out.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")
    picture(rows).savefig(options.out.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
