"""What a symmetric kernel matrix spends its time on, beside the matrix product x @ x.T.

python benchmarks/kernel_parts.py [--device cuda] [--samples N] [--repeats R]

Every part runs alone, for all strips of the matrix: the products of the strips, the evaluation of
both kernels (on a GPU, of one norm, mirrored), the mirroring. ``plan`` is what a call does before.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

import shoal
from kernels import DEQ, inputs
from shoal.kernels.arguments import PolarInputs
from shoal.kernels.blocks import Block
from shoal.kernels.plan import Plan

PAIRS = 64


def median(function: Callable[[], object], repeats: int) -> float:
    """The median time, in seconds, after a first call."""
    times = []
    for _ in range(repeats + 1):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        result = function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        del result
    return sorted(times[1:])[repeats // 2]


def deviation(deq: shoal.DEQ, x: Tensor, found: shoal.kernels.Kernels) -> float:
    """The largest error of both kernels at random pairs, relative to the diagonal."""
    generator = torch.Generator().manual_seed(1)
    i, j = (torch.randint(len(x), (PAIRS,), generator=generator) for _ in range(2))
    left, right = (x[k.to(x.device)].cpu().double() for k in (i, j))
    a, b, c = (left**2).sum(1), (right**2).sum(1), (left * right).sum(1)
    function = shoal.kernel_function(deq)
    off = [
        (matrix[i.to(x.device), j.to(x.device)].cpu().double() - exact).abs() / (own * other).sqrt()
        for matrix, exact, own, other in zip(
            found, function(a, b, c), function(a, a, a), function(b, b, b), strict=True
        )
    ]
    return float(torch.stack(off).max())


def parts(deq: shoal.DEQ, x: Tensor, repeats: int) -> dict[str, float]:
    """The time of each part, in milliseconds."""
    plan = Plan.for_inputs(shoal.kernel_function(deq), own := PolarInputs(x), own)
    strips = list(plan.strips(None))
    matrix = x.new_empty(len(x), len(x))
    other = torch.empty_like(matrix)
    longest = plan.cosines(strips[0])

    def each(work: Callable[[object], object]) -> Callable[[], None]:
        def run() -> None:
            for strip in strips:
                work(strip)

        return run

    def evaluate(strip) -> None:
        rows, columns = strip.shape
        cosine = longest.flatten()[: rows * columns].view(rows, columns)
        factors = plan.rows[strip.rows], plan.columns[strip.columns]
        views = matrix[strip], other[strip]
        mirrored = matrix[strip[::-1]], other[strip[::-1]]
        plan.backend.evaluate(Block(plan.surface, *factors, cosine), views, mirrored)

    work = {
        "product": lambda: x @ x.T,
        "whole": lambda: shoal.kernel(deq, x),
        "plan": lambda: Plan.for_inputs(shoal.kernel_function(deq), one := PolarInputs(x), one),
        "strips": each(plan.cosines),
        "evaluate": each(evaluate),
        "mirror": each(lambda strip: plan.mirror(matrix, strip) or plan.mirror(other, strip)),
    }
    found = {name: 1e3 * median(function, repeats) for name, function in work.items()}
    surface = plan.surface
    print(f"    {len(strips)} strips, rank {surface.rank}, {surface.coefficients.shape[-1]} terms")
    return found


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--repeats", type=int, default=5)
    o = parser.parse_args()
    print(f"n = {o.samples}, p = {o.features}, {o.device}, torch {torch.__version__}; milliseconds")
    for dtype in (torch.float64, torch.float32):
        for one_norm in (True, False):
            x = inputs(o.samples, o.features, one_norm=one_norm).to(dtype).to(o.device)
            for phi in (shoal.activations.ReLU(), shoal.activations.Tanh()):
                deq = shoal.DEQ(phi, **DEQ)
                start = time.perf_counter()
                error = deviation(deq, x, shoal.kernel(deq, x))
                first = time.perf_counter() - start
                name = f"{str(dtype)[6:]}, {'one norm' if one_norm else 'any norms'}, {phi!r}"
                print(f"{name}: first call {first:.2f} s, error {error:.0e}")
                found = parts(deq, x, o.repeats)
                ratio = found["whole"] / found["product"]
                each = ", ".join(f"{part} {ms:.2f}" for part, ms in found.items())
                print(f"    {each}; ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
