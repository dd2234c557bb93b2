"""Accuracy of kernel regression on images: ConvDEQ beside the dense DEQ.

python benchmarks/image_accuracy.py --data DIR --out rows.jsonl [--dataset mnist] [--device cuda]
    [--train 60000] [--choose 5000] [--pooled 1000] [--seconds 600]

DIR holds the official files of MNIST, Fashion-MNIST or CIFAR-10 (or a part of it, of which loading
warns). Kernels are computed in float32, on a GPU by one fused pass, and factored in float64.
Variances and patches, and the ridge as a multiple of the mean of the diagonal, are those that do
best for the first images of the training set when each of them is left out; with them all training
images are learned, and the test images are seen once, at the end. Rows are written as they are
found; those that are there already are not computed again. What would take longer than is left of
``--seconds`` is done with as many images as fit.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import shoal
from shoal.data import load

RIDGES = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SETTINGS = ((1.0, 3), (1.6, 3), (1.9, 3), (1.6, 5))  # the recurrent variance, the side of a patch

Row = dict[str, Any]


def prepared(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Images with pixels of mean zero, in all of one scale."""
    mean = train.mean((0, 2, 3), keepdim=True)
    train, test = train - mean, test - mean
    scale = train.square().mean().sqrt()
    return train / scale, test / scale


def factor(matrix: Tensor, ridge: float) -> Tensor:
    """That of the matrix with a ridge, in float64."""
    system = matrix.double()
    system.diagonal().add_(ridge * float(matrix.diagonal().mean()))
    return torch.linalg.cholesky(system, out=system)


def left_out(matrix: Tensor, targets: Tensor, labels: Tensor) -> tuple[float, float]:
    """The ridge that does best where each image is predicted from all others, and its accuracy."""
    scores = {}
    for ridge in RIDGES:
        inverse = torch.cholesky_inverse(factor(matrix, ridge))
        errors = (inverse @ targets) / inverse.diagonal()[:, None]
        right = (targets - errors).argmax(1) == labels
        scores[ridge] = float(right.double().mean())
    best = max(scores, key=scores.__getitem__)
    return best, scores[best]


def network(variance: float, size: int, channels: int, *, pooled: bool) -> shoal.ConvDEQ:
    """The equilibrium of one setting."""
    pooling = "average" if pooled else None
    return shoal.ConvDEQ(shoal.ReLU(), variance, 1 / channels, kernel_size=size, pooling=pooling)


