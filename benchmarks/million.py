"""Regression with the NTK of a ReLU DEQ on up to a million deformed digits, on one GPU.

python benchmarks/million.py --data build/data [--samples 60000 240000 1000000] [--rank 15000]
    [--ridge 0.03] [--seconds 560] [--output build/million]

The first 60,000 images are MNIST's training images, the others random deformations of them. Rows
go to million.jsonl in the output folder as they are computed, and those that are there are not
computed again. --choose compares ridges and deformations instead, trained on 6,000 images and
validated on the last 10,000 of the training images.
"""

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import shoal
from shoal import data

DEQ = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
FEW, VALIDATION = 6000, 10_000
CHOICES: tuple[dict[str, float], ...] = (
    {},
    {"smoothness": 4.0},
    {"smoothness": 6.0},
    {"rotation": 15.0, "scaling": 0.15, "smoothness": 6.0},
    {"rotation": 15.0, "scaling": 0.15, "shift": 1.5, "smoothness": 6.0},
    {"elastic": 1.4},
)
RIDGES = (0.3, 0.1, 0.03, 0.01)


def deformed(
    base: data.Dataset,
    indices: range,
    *,
    rotation: float = 10.0,
    scaling: float = 0.1,
    shift: float = 1.0,
    elastic: float = 1.0,
    smoothness: float = 8.0,
) -> data.Dataset:
    """Image i mod n of n; beyond the first n, rotated, scaled, shifted and bent at random.

    Args:
        base: Images of 28×28 pixels, as bytes, on the device that does the work.
        indices: The indices i.
        rotation: Largest angle in degrees.
        scaling: Largest relative change of size.
        shift: Largest shift in pixels.
        elastic: Root mean square displacement of a pixel.
        smoothness: Standard deviation, in pixels, of the Gaussian that smooths displacements.
    """
    device, side = base.x.device, base.x.shape[-1]
    generator = torch.Generator(device).manual_seed(indices.start)
    rows = torch.arange(indices.start, indices.stop, device=device)
    found = base.take(rows % len(base))
    places = torch.arange(side, device=device) - (side - 1) / 2
    smoother = torch.exp(-(((places[:, None] - places) / smoothness) ** 2) / 2)
    smoother /= smoother.norm(dim=1, keepdim=True)
    grid = torch.stack(torch.meshgrid(places, places, indexing="xy"), 2)
    for part in rows[rows >= len(base)].sub(indices.start).split(8192):
        uniform = 2 * torch.rand(4, len(part), generator=generator, device=device) - 1
        angle, size = math.radians(rotation) * uniform[0], (1 + scaling) ** uniform[1]
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1) / size[:, None]
        points = torch.einsum("nab,hwb->nhwa", turn.view(-1, 2, 2), grid)
        points += shift * uniform[2:].T[:, None, None]
        fields = torch.randn(len(part), 2, side, side, generator=generator, device=device)
        points += elastic * (smoother @ fields @ smoother.T).movedim(1, 3)
        images = torch.nn.functional.grid_sample(
            found.x[part].float(), points / places[-1], align_corners=True
        )
        found.x[part] = images.round_().to(found.x.dtype)
    return found


def directions(images: Tensor) -> Tensor:
    """Images of norm one, as vectors in float64."""
    x = images.flatten(1).double()
    return x.div_(x.norm(dim=1, keepdim=True))


def targets(labels: Tensor) -> Tensor:
    """A column for each class, of mean about zero."""
    return torch.nn.functional.one_hot(labels, 10).double() - 0.1


def on(dataset: data.Dataset, device: str) -> data.Dataset:
    """The same elsewhere."""
    return replace(dataset, x=dataset.x.to(device), y=dataset.labels.to(device))


def errors(fit: shoal.learning.KernelRegression, dataset: data.Dataset) -> float:
    """The share of images that are taken for another digit."""
    found = fit.predict(directions(dataset.x)).argmax(1)
    return float((found != dataset.labels).double().mean())


