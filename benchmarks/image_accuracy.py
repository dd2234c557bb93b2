"""Accuracy of kernel regression on images: ConvDEQ beside the dense DEQ.

python benchmarks/image_accuracy.py --data DIR [--dataset mnist] [--device cuda]
    [--train 60000] [--test 10000] [--pooling average] [--variances 0.2 1.0 1.6]
    [--whiten] [--kernel-size 3]

DIR holds the official files of MNIST, Fashion-MNIST or CIFAR-10 (or a part of it, of which loading
warns). Kernels are computed in float32, on a GPU by one fused pass, and factored in float64. The
ridge, a multiple of the mean of the diagonal, is the one that does best for a tenth of the training
images when the others are learned; the test images are seen once, at the end.
"""

import argparse
import time

import torch
from torch import Tensor

import shoal
from shoal.data import load

RIDGES = (1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)


def prepared(train: Tensor, test: Tensor, *, whiten: bool) -> tuple[Tensor, Tensor]:
    """Images with pixels of mean zero, in all of one scale; without correlations if wanted."""
    mean = train.mean((0, 2, 3), keepdim=True)
    train, test = train - mean, test - mean
    if whiten:
        rows = train.flatten(1).double()
        values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
        inverse = (values + 1e-1 * values.mean()).rsqrt()
        matrix = ((vectors * inverse) @ vectors.T).to(train)
        train, test = ((x.flatten(1) @ matrix).view_as(x) for x in (train, test))
    scale = train.square().mean().sqrt()
    return train / scale, test / scale


def solved(matrix: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """The coefficients, in float64."""
    system = matrix.double()
    system.diagonal().add_(ridge * float(matrix.diagonal().mean()))
    factor = torch.linalg.cholesky(system, out=system)
    return torch.cholesky_solve(targets, factor)


def accuracy(cross: Tensor, coefficients: Tensor, labels: Tensor) -> float:
    """The share of images whose largest value is that of their class."""
    found = torch.cat([part.double() @ coefficients for part in cross.split(2048)])
    return float((found.argmax(1) == labels).double().mean())


def best_ridge(matrix: Tensor, targets: Tensor, labels: Tensor) -> float:
    """The ridge that does best for the last tenth of at most 10,000 images."""
    count = min(len(matrix), 10_000)
    known = count * 9 // 10
    scores = {}
    for ridge in RIDGES:
        alpha = solved(matrix[:known, :known], targets[:known], ridge)
        scores[ridge] = accuracy(matrix[known:count, :known], alpha, labels[known:count])
    return max(scores, key=scores.__getitem__)


def run(name: str, net: shoal.Architecture, data: tuple[Tensor, ...]) -> None:
    """Learn and print one line."""
    x, labels, x_test, test_labels = data
    start = time.perf_counter()
    matrix = shoal.kernel(net, x).ntk
    cross = shoal.kernel(net, x_test, x).ntk
    if x.is_cuda:
        torch.cuda.synchronize()
    made = time.perf_counter() - start
    classes = int(labels.max()) + 1
    targets = torch.nn.functional.one_hot(labels, classes).double() - 1 / classes
    ridge = best_ridge(matrix, targets, labels)
    found = accuracy(cross, solved(matrix, targets, ridge), test_labels)
    spent = time.perf_counter() - start - made
    entries = len(x) * (len(x) + 1) / 2 + len(x) * len(x_test)
    print(
        f"{name:44} {len(x):7} {100 * found:7.2f}%  ridge {ridge:g}  kernels {made:.1f} s "
        f"({1e6 * made / entries:.3g} µs an entry), solving {spent:.1f} s",
        flush=True,
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="the folder of the datasets")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--train", type=int, default=60_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--pooling", choices=("none", "average"), default="none")
    parser.add_argument("--variances", type=float, nargs="+", default=(0.2, 1.0, 1.6))
    parser.add_argument("--kernel-size", type=int, default=3)
    parser.add_argument("--bias", type=float, default=0.0)
    parser.add_argument("--whiten", action="store_true")
    given = parser.parse_args()
    train = load(given.dataset, folder=given.data, dtype=torch.float32)
    test = load(given.dataset, split="test", folder=given.data, dtype=torch.float32)
    x, x_test = prepared(train.x[: given.train], test.x[: given.test], whiten=given.whiten)
    data = tuple(
        t.to(given.device)
        for t in (x, train.y[: given.train].long(), x_test, test.y[: given.test].long())
    )
    print(f"{given.dataset}, {given.device}")
    flat = (data[0].flatten(1), data[1], data[2].flatten(1), data[3])
    run("DEQ 0.2", shoal.DEQ(shoal.ReLU(), 0.2, 1 / flat[0].shape[1]), flat)
    pooling = "average" if given.pooling == "average" else None
    for variance in given.variances:
        net = shoal.ConvDEQ(
            shoal.ReLU(),
            variance,
            1 / x.shape[1],
            kernel_size=given.kernel_size,
            pooling=pooling,
            bias_variance=given.bias,
        )
        readout = "flattened" if pooling is None else "pooled"
        run(f"ConvDEQ {variance:g}, {readout}, {given.kernel_size}x{given.kernel_size}", net, data)


if __name__ == "__main__":
    main()
