"""Equivalents against exact kernels: forming and solving, as a ratio of times.

python benchmarks/equivalents.py [--device cuda] [--features P] [--largest N]
"""

import argparse
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

import shoal

RIDGE = 0.1


def timed(function: Callable[[], object], device: str, repeats: int = 1) -> float:
    """The shortest of some times of a call, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def samples(count: int, features: int, device: str) -> tuple[Tensor, Tensor]:
    """Samples of two classes in single precision, and targets."""
    mixture = shoal.GaussianMixture.ling2024(features)
    x, labels = mixture.sample(count, seed=0, dtype=torch.float32)
    return x.to(device), (2.0 * labels - 1.0).float().to(device)


def by_kernel(architecture: shoal.Architecture, x: Tensor, y: Tensor) -> Tensor:
    """Form the exact matrix, and solve by Cholesky in double precision."""
    matrix = shoal.kernel(architecture, x).ck.double()
    matrix.diagonal().add_(RIDGE)
    return torch.cholesky_solve(y.double()[:, None], torch.linalg.cholesky(matrix))


def by_equivalent(architecture: shoal.Architecture, x: Tensor, y: Tensor) -> Tensor:
    """Form the equivalent, and solve."""
    solution: Tensor = shoal.equivalent(architecture, x).ck.solve(y, shift=RIDGE)
    return solution


def ratios(architecture: shoal.DEQ, features: int, device: str) -> None:
    """Forming and solving at several sizes, and how the times grow."""
    sizes, times = (2000, 4000, 8000), []
    print(f"\nForm and solve, p = {features}, {device}: seconds")
    print(f"{'n':>6} {'kernel':>8} {'equivalent':>10} {'ratio':>6}")
    x, y = samples(1000, features, device)
    centered = shoal.equivalent(architecture, x).coefficients.architecture
    by_kernel(centered, x, y)  # set-up
    for count in sizes:
        x, y = samples(count, features, device)
        exact = timed(lambda x=x, y=y: by_kernel(centered, x, y), device, 2)
        cheap = timed(lambda x=x, y=y: by_equivalent(architecture, x, y), device, 2)
        times.append((exact, cheap))
        print(f"{count:6} {exact:8.2f} {cheap:10.2f} {exact / cheap:6.1f}", flush=True)
    doublings = math.log2(sizes[-1] / sizes[0])
    powers = [
        math.log2(last / first) / doublings for first, last in zip(times[0], times[-1], strict=True)
    ]
    print(f"times grow like n^{powers[0]:.1f} and n^{powers[1]:.1f}")


def large(architecture: shoal.DEQ, count: int, features: int, device: str) -> None:
    """What a Gaussian process with very many samples needs."""
    print(f"\nn = {count}, p = {features}, {device}: seconds")
    x, y = samples(count, features, device)
    made: list[shoal.asymptotics.Equivalent] = []
    print(
        f"form          {timed(lambda: made.append(shoal.equivalent(architecture, x)), device):.2f}"
    )
    ck = made[0].ck
    print(f"product       {timed(lambda: ck @ y, device):.2f}")
    print(f"first solve   {timed(lambda: ck.solve(y, shift=RIDGE), device):.2f}")
    print(f"second solve  {timed(lambda: ck.solve(y, shift=2 * RIDGE), device):.2f}")
    print(f"determinant   {timed(lambda: ck.logdet(shift=RIDGE), device):.2f}")
    print(f"eigenvalues   {timed(ck.eigvalsh, device):.2f}")


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--largest", type=int, default=60_000)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    architecture = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
    ratios(architecture, options.features, options.device)
    large(architecture, options.largest, options.features, options.device)


if __name__ == "__main__":
    main()
