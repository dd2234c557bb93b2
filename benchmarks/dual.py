"""Duals of activations at a million triples: time, ratio to evaluating tanh, error, memory.

python benchmarks/dual.py [--triples N] [--low V] [--high V]
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import Tensor

import shoal
from shoal.gaussian import dual
from shoal.gaussian.mixed import mixed_dual


def triples(count: int, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """Covariances with variances between ``low`` and ``high`` and uniform correlations."""
    generator = torch.Generator().manual_seed(0)
    a, b, c = (torch.rand(count, dtype=torch.float64, generator=generator) for _ in range(3))
    for variance in (a, b):
        torch.pow(high / low, variance, out=variance).mul_(low)
    for block in zip(a.split(1 << 16), b.split(1 << 16), c.split(1 << 16), strict=True):
        block[2].mul_(2).sub_(1).mul_((block[0] * block[1]).sqrt())
    return a, b, c


def best(function: Callable[[], object], repeats: int = 5) -> float:
    """The shortest of several times, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def memory_beyond_data(count: int) -> float:
    """The peak memory of a process that computes duals of Tanh, less its data, in MiB (Linux)."""
    a, b, c = triples(count, 0.5, 2.0)
    result = dual(shoal.activations.Tanh(), a, b, c)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return peak - sum(t.nbytes for t in (a, b, c, result)) / 2**20


def main() -> None:
    """Print a row per activation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--triples", type=int, default=1_000_000)
    parser.add_argument("--low", type=float, default=0.1)
    parser.add_argument("--high", type=float, default=10.0)
    options = parser.parse_args()
    a, b, c = triples(options.triples, options.low, options.high)
    tanh = best(lambda: torch.tanh(a))
    print(
        f"{options.triples} triples, variances {options.low:g} to {options.high:g}, float64, "
        f"{torch.get_num_threads()} threads; torch.tanh on as many numbers: {1e3 * tanh:.1f} ms\n"
    )
    print(f"{'activation':24} {'set-up s':>9} {'time s':>8} {'x tanh':>8} {'error':>9}")
    for phi in (
        shoal.activations.Tanh(),
        shoal.activations.Swish(),
        shoal.activations.Softplus(),
        shoal.activations.ELU(),
        shoal.activations.ReLU(),
        shoal.activations.Erf(),
        shoal.activations.GELU(),
        shoal.activations.HardTanh(),
    ):
        first = best(lambda phi=phi: dual(phi, a, b, c), repeats=1)
        again = best(lambda phi=phi: dual(phi, a, b, c))
        few = slice(0, 64)
        quadrature = mixed_dual(phi, 0, 0, a[few], b[few], c[few])
        size = (dual(phi, a[few], a[few], a[few]) * dual(phi, b[few], b[few], b[few])).sqrt()
        error = float(((dual(phi, a, b, c)[few] - quadrature) / size).abs().max())
        print(f"{phi!s:24} {first - again:9.2f} {again:8.3f} {again / tanh:8.1f} {error:9.1e}")
    small = slice(0, 512)
    phi = shoal.activations.HardTanh()
    each = best(lambda: mixed_dual(phi, 0, 0, a[small], b[small], c[small]), repeats=2) / 512
    print(f"\nQuadrature alone (HardTanh, without its closed form): {1e3 * each:.2f} ms each")
    print("\nPeak memory of a process with torch and Tanh's duals, less arguments and result:")
    for count in (1_000_000, 4_000_000, 16_000_000):
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=fresh) as pool:
            print(
                f"{count:>12} triples: {pool.submit(memory_beyond_data, count).result():6.0f} MiB"
            )


if __name__ == "__main__":
    main()
