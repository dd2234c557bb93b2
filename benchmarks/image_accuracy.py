"""Accuracy of kernel regression on images: ConvDEQ beside the dense DEQ.

python benchmarks/image_accuracy.py --data DIR --out rows.jsonl [--dataset mnist] [--device cuda]
    [--train 60000] [--choose 5000] [--search 200] [--pooled 1] [--fold 2] [--seconds 600]

DIR holds the official files of MNIST, Fashion-MNIST or CIFAR-10 (or a part of it, of which loading
warns). Kernels are computed in float32, on a GPU by one fused pass, and factored in float64.
Settings, and the ridge as a multiple of the mean of the diagonal, are those that do best for
training images when each of them is left out; with them all training images are learned, and the
test images are seen once, at the end (never with ``--test 0``). By default there is a readout of
all pixels. With ``--search`` images may be straightened and mirrored, and the readout may take
means over windows of pixels, as far as most images can then be learned within so many
seconds; with ``--pooled`` it takes means over the whole image. With ``--fold 2`` either has squares
of two by two pixels as channels of one, and a quarter of the price for each move. Rows are written
as they are found; those that are there already are not computed again. What would take longer than
is left of ``--seconds`` is done with as many images as fit.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from moved_images import Setting, prepared
from torch import Tensor

import shoal
from shoal.data import load

RIDGES = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
BATCH = 2000  # test images that are predicted at once
MANY = 20_000  # images of which not each is left out
MOST = 0.75  # of the images, that a setting must be able to learn in its time

Row = dict[str, Any]


@dataclass(frozen=True)
class Dense:
    """The kernel of the dense DEQ, which does not know what a pixel is."""

    normed = straight = False

    def __str__(self) -> str:
        """A title."""
        return "DEQ 0.2"

    def ntk(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """The NTK of images with others, or with themselves."""
        net = shoal.DEQ("relu", 0.2, 1 / x[0].numel())
        return shoal.kernel(net, x.flatten(1), None if other is None else other.flatten(1)).ntk


SETTINGS = [
    *(Setting(0.5), Setting(1.0), Setting(1.4), Setting(1.6)),
    *(Setting(variance, size) for size in (5, 7) for variance in (1.0, 1.4)),
]
RESPECTS: tuple[list[dict[str, Any]], ...] = (
    [{"normed": True}],
    [{"straight": True}],
    [{"window": 2, "step": step} for step in (1, 2)],
    [{"mirror": True}],
    [{"variance": variance} for variance in (0.5, 1.4)],
    [{"size": 5}],
    [{"window": 3, "step": step} for step in (1, 2)],
)  # what a search changes together


def factor(matrix: Tensor, ridge: float) -> Tensor | None:
    """That of the matrix with a ridge, in float64; ``None`` if rounding has left it indefinite."""
    system = matrix.double()
    system.diagonal().add_(ridge * float(matrix.diagonal().mean()))
    failed = torch.empty((), dtype=torch.int32, device=system.device)
    torch.linalg.cholesky_ex(system, out=(system, failed))
    return None if bool(failed) else system


def share(predicted: Tensor, targets: Tensor) -> float:
    """The accuracy."""
    return float((predicted.argmax(1) == targets.argmax(1)).double().mean())


class Exact:
    """Regression with all images, whose ridge, if there is none, is the best by leaving out.

    Args:
        matrix: Their kernel.
        targets: Their targets.
        ridge: A multiple of the mean of the diagonal.
    """

    def __init__(self, matrix: Tensor, targets: Tensor, ridge: float | None = None) -> None:
        self.scores: dict[float, float] = {}
        for each in RIDGES if ridge is None else ():
            root = factor(matrix, each)
            if root is not None:
                inverse = torch.cholesky_inverse(root)
                errors = (inverse @ targets) / inverse.diagonal()[:, None]
                self.scores[each] = share(targets - errors, targets)
        self.ridge = ridge or max(self.scores, key=lambda each: (self.scores[each], each))
        while (root := factor(matrix, self.ridge)) is None:
            self.ridge *= 3
        self.solution = torch.cholesky_solve(targets, root)

    def predict(self, cross: Tensor) -> Tensor:
        """Outputs for images, of which the kernel with all is known."""
        return cross.double() @ self.solution


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

    def row(self, make: Callable[[], Row], kept: float = 0.0, **name: object) -> Row | None:
        """The row of a name: as it is on file, or made now if more time is left than is kept."""
        for row in self.rows:
            if all(row.get(key) == value for key, value in name.items()):
                return row
        if self.left <= kept:
            return None
        row = {**name, **make()}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        return row


class Study:
    """One dataset."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.images, self.targets = [], []
        for split, count in (("train", given.train), ("test", given.test)):
            data = load(given.dataset, split=split, folder=given.data, dtype=torch.float32)
            count = max(1, min(count, len(data.x)))
            # test images from everywhere: the first ones of MNIST are harder than the others
            few = torch.arange(count) * (len(data.x) // count if split == "test" else 1)
            self.images.append(data.x[few].to(given.device))
            labels = data.y[few].long().to(given.device)
            self.targets.append(torch.nn.functional.one_hot(labels, 10).double() - 0.1)
        self.name, self.choices, self.tested = given.dataset, given.choose, given.test > 0
        self.prepared: tuple[tuple[bool, bool], tuple[Tensor, Tensor]] | None = None

    def inputs(self, kernel: Setting | Dense) -> tuple[Tensor, Tensor]:
        """The images of training and test, as a kernel wants them."""
        wanted = kernel.normed, kernel.straight
        if self.prepared is None or self.prepared[0] != wanted:
            images = prepared(*self.images, normed=kernel.normed, straight=kernel.straight)
            self.prepared = wanted, images
        return self.prepared[1]

    def choose(self, kernel: Setting | Dense) -> Row:
        """What leaving out each of the first images says."""
        x = self.inputs(kernel)[0][: self.choices]
        kernel.ntk(x[:2])  # compiled
        matrix, seconds = timed(kernel, x)
        model = Exact(matrix, self.targets[0][: len(x)])
        each = 1e6 * seconds / (len(x) * (len(x) + 1) / 2)
        right = model.scores[model.ridge]
        return {"of": len(x), "ridge": model.ridge, "left_out": right, "micros": each}

    def rate(self, kernel: Setting | Dense) -> float:
        """Microseconds for an entry, of enough of them that what each call costs does not count."""
        x, count, seconds = self.inputs(kernel)[0], 0, 0.0
        kernel.ntk(x[:2])  # compiled
        while seconds < 1 and count < len(x):
            count = min(max(64, 2 * count), len(x))
            seconds = timed(kernel, x[:count], x[-count:])[1]
        return 1e6 * seconds / count**2

    def fitting(self, micros: float, seconds: float) -> int:
        """How many training images fit into a time, with all test images."""
        entries, (train, test) = 0.95e6 * max(seconds, 0) / micros, map(len, self.images)
        return int(min(train, math.sqrt(test**2 + 2 * entries) - test))

    def learn(self, kernel: Setting | Dense, count: int, ridge: float) -> Row:
        """The accuracy on the test images; of many, the ridge is not chosen again."""
        x, others = self.inputs(kernel)
        few, targets = x[:count], self.targets[0]
        matrix, seconds = timed(kernel, few)
        model = Exact(matrix, targets[:count], ridge if count > MANY else None)
        del matrix
        right = 0.0
        for some, aims in zip(others.split(BATCH), self.targets[1].split(BATCH), strict=True):
            cross, more = timed(kernel, some, few)
            seconds += more
            right += share(model.predict(cross), aims) * len(some)
        return {
            "train": count,
            "test": len(others),
            "accuracy": right / len(others),
            "left_out": model.scores.get(model.ridge),
            "ridge": model.ridge,
            "seconds": seconds,
        }


def timed(kernel: Setting | Dense, x: Tensor, other: Tensor | None = None) -> tuple[Tensor, float]:
    """An NTK, and the seconds that it took."""
    start = time.perf_counter()
    matrix = kernel.ntk(x, other)
    if matrix.is_cuda:
        torch.cuda.synchronize()
    return matrix, time.perf_counter() - start


class Choice:
    """Settings, and what leaving out says of them."""

    def __init__(self, study: Study, records: Records) -> None:
        self.study, self.records = study, records

    def row(self, kernel: Setting | Dense, kept: float = 0.0) -> Row | None:
        """What leaving out says; ``None`` if no more time is left than is kept."""
        return self.records.row(
            lambda: self.study.choose(kernel),
            kept,
            data=self.study.name,
            choose=str(kernel),
        )

    def best(self, kernels: Iterable[Setting], kept: float = 0.0) -> Setting | None:
        """The best of those that there is time for."""
        rows = {k: row for k in kernels if (row := self.row(k, kept)) is not None}
        return max(rows, key=lambda kernel: rows[kernel]["left_out"], default=None)

    def learn(self, kernel: Setting | Dense) -> None:
        """Learn as many images as fit, if there is anything to test them by."""
        row = self.row(kernel)
        if row is None or not self.study.tested:
            return
        micros = min(row["micros"], self.study.rate(kernel))  # few images are dear
        count = self.study.fitting(micros, self.records.left)
        self.records.row(
            lambda: self.study.learn(kernel, count, row["ridge"]),
            data=self.study.name,
            learn=str(kernel),
        )


def search(choice: Choice, fold: int, seconds: float) -> Setting | None:
    """Improve a setting in one respect after the other, where it is affordable to learn with it."""
    best: Setting | None = Setting(1.0, padding="circular", fold=fold)
    study, price = choice.study, choice.study.rate(best)  # of one move
    for respect in RESPECTS:
        if best is not None:
            kernels = [best, *(replace(best, **change) for change in respect)]
            prices = {kernel: price * len(list(kernel.moves())) for kernel in kernels}
            most = MOST * len(study.images[0])
            fitting = [k for k in kernels if study.fitting(prices[k], seconds) >= most]
            best = choice.best(fitting, seconds if study.tested else 0.0)
    return best


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
    parser.add_argument(
        "--search", type=float, default=0, help="seconds for learning what is found"
    )
    parser.add_argument("--pooled", type=float, default=0, help="the variance with average pooling")
    parser.add_argument("--fold", type=int, default=1, help="the side of squares of pixels")
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    choice = Choice(Study(given), Records(given.out, given.seconds))
    if given.pooled:
        pooled = Setting(given.pooled, normed=True, fold=given.fold, window=0)
        best = choice.best([pooled, replace(pooled, mirror=True)])
    else:
        choice.learn(Dense())
        best = search(choice, given.fold, given.search) if given.search else choice.best(SETTINGS)
    if best is not None:
        choice.learn(best)


if __name__ == "__main__":
    main()
