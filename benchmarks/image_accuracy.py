"""Accuracy of kernel regression on images: ConvDEQ beside the dense DEQ.

python benchmarks/image_accuracy.py --data DIR --out rows.jsonl [--dataset mnist] [--device cuda]
    [--train 60000] [--choose 5000] [--compare 1000] [--windows 1 3 5 all] [--seconds 600]

DIR holds the official files of MNIST, Fashion-MNIST or CIFAR-10 (or a part of it, of which loading
warns). Kernels are computed in float32, on a GPU by one fused pass, and factored in float64.
Variances and patches, and the ridge as a multiple of the mean of the diagonal, are those that do
best for the first images of the training set when each of them is left out; with them all training
images are learned, and the test images are seen once, at the end. With ``--compare`` as many images
are learned with readouts of means over windows of pixels instead: 1 is a readout of all pixels,
"all" the average pooling of a ``ConvDEQ``; windows in between go on at the opposite border. Rows
are written as they are found; those that are there already are not computed again. What would take
longer than is left of ``--seconds`` is done with as many images as fit.
"""

import argparse
import itertools
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import shoal
from shoal.data import load
from shoal.kernels.image_function import chosen_kernels
from shoal.kernels.image_matrix import ImagePlan, entries

RIDGES = (1e-7, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SETTINGS = (
    (0.5, 3),
    (1.0, 3),
    (1.4, 3),
    (1.6, 3),
    (1.0, 5),
    (1.4, 5),
    (1.0, 7),
    (1.4, 7),
)  # the recurrent variance, the side of a patch

Row = dict[str, Any]


def prepared(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Images with pixels of mean zero, in all of one scale."""
    mean = train.mean((0, 2, 3), keepdim=True)
    train, test = train - mean, test - mean
    scale = train.square().mean().sqrt()
    return train / scale, test / scale


def factor(matrix: Tensor, ridge: float) -> Tensor | None:
    """That of the matrix with a ridge, in float64; None if float32 leaves it indefinite."""
    system = matrix.double()
    system.diagonal().add_(ridge * float(matrix.diagonal().mean()))
    triangle, failed = torch.linalg.cholesky_ex(system)
    return None if failed else triangle


def solved(matrix: Tensor, targets: Tensor, ridge: float) -> tuple[Tensor, float]:
    """The weights of a regression, and its ridge: the given one, or 3, 9, ... times it."""
    while (triangle := factor(matrix, ridge)) is None:
        ridge *= 3
    return torch.cholesky_solve(targets, triangle), ridge


def left_out(matrix: Tensor, targets: Tensor, labels: Tensor) -> tuple[float, float]:
    """The ridge that does best where each image is predicted from all others, and its accuracy."""
    scores = {}
    for ridge in RIDGES:
        if (triangle := factor(matrix, ridge)) is None:
            continue
        inverse = torch.cholesky_inverse(triangle)
        errors = (inverse @ targets) / inverse.diagonal()[:, None]
        right = (targets - errors).argmax(1) == labels
        scores[ridge] = float(right.double().mean())
    best = max(scores, key=lambda ridge: (scores[ridge], ridge))
    return best, scores[best]


def network(variance: float, size: int, channels: int, *, pooled: bool) -> shoal.ConvDEQ:
    """The equilibrium of one setting."""
    pooling = "average" if pooled else None
    return shoal.ConvDEQ(shoal.ReLU(), variance, 1 / channels, kernel_size=size, pooling=pooling)


def window_weights(window: int, sides: tuple[int, int]) -> dict[float, list[int]]:
    """What displaced pairs of pixels count where means over windows are read, by what it is."""
    weights = defaultdict(list)
    for down, across in itertools.product(range(1 - window, window), repeat=2):
        share = (window - abs(down)) * (window - abs(across)) / window**4
        if down or across:
            weights[share].append(down % sides[0] * sides[1] + across % sides[1])
    return weights


def windowed(
    net: shoal.ConvDEQ, window: int, first: Tensor, second: Tensor | None = None
) -> Tensor:
    """The NTK of a network that reads means over windows, of which ``net`` is that of one pixel."""
    result = shoal.kernel(net, first, second).ntk.mul_(window**-2)
    plan = ImagePlan.of(chosen_kernels(net), first, second, 2**28)
    shift = 0 if plan.symmetric else len(first)
    sums = plan._sums if plan.fused is None or plan.fused.exact else plan.fused.sums
    height, width = first.shape[2:]
    for weight, places in window_weights(window, (height, width)).items():
        steps = torch.tensor(places, device=first.device)
        size = max(1, 2**22 // len(places))
        parts = entries(plan.shape, size, symmetric=plan.symmetric, device=first.device)
        for i, j in parts:
            more = (plan.read * weight * sums((i, j + shift), steps)[1]).to(result)
            result[i, j] += more
            if plan.symmetric:
                away = i != j
                result[j[away], i[away]] += more[away]
    return result


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

    def timed(
        self, net: shoal.Architecture, *inputs: Tensor, window: int = 1
    ) -> tuple[Tensor, float]:
        """The NTK of some images, and the seconds that it took."""
        if not isinstance(net, shoal.ConvDEQ):
            inputs = tuple(x.flatten(1) for x in inputs)
        start = time.perf_counter()
        if isinstance(net, shoal.ConvDEQ) and window > 1:
            matrix = windowed(net, window, *inputs)
        else:
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
        solution, ridge = solved(matrix, self.targets[:count], ridge)
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


def compare(study: Study, records: Records, given: argparse.Namespace) -> None:
    """The same images with several readouts, the ridge of each by leaving out."""
    for window in given.windows:
        pooled = window == "all"
        net = network(given.variance, 3, study.x.shape[1], pooled=pooled)
        side = 1 if pooled else int(window)
        name = {"data": given.dataset, "window": window, "of": given.compare}
        # many, so that what each call costs does not count
        few = study.x[: min(400 if study.x.is_cuda and not pooled else 20, given.compare)]
        study.timed(net, few[:2], window=side)
        micros = 1e6 * study.timed(net, few, window=side)[1] / (len(few) * (len(few) + 1) / 2)
        size = min(given.compare, study.fitting(micros, records.left))

        def make(net: shoal.ConvDEQ = net, size: int = size, side: int = side) -> Row:
            return both(study, net, size, side)

        records.row(make, **name)


def both(study: Study, net: shoal.ConvDEQ, count: int, window: int) -> Row:
    """Leave out each image, and predict the test images, from one matrix."""
    matrix, seconds = study.timed(net, study.x[:count], window=window)
    ridge, score = left_out(matrix, study.targets[:count], study.labels[:count])
    solution, ridge = solved(matrix, study.targets[:count], ridge)
    cross, more = study.timed(net, study.x_test, study.x[:count], window=window)
    right = (cross.double() @ solution).argmax(1) == study.test_labels
    pairs = count * (count + 1) / 2 + count * len(study.x_test)
    return {
        "train": count,
        "test": len(study.x_test),
        "accuracy": float(right.double().mean()),
        "left_out": score,
        "ridge": ridge,
        "seconds": seconds + more,
        "micros": 1e6 * (seconds + more) / pairs,
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
    parser.add_argument("--compare", type=int, default=0, help="compare readouts with so many")
    parser.add_argument("--windows", nargs="+", default=["1", "3", "all"], help="which readouts")
    parser.add_argument("--variance", type=float, default=1.6, help="for that comparison")
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    records = Records(given.out, given.seconds)
    study = Study(given.dataset, given.data, given.device, (given.train, given.test))
    (compare if given.compare else flattened)(study, records, given)


if __name__ == "__main__":
    main()
