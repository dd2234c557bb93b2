"""Time the evaluation of Chebyshev series against torch.tanh on as many numbers.

Run: PYTHONPATH=src python benchmarks/approximation.py [--points 1000000] [--device cpu]
"""

import argparse
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from shoal.numerics import Chebyshev, fit

BOX = ((-2.0, 2.0), (-2.0, 2.0), (0.0, math.pi))


def erf_dual(log_a: Tensor, log_b: Tensor, theta: Tensor) -> Tensor:
    """Return E[erf(u) erf(v)] for variances a, b and angle theta (Williams, 1997)."""
    a, b = log_a.exp(), log_b.exp()
    return torch.asin(
        2 * torch.cos(theta) * (a * b).sqrt() / ((1 + 2 * a) * (1 + 2 * b)).sqrt()
    ) * (2 / math.pi)


def on_grid(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An elementwise function as one of the nodes of each axis."""
    return lambda *nodes: function(*torch.meshgrid(*nodes, indexing="ij"))


def seconds(work: Callable[[], Tensor], *, repeats: int) -> float:
    """Return the shortest of some timings."""
    times = []
    for _ in range(repeats + 1):  # the first warms up
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def report(name: str, series: Chebyshev, points: list[Tensor], *, repeats: int) -> None:
    """Print one line: time, time per point, ratio to tanh, error stated and found."""
    axes = points[: len(series.box)]
    taken = seconds(lambda: series(*axes), repeats=repeats)
    tanh = seconds(lambda: torch.tanh(axes[0]), repeats=repeats)
    count = axes[0].numel()
    print(
        f"{name:34s} {taken:7.3f} s {1e9 * taken / count:8.1f} ns/point "
        f"{taken / tanh:7.1f} x tanh   {series}"
    )


def main() -> None:
    """Fit, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10**6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    points = [
        (
            low
            + (high - low) * torch.rand(arguments.points, dtype=torch.float64, generator=generator)
        ).to(arguments.device)
        for low, high in BOX
    ]

    def timed(name: str, series: Chebyshev) -> None:
        report(name, series, points, repeats=arguments.repeats)

    print(f"{arguments.points} points, {torch.get_num_threads()} threads, {arguments.device}")
    line = fit(lambda x: torch.exp(torch.sin(3 * x)), BOX[:1], tolerance=1e-10)
    timed("one variable", line)
    plane = fit(on_grid(lambda x, y: torch.cos(x * y)), BOX[:2], tolerance=1e-10)
    timed("two variables", plane)
    timed("two variables, compressed", plane.compress(1e-10))
    for tolerance in (1e-4, 1e-8):
        dual = fit(on_grid(erf_dual), BOX, tolerance=tolerance)
        timed(f"erf dual to {tolerance:g}", dual)
        timed(f"erf dual to {tolerance:g}, compressed", dual.compress(tolerance))


if __name__ == "__main__":
    main()