class Records:
    """Rows of a file, kept as they are found."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self.end = path, time.perf_counter() + seconds
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows: list[Row] = [json.loads(line) for line in lines]

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.perf_counter()

    def row(self, make: Callable[[], Row], **name: object) -> Row | None:
        """The row of a name: as it is on file, or made now if there is time."""
        for row in self.rows:
            if all(row.get(key) == value for key, value in name.items()):
                return row
        if self.left <= 0:
            return None
        row = {**name, **make()}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        return row


class Study:
    """One dataset."""

    def __init__(self, name: str, folder: str, device: str, sizes: tuple[int, int]) -> None:
        train = load(name, folder=folder, dtype=torch.float32)
        test = load(name, split="test", folder=folder, dtype=torch.float32)
        x, x_test = prepared(train.x[: sizes[0]], test.x[: sizes[1]])
        self.x, self.x_test = x.to(device), x_test.to(device)
        self.labels, self.test_labels = (
            t.y[:size].long().to(device) for t, size in zip((train, test), sizes, strict=True)
        )
        classes = int(self.labels.max()) + 1
        self.targets = torch.nn.functional.one_hot(self.labels, classes).double() - 1 / classes

    def timed(self, net: shoal.Architecture, *inputs: Tensor) -> tuple[Tensor, float]:
        """The NTK of some images, and the seconds that it took."""
        if not isinstance(net, shoal.ConvDEQ):
            inputs = tuple(x.flatten(1) for x in inputs)
        start = time.perf_counter()
        matrix = shoal.kernel(net, *inputs).ntk
        if matrix.is_cuda:
            torch.cuda.synchronize()
        return matrix, time.perf_counter() - start

    def choose(self, net: shoal.Architecture, count: int) -> Row:
        """What leaving out each of the first images says."""
        shoal.kernel(net, self.x[:2] if isinstance(net, shoal.ConvDEQ) else self.x[:2].flatten(1))
        matrix, seconds = self.timed(net, self.x[:count])
        ridge, score = left_out(matrix, self.targets[:count], self.labels[:count])
        each = 1e6 * seconds / (len(matrix) * (len(matrix) + 1) / 2)
        return {"ridge": ridge, "left_out": score, "micros": each}

    def fitting(self, micros: float, seconds: float) -> int:
        """How many training images fit into a time, with all test images."""
        entries, tests = 0.9e6 * seconds / micros, len(self.x_test)
        return min(len(self.x), int(math.sqrt(tests**2 + 2 * max(entries, 0)) - tests))

    def learn(self, net: shoal.Architecture, count: int, ridge: float) -> Row:
        """The accuracy on the test images."""
        matrix, seconds = self.timed(net, self.x[:count])
        solution = torch.cholesky_solve(self.targets[:count], factor(matrix, ridge))
        del matrix
        right = 0
        for some, labels in zip(self.x_test.split(2000), self.test_labels.split(2000), strict=True):
            cross, more = self.timed(net, some, self.x[:count])
            right += int(((cross.double() @ solution).argmax(1) == labels).sum())
            seconds += more
        entries = count * (count + 1) / 2 + count * len(self.x_test)
        return {
            "train": count,
            "test": len(self.x_test),
            "accuracy": right / len(self.x_test),
            "ridge": ridge,
            "seconds": seconds,
            "micros": 1e6 * seconds / entries,
        }


def flattened(study: Study, records: Records, given: argparse.Namespace) -> None:
    """Choose a setting, and learn all images with it; the dense DEQ beside it."""
    channels, name = study.x.shape[1], given.dataset
    dense = shoal.DEQ(shoal.ReLU(), 0.2, 1 / study.x[0].numel())
    count = min(given.choose, len(study.x))
    nets = {f"ConvDEQ {v:g} {k}x{k}": network(v, k, channels, pooled=False) for v, k in SETTINGS}
    found = {}
    for title, net in {"DEQ 0.2": dense, **nets}.items():
        row = records.row(lambda net=net: study.choose(net, count), data=name, choose=title)
        if row is None:
            return
        found[title] = row
    best = max(nets, key=lambda title: found[title]["left_out"])
    for title, net in (("DEQ 0.2", dense), (best, nets[best])):
        size = study.fitting(found[title]["micros"], records.left)
        ridge = found[title]["ridge"]
        records.row(
            lambda net=net, size=size, ridge=ridge: study.learn(net, size, ridge),
            data=name,
            learn=title,
        )


def pooled(study: Study, records: Records, given: argparse.Namespace) -> None:
    """The same few images with both readouts, the ridge of each by leaving out."""
    channels, variance, count = study.x.shape[1], given.variance, given.pooled
    for readout in ("flattened", "pooled"):
        net = network(variance, 3, channels, pooled=readout == "pooled")
        few = min(count, 100)
        name = {"data": given.dataset, "readout": readout, "of": count}
        probe = records.row(lambda net=net, few=few: study.choose(net, few), probe=True, **name)
        if probe is None:
            return
        size = min(count, study.fitting(probe["micros"], records.left))

        def make(net: shoal.ConvDEQ = net, size: int = size) -> Row:
            return both(study, net, size)

        records.row(make, probe=False, **name)


def both(study: Study, net: shoal.ConvDEQ, count: int) -> Row:
    """Leave out each image, and predict the test images, from one matrix."""
    matrix, seconds = study.timed(net, study.x[:count])
    ridge, score = left_out(matrix, study.targets[:count], study.labels[:count])
    solution = torch.cholesky_solve(study.targets[:count], factor(matrix, ridge))
    cross, more = study.timed(net, study.x_test, study.x[:count])
    right = (cross.double() @ solution).argmax(1) == study.test_labels
    entries = count * (count + 1) / 2 + count * len(study.x_test)
    return {
        "train": count,
        "test": len(study.x_test),
        "accuracy": float(right.double().mean()),
        "left_out": score,
        "ridge": ridge,
        "seconds": seconds + more,
        "micros": 1e6 * (seconds + more) / entries,
    }


def main() -> None:
    """Write rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="the folder of the datasets")
    parser.add_argument("--out", type=Path, required=True, help="the file of the rows")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--train", type=int, default=60_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--choose", type=int, default=5_000, help="images to choose settings by")
    parser.add_argument("--pooled", type=int, default=0, help="compare readouts with so many")
    parser.add_argument("--variance", type=float, default=1.6, help="for that comparison")
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    records = Records(given.out, given.seconds)
    study = Study(given.dataset, given.data, given.device, (given.train, given.test))
    (pooled if given.pooled else flattened)(study, records, given)


if __name__ == "__main__":
    main()
