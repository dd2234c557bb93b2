"""Are stated deviations of learning curves right? Curves from many disjoint sets of images.

python benchmarks/curve_deviations.py --data FOLDER [--name mnist] [--network "DEQ, CK"]
    [--sets 20]

Points of one curve share the images that it was predicted from and those that it is tested on:
however many they are, they are off together. So each of several disjoint sets of 1,000 images is
predicted from, and what is measured, on 10,000 other images, has a standard error of its own, of
its test images and of its training sets. At the end, test images are compared with each other.
"""

import argparse
import math
from collections.abc import Iterator

import torch
from learning_curves import DATASETS, NETWORKS, RIDGES, Images, curves, load
from torch import Tensor

import shoal

SOURCE, NEW, SIZES, TRAINED = 1000, 10000, [100, 300, 1000], (10, 10, 5)


def single_errors(images: Images, label: str, size: int, start: int, new: slice) -> list[Tensor]:
    """The squared error of each new image, for each ridge, from so many images."""
    network, which = NETWORKS[label]
    x, y = images.x[start : start + size], images.y[start : start + size]
    inner = getattr(shoal.kernel(network, x), which)
    outer = getattr(shoal.kernel(network, images.x[new], x), which)
    weights = [torch.linalg.solve(inner + ridge * torch.eye(size), y) for ridge in RIDGES]
    return [(outer @ w - images.y[new]).square().mean(1) for w in weights]


def measured(images: Images, label: str) -> dict[tuple[int, float], tuple[float, float]]:
    """Mean errors and their relative standard errors, by size and ridge."""
    found = {}
    for size, sets in zip(SIZES, TRAINED, strict=True):
        starts = [len(images.x) - NEW - (k + 1) * size for k in range(sets)]
        new = slice(len(images.x) - NEW, None)
        several = [single_errors(images, label, size, start, new) for start in starts]
        for ridge, errors in zip(RIDGES, zip(*several, strict=True), strict=True):
            table = torch.stack(errors)  # training sets, images
            drawn = float(table.mean(1).std()) / math.sqrt(sets)
            tested = float(table.mean(0).std()) / math.sqrt(NEW)
            mean = float(table.mean())
            found[size, ridge] = (mean, math.hypot(drawn, tested) / mean)
    return found


def predicted(images: Images, label: str, sets: int) -> Iterator[shoal.learning.LearningCurve]:
    """Curves of each set, one for each ridge."""
    network, which = NETWORKS[label]
    for k in range(sets):
        some = slice(k * SOURCE, (k + 1) * SOURCE)
        yield from curves(network, which, images.x[some], images.y[some], SIZES)


def main() -> None:
    """Print a row for each size and ridge, and how hard groups of images are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--name", choices=DATASETS, default="mnist")
    parser.add_argument("--network", choices=NETWORKS, default="DEQ, CK")
    parser.add_argument("--sets", type=int, default=20)
    options = parser.parse_args()
    images = load(options.name, options.data, "cpu")
    truth = measured(images, options.network)
    found = list(predicted(images, options.network, options.sets))
    print("| n | λ | mean off | spread over sets | stated | within one | within two |")
    print("|---|---|---|---|---|---|---|")
    for i, size in enumerate(SIZES):
        for ridge in RIDGES:
            some = [c for c in found if c.ridge == ridge]
            mean, noise = truth[size, ridge]
            off = torch.stack([c.test_error[i] for c in some]) / mean - 1
            stated = torch.stack([c.uncertainty[i] / c.test_error[i] for c in some])
            far = off.abs() / torch.hypot(stated, torch.full_like(stated, noise))
            shares = " | ".join(f"{float((far <= k).double().mean()):.0%}" for k in (1, 2))
            words = f"{float(off.mean()):+.1%} ± {noise:.1%} | {float(off.std()):.1%}"
            print(f"| {size} | {ridge:g} | {words} | {float(stated.mean()):.1%} | {shares} |")
    groups = [*range(0, 30000, 5000), 60000, 65000]
    several = [
        single_errors(images, options.network, 1000, 40000, slice(g, g + 5000)) for g in groups
    ]
    for ridge, errors in zip(RIDGES, zip(*several, strict=True), strict=True):
        hard = torch.stack([e.mean() for e in errors])
        words = ", ".join(f"{float(h):+.1%}" for h in hard / hard.mean() - 1)
        print(f"groups of 5,000 images, λ = {ridge:g}, relative to their mean: {words}")


if __name__ == "__main__":
    main()