def choose(base: data.Dataset, device: str, folder: Path, few: int, size: int) -> None:
    """Print validation errors of ridges and deformations."""
    train, last = (
        on(base.take(slice(0, few)), device),
        on(base.take(slice(-VALIDATION, None)), device),
    )
    for ridge in RIDGES:
        for options in CHOICES if ridge == RIDGES[2] else CHOICES[:1]:
            digits = deformed(train, range(size), **options)
            fit = shoal.kernel_regression(
                DEQ, directions(digits.x), targets(digits.labels), ridge=ridge, method="cholesky"
            )
            row = {"ridge": ridge, **options, "error": errors(fit, last)}
            write(folder / "choice.jsonl", row)


def write(path: Path, row: dict[str, object]) -> None:
    """Print a row and add it to a file."""
    print(json.dumps(row), flush=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def regression(
    base: data.Dataset, test: data.Dataset, samples: int, given: argparse.Namespace
) -> dict[str, object]:
    """One row: data made, system solved, test images predicted."""
    begin, cuda = time.perf_counter(), given.device == "cuda"
    digits = deformed(base, range(samples), **given.options)
    x, y = directions(digits.x), targets(digits.labels)
    rank = min(given.rank, samples // 6)
    method = shoal.learning.ConjugateGradients(
        shoal.learning.Nystrom(rank, precision=torch.float16),
        precision=torch.float32,
        tolerance=1e-6,
    )
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    made = time.perf_counter()

    def tell(progress: shoal.learning.Progress) -> None:
        spent = time.perf_counter() - given.begin
        if progress.stage != "solve" or progress.step % 5 == 0:
            residual = "" if progress.residual is None else f"{progress.residual:.1e}"
            print(f"  {spent:.0f} s {progress.stage} {progress.step} {residual}", flush=True)
        if spent > given.seconds:
            raise TimeoutError("time is up: call again to go on")

    fit = shoal.kernel_regression(
        DEQ,
        x,
        y,
        ridge=given.ridge,
        method=method,
        memory=given.memory,
        on_progress=tell,
    )
    solved = time.perf_counter()
    error = errors(fit, test)
    report = fit.report
    steps = int(report.iterations.max())
    return {
        "samples": samples,
        "ridge": given.ridge,
        "rank": given.rank,
        "steps": steps,
        "residual": float(report.residual.max()),
        "test_error": error,
        "data_seconds": made - begin,
        "prepare_seconds": report.prepare_seconds,
        "form_seconds": report.form_seconds,
        "solve_seconds": report.solve_seconds,
        "predict_seconds": time.perf_counter() - solved,
        "total_seconds": time.perf_counter() - begin,
        "peak_GiB": torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
        "history": [float(f"{float(r.max()):.2e}") for r in report.history],
    }


def main() -> None:
    """Compute what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=None)
    parser.add_argument("--samples", type=int, nargs="+", default=[60_000, 240_000, 1_000_000])
    parser.add_argument("--rank", type=int, default=15_000)
    parser.add_argument("--ridge", type=float, default=0.03)
    parser.add_argument("--seconds", type=float, default=560.0)
    parser.add_argument("--output", type=Path, default=Path("build/million"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--memory", default=None)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--few", type=int, default=FEW)
    parser.add_argument("--options", type=json.loads, default={}, help="of the deformations")
    given = parser.parse_args()
    given.begin = time.perf_counter()
    given.output.mkdir(parents=True, exist_ok=True)
    base = data.load("mnist", folder=given.data, raw=True)
    if given.choose:
        choose(base, given.device, given.output, given.few, 8 * given.few)
        return
    test = on(data.load("mnist", folder=given.data, raw=True, split="test"), given.device)
    base = on(base, given.device)
    path = given.output / "million.jsonl"
    there = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for samples in given.samples:
        wanted = (samples, given.ridge, given.rank)
        if wanted not in [(row["samples"], row["ridge"], row["rank"]) for row in there]:
            write(path, regression(base, test, samples, given))


if __name__ == "__main__":
    main()
