"""What the monitors of a training cost: the ratio of monitored to unmonitored training.

python benchmarks/training.py [--device D] [--samples N] [--width M] [--steps T] [--every K]
[--repeats R]

A ReLU DEQ of Ling 2023 in float32, from warm starts. The ratio is also counted: the matrix products
of K steps, against the operations of one look (the Gram matrix, the eigenvalues of two matrices, a
Lanczos iteration for the gain; the first two in float64, so counted twice).
"""

import argparse
import statistics
import time

import torch
from torch import Tensor

import shoal

LANCZOS = 24  # products of an iteration, about
EIGENVALUES = 4 / 3  # times n³, the operations of all eigenvalues


def network(samples: Tensor, width: int) -> shoal.networks.Network:
    """A fresh network, the same one every time."""
    features = samples.shape[1]
    deq = shoal.DEQ.ling2023(0.08, features)
    return shoal.build(
        deq,
        in_features=features,
        width=width,
        dtype=samples.dtype,
        device=samples.device,
        warm_start=True,
    )


def seconds(x: Tensor, y: Tensor, width: int, *, steps: int, monitor: int | bool) -> float:
    """The time of a training without that of its first step."""
    net, marks = network(x, width), []
    size = 0.1 / (width * len(x))
    shoal.train(
        net,
        x,
        y,
        step_size=size,
        steps=steps,
        monitor=monitor,
        progress=lambda now: marks.append(time.perf_counter()) if now.step in (1, steps) else None,
    )
    return marks[1] - marks[0]


def counted(x: Tensor, y: Tensor, width: int, every: int) -> float:
    """The same ratio in operations."""
    net, n, d = network(x, width), len(x), x.shape[1]
    shoal.train(net, x, y, step_size=0.1 / (width * n), steps=8, monitor=False)
    products = net.last_solve.evaluations + net.last_adjoint.evaluations
    step = 2 * n * width * (width * (products + 1) + 2 * d)
    gram, eigenvalues = 2 * n * n * width, 2 * EIGENVALUES * n**3
    vectors = LANCZOS * 4 * width * width
    print(f"products in a step: {products} of {n} x {width} by {width} x {width}, and the gradient")
    return 1 + (2 * (gram + eigenvalues) + vectors) / (every * step)


def main() -> None:
    """Measure and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, value in [("samples", 1000), ("width", 2000), ("steps", 20), ("every", 10)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(options.samples, 100, generator=generator)
    x = (10 * torch.nn.functional.normalize(x)).to(options.device)
    y = x[:, 0].sign()
    print(f"counted ratio: {counted(x, y, options.width, options.every):.3f}")
    ratios = []
    for _ in range(options.repeats):  # in turns, so that both see the same machine
        bare, watched = (
            seconds(x, y, options.width, steps=options.steps, monitor=monitor)
            for monitor in (False, options.every)
        )
        ratios.append(watched / bare)
        print(f"unmonitored {bare:.2f} s, monitored {watched:.2f} s, ratio {watched / bare:.3f}")
    print(f"median ratio: {statistics.median(ratios):.3f} (at most 1.5 is wanted)")


if __name__ == "__main__":
    main()
