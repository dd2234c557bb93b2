"""Learning curves on MNIST and Fashion-MNIST: predicted from some images, measured on others.

python benchmarks/learning_curves.py --data FOLDER [--device cpu] [--samples 1500]
    [--sizes 100 ...] [--new 2000] [--seconds 3600] [--out learning_curves]
python benchmarks/learning_curves.py --draw [--out learning_curves]

Both official sets are shuffled together. Predictions are from the first images, regressions are
tested on the last ones and trained on those before these: for the largest sizes, on some of the
first ones too. Rows go to OUT.jsonl as they come; what is there is not done again. The second
command draws OUT.png and prints a table. On one GPU:
--device cuda --samples 10000 30000 --sizes 100 300 1000 3000 10000 20000 60000 --new 5000.

What counts was fixed before that run: a prediction is claimed up to ``limit`` of its curve, which
the curve says itself (at most twice its samples; without a ridge, as many). Within that, all are
wanted within 10% of what is measured. Beyond, nothing is drawn and nothing is counted.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import shoal

RIDGES = (0.0, 0.1, 1.0)
DEQ = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
NETWORKS = {
    "DEQ, CK": (DEQ, "ck"),
    "DEQ, NTK": (DEQ, "ntk"),
    "three layers, NTK": (shoal.FullyConnected((shoal.activations.ReLU(),) * 3), "ntk"),
}
DATASETS = ("mnist", "fashion-mnist")
WANTED = 0.1
SETS, IMAGES = (2, 10), 10000  # training sets of each size, as far as they go; of so many images

Row = dict[str, Any]


@dataclass(frozen=True)
class Images:
    """Shuffled images, of norm one, and indicators of their classes."""

    x: torch.Tensor
    y: torch.Tensor


def load(name: str, folder: str, device: str) -> Images:
    """Both official sets together."""
    parts = [
        shoal.data.load(name, split=split, folder=folder, dtype=torch.float64)
        for split in ("train", "test")
    ]
    x = torch.nn.functional.normalize(torch.cat([p.x.flatten(1) for p in parts]))
    labels = torch.cat([p.y.long() for p in parts])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    indicators = torch.eye(10, dtype=torch.float64)[labels[order]]
    return Images(x[order].to(device), indicators.to(device))


@dataclass(frozen=True)
class Records:
    """Rows of a file, to which new ones are added until the time is over."""

    path: Path
    end: float

    def rows(self) -> list[Row]:
        """Those that are there."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def missing(self, key: Row) -> bool:
        """Whether a row is to be made."""
        there = any(all(row.get(k) == v for k, v in key.items()) for row in self.rows())
        return not there and time.monotonic() < self.end

    def add(self, row: Row) -> None:
        """Write a row, NaN as null."""
        plain = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()
        }
        with self.path.open("a") as file:
            file.write(json.dumps(plain) + "\n")
        print(json.dumps(plain), flush=True)


