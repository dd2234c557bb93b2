"""Networks of finite width with a trained readout: predicted accuracies beside recorded ones.

python benchmarks/readout_width.py --data FOLDER [--device cpu] [--samples 3000] [--out PATH]
python benchmarks/readout_width.py --draw [--out readout_width]

The record is that of Figure 3 of Ling 2024 (docs/results/ling2024-figure3.json), of its protocol
"readout": all 60,000 training images, scaled to norm 1; features of a centered DEQ with random
weights; a readout of ridge regression on indicators of classes, ridge 0.1; accuracies on the
official test images, means over five networks. (Its protocol "all" trains all weights, which is
another thing.) Predictions are from some of the training images and their infinite-width kernel
alone: no network is built. Rows go to OUT.jsonl; the second command draws OUT.png.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from learning_curves import measure_or_draw

import shoal

RECORD = Path(__file__).parents[1] / "docs" / "results" / "ling2024-figure3.json"
WIDTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
TRAINED, RIDGE = 60000, 0.1
ACTIVATIONS = {"tanh": shoal.activations.Tanh(), "relu": shoal.activations.ReLU()}
DATASETS = ("mnist", "fashion-mnist")


def images(name: str, count: int, options: argparse.Namespace) -> tuple[torch.Tensor, list[int]]:
    """Random training images of norm one, and their classes."""
    data = shoal.data.load(name, split="train", folder=options.data, dtype=torch.float64)
    x = torch.nn.functional.normalize(data.x.flatten(1))
    some = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:count]
    return x[some].to(options.device), data.y[some].long().tolist()


def run(options: argparse.Namespace) -> None:
    """Predict for all widths, networks and datasets."""
    summary = json.loads(RECORD.read_text())["summary"]
    with options.out.with_suffix(".jsonl").open("w") as file:
        for name in DATASETS:
            x, classes = images(name, options.samples, options)
            for kind, activation in ACTIVATIONS.items():
                deq = shoal.centered(shoal.DEQ(activation, 0.2, 0.8), input_norm=1.0)
                for width in WIDTHS:
                    curve = shoal.learning_curve(
                        deq, x, classes, [TRAINED],
                        ridge=RIDGE, which="ck", width=width, repeats=1,
                    )  # fmt: skip
                    key = f"readout_{kind}_{name}_deq_{width}"
                    row = {
                        "data": name, "activation": kind, "width": width,
                        "samples": options.samples,
                        "rate": float(curve.error_rate), "error": float(curve.test_error),
                        "measured": 1 - summary[key], "deviation": summary[f"{key}_deviation"],
                    }  # fmt: skip
                    row = {k: None if v != v else v for k, v in row.items()}
                    file.write(json.dumps(row) + "\n")
                    print(json.dumps(row), flush=True)


def draw(out: Path) -> None:
    """A panel for each dataset, lines predicted, points recorded; and a table."""
    from matplotlib.figure import Figure

    rows: list[dict[str, Any]] = [
        json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()
    ]
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    panels = figure.subplots(1, len(DATASETS))
    for name, axes in zip(DATASETS, panels, strict=True):
        for kind, color in zip(ACTIVATIONS, ("#0072B2", "#E69F00"), strict=True):
            some = [r for r in rows if (r["data"], r["activation"]) == (name, kind)]
            found = [r for r in some if r["rate"] is not None]
            axes.plot(
                [r["width"] for r in found], [100 * r["rate"] for r in found], color=color,
                label=f"{kind}, predicted from {some[0]['samples']:,} images",
            )  # fmt: skip
            bars = [100 * r["deviation"] / math.sqrt(5) for r in some]
            widths, values = [r["width"] for r in some], [100 * r["measured"] for r in some]
            axes.errorbar(widths, values, bars, fmt="o", color=color, markersize=4, capsize=2)
            print(f"| {name}, {kind} | " + " | ".join(_cell(r) for r in some) + " |")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(WIDTHS, [str(w) for w in WIDTHS])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="y", which="minor", labelsize=7)
        axes.set_title(f"{name}, DEQs with a trained readout")
        axes.set_xlabel("width")
        axes.grid(color="#e4e4e4", linewidth=0.6)
    panels[0].set_ylabel("wrong classes (%)")
    panels[0].legend(framealpha=0.7, edgecolor="none", fontsize=8)
    figure.savefig(out.with_suffix(".png"), dpi=110)


def _cell(row: dict[str, Any]) -> str:
    predicted = "—" if row["rate"] is None else f"{100 * row['rate']:.1f}"
    return f"{predicted} / {100 * row['measured']:.1f}"


def main() -> None:
    """Predict, or draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--out", type=Path, default=Path("readout_width"))
    measure_or_draw(parser, run, draw)


if __name__ == "__main__":
    main()