def measured(images: Images, label: str, ridge: float, size: int, new: int) -> Row:
    """Errors of regressions on images that are none of the last ones."""
    network, which = NETWORKS[label]
    x, y = images.x[-new:], images.y[-new:]
    errors, rates = [], []
    for k in range(max(SETS[0], min(SETS[1], IMAGES // size))):
        stop = len(images.x) - new - k * size
        if stop - size < 0:
            break
        some = slice(stop - size, stop)
        try:
            fit = shoal.kernel_regression(
                network, images.x[some], images.y[some], ridge=ridge, which=which
            )
        except shoal.AccuracyError:  # without a ridge, of equal images
            return {"sets": 0, "error": math.nan, "rate": math.nan}
        values = fit.predict(x)
        errors.append(float((values - y).square().mean()))
        rates.append(float((values.argmax(1) != y.argmax(1)).double().mean()))
    count = len(errors)
    return {"sets": count, "error": sum(errors) / count, "rate": sum(rates) / count}


def curves(
    network: shoal.Architecture, which: str, x: torch.Tensor, y: torch.Tensor, sizes: list[int]
) -> Iterator[shoal.learning.LearningCurve]:
    """A curve for each ridge."""
    classes = y.argmax(1).tolist()
    for ridge in RIDGES:
        yield shoal.learning_curve(network, x, classes, sizes, ridge=ridge, which=which, repeats=3)


def predict(records: Records, key: Row, images: Images, sizes: list[int]) -> None:
    """Predictions of one network from so many images, for all ridges and sizes."""
    network, which = NETWORKS[key["network"]]
    count, started = key["source"], time.monotonic()
    x, y = images.x[:count], images.y[:count]
    for curve in curves(network, which, x, y, sizes):
        table = zip(sizes, curve.test_error, curve.uncertainty, curve.error_rate, strict=True)
        for size, error, uncertainty, rate in table:
            row = {**key, "ridge": curve.ridge, "size": size, "limit": curve.limit}
            row |= {"predicted": float(error), "uncertainty": float(uncertainty)}
            records.add(row | {"predicted_rate": float(rate)})
    print(f"{time.monotonic() - started:.1f} s from {count} images", flush=True)


def run(options: argparse.Namespace) -> None:
    """Predict from few, measure, predict from more."""
    path = options.out.with_suffix(".jsonl")
    records = Records(path, time.monotonic() + options.seconds)
    images = {name: load(name, options.data, options.device) for name in DATASETS}
    pairs = [(data, label) for label in NETWORKS for data in DATASETS]
    first, *others = sorted(options.samples)
    for source in (first, None, *others):
        for data, label in pairs:
            key = {"data": data, "network": label}
            if source is None:
                for size in options.sizes:
                    for ridge in RIDGES:
                        own = {**key, "ridge": ridge, "size": size, "new": options.new}
                        if records.missing(own):
                            found = measured(images[data], label, ridge, size, options.new)
                            records.add(own | found)
            elif records.missing({**key, "source": source}):
                predict(records, {**key, "source": source}, images[data], options.sizes)


def compared(rows: list[Row]) -> list[Row]:
    """Claimed predictions with what was measured for them."""
    names = ("data", "network", "ridge", "size")
    truths = {tuple(r[k] for k in names): r for r in rows if r.get("error") is not None}
    return [
        row | {"error": truth["error"], "off": row["predicted"] / truth["error"] - 1}
        for row in rows
        if row.get("predicted") is not None
        and (truth := truths.get(tuple(row[k] for k in names))) is not None
    ]


def table(rows: list[Row]) -> str:
    """What came of it, by data, network and number of images that were predicted from."""
    lines = ["| | from | predictions | median | worst | within 10% |", "|---|---|---|---|---|---|"]
    found = compared(rows)
    for source in sorted({row["source"] for row in found}):
        for data in DATASETS:
            for label in NETWORKS:
                key = (data, label, source)
                some = [r for r in found if (r["data"], r["network"], r["source"]) == key]
                if not some:
                    continue
                off = torch.tensor([abs(r["off"]) for r in some])
                near = float((off <= WANTED).double().mean())
                lines.append(
                    f"| {data}, {label} | {source:,} | {len(some)} | {float(off.median()):.1%} "
                    f"| {float(off.max()):.1%} | {near:.0%} |"
                )
    return "\n".join(lines)


def draw(out: Path) -> None:
    """A panel for each dataset and network, lines predicted, points measured; and a table."""
    from matplotlib.figure import Figure

    rows = Records(out.with_suffix(".jsonl"), 0.0).rows()
    sources = sorted({row["source"] for row in rows if "source" in row})
    figure = Figure(figsize=(12.6, 6.4), layout="constrained")
    panels = figure.subplots(len(DATASETS), len(NETWORKS), sharex=True, sharey="row")
    for (data, network), axes in zip(
        [(d, n) for d in DATASETS for n in NETWORKS], panels.flat, strict=True
    ):
        for ridge, color in zip(RIDGES, ("#0072B2", "#E69F00", "#009E73"), strict=True):
            key = (data, network, ridge)
            some = [r for r in rows if (r["data"], r["network"], r["ridge"]) == key]
            for source, style in zip(sources, ("-", ":"), strict=False):
                line = [r for r in some if r.get("source") == source and r["predicted"] is not None]
                sizes = [r["size"] for r in line]
                values = torch.tensor([[r["predicted"], r["uncertainty"]] for r in line])
                if len(line) and style == "-":
                    low, high = values[:, 0] - values[:, 1], values[:, 0] + values[:, 1]
                    axes.fill_between(sizes, low, high, color=color, alpha=0.25, linewidth=0)
                if len(line):
                    label = f"λ = {ridge:g}, from {source:,}"
                    axes.plot(sizes, values[:, 0], style, color=color, label=label)
            points = [(r["size"], r["error"]) for r in some if r.get("error") is not None]
            axes.plot(*zip(*points, strict=True), "o", color=color, markersize=4)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(f"{data}: {network}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="y", which="major", labelsize=7)
        axes.tick_params(axis="y", which="minor", labelsize=7)
        axes.grid(color="#e4e4e4", linewidth=0.6)
    panels[0][0].legend(framealpha=0.7, edgecolor="none", fontsize=8)
    figure.supxlabel("training samples")
    figure.supylabel("mean squared error on new images")
    figure.savefig(out.with_suffix(".png"), dpi=110)
    print(table(rows))


def measure_or_draw(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], None],
    draw: Callable[[Path], None],
) -> None:
    """Read the options, and measure on the data in a folder or draw what was measured."""
    parser.add_argument("--data")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.draw:
        draw(options.out)
    elif options.data is None:
        parser.error("--data is needed")
    else:
        run(options)


def main() -> None:
    """Predict and measure, or draw what was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, nargs="+", default=[1500])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 200, 400, 800, 1500, 2500])
    parser.add_argument("--new", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--out", type=Path, default=Path("learning_curves"))
    measure_or_draw(parser, run, draw)


if __name__ == "__main__":
    main()
