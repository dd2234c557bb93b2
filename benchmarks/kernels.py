"""Kernel matrices against the matrix product x @ x.T that they cannot do without.

python benchmarks/kernels.py [--device cuda] [--samples N] [--peer PYTHON]

``--peer`` is an interpreter that has neural-tangents.
"""

import argparse
import json
import math
import multiprocessing
import resource
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

import shoal

DEQ = {"recurrent_variance": 0.2, "input_variance": 0.8}


def inputs(count: int, features: int, *, one_norm: bool) -> Tensor:
    """Random directions, of norm one or of norms between 1/2 and 2."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, features, dtype=torch.float64, generator=generator)
    x /= x.norm(dim=1, keepdim=True)
    share = torch.rand(count, 1, dtype=torch.float64, generator=generator)
    return x if one_norm else x * 4**share / 2


def best(function: Callable[[], object], device: str, repeats: int = 5) -> float:
    """The shortest of several times, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        del result
    return min(times)


def ratios(device: str, count: int, features: int) -> None:
    """CK and NTK together, as a ratio to the matrix product alone."""
    print(f"\nCK and NTK, n = {count}, p = {features}, {device}: ratio to x @ x.T")
    print(f"{'activation':12} {'dtype':8} {'norms':6} {'first s':>8} {'time s':>8} {'ratio':>6}")
    activations = (
        shoal.activations.ReLU(),
        shoal.activations.Tanh(),
        shoal.activations.GELU(),
        shoal.activations.Softplus(),
        shoal.activations.ELU(),
        shoal.activations.HardTanh(),
    )
    for dtype in (torch.float64, torch.float32):
        for one_norm in (True, False):
            x = inputs(count, features, one_norm=one_norm).to(dtype).to(device)
            best(lambda x=x: x @ x.T, device, 2)
            for phi in activations:
                deq = shoal.DEQ(phi, **DEQ)

                def run(deq: shoal.DEQ = deq, x: Tensor = x) -> shoal.kernels.Kernels:
                    return shoal.kernel(deq, x)

                first = best(run, device, 1)
                product, both = best(lambda x=x: x @ x.T, device), best(run, device)
                print(
                    f"{type(phi).__name__:12} {str(dtype)[6:]:8} {'one' if one_norm else 'any':6} "
                    f"{first:8.2f} {both:8.4f} {both / product:6.2f}",
                    flush=True,
                )


def gradients(device: str, count: int, features: int) -> None:
    """Backward passes in the inputs, as a ratio to forward ones."""
    print(f"\nGradients in the inputs, float64, n = {count}, p = {features}, {device}")
    print(f"{'activation':12} {'norms':6} {'forward s':>10} {'backward s':>11} {'ratio':>6}")
    weights = torch.ones(count, count, dtype=torch.float64, device=device)
    for one_norm in (True, False):
        x = inputs(count, features, one_norm=one_norm).to(device).requires_grad_()
        for phi in (shoal.activations.ReLU(), shoal.activations.Tanh(), shoal.activations.GELU()):
            deq = shoal.DEQ(phi, **DEQ)

            def forward(deq: shoal.DEQ = deq, x: Tensor = x) -> shoal.kernels.Kernels:
                return shoal.kernel(deq, x)

            both = forward()

            def backward(both: shoal.kernels.Kernels = both) -> None:
                torch.autograd.backward(list(both), [weights, weights], retain_graph=True)

            backward()
            there, back = best(forward, device), best(backward, device)
            print(
                f"{type(phi).__name__:12} {'one' if one_norm else 'any':6} {there:10.4f} "
                f"{back:11.4f} {back / there:6.2f}",
                flush=True,
            )


def monte_carlo(width: int, count: int, features: int) -> None:
    """The papers' method: one wide random network, iterated to its fixed point."""
    print(f"\nMonte Carlo at width {width}, n = {count}: time and error in spectral norm")
    x = inputs(count, features, one_norm=True)
    generator = torch.Generator().manual_seed(1)
    for phi in (shoal.activations.ReLU(), shoal.activations.Tanh()):
        deq = shoal.DEQ(phi, **DEQ)
        exact = shoal.kernel(deq, x, trainable={"readout", "recurrent"})
        kernel_time = best(lambda deq=deq: shoal.kernel(deq, x), "cpu", 2)
        start = time.perf_counter()
        recurrent = torch.randn(width, width, dtype=torch.float64, generator=generator)
        injection = torch.randn(width, features, dtype=torch.float64, generator=generator)
        injected = math.sqrt(deq.input_variance) * injection @ x.T
        z = torch.zeros_like(injected)
        for _ in range(50):
            before = math.sqrt(deq.recurrent_variance) * recurrent @ z + injected
            z = phi(before) / math.sqrt(width)
        slope = phi.derivative(before, 1)
        ck = z.T @ z
        ntk = ck / (1 - deq.recurrent_variance * slope.T @ slope / width)
        elapsed = time.perf_counter() - start
        errors = [
            float(torch.linalg.matrix_norm(found - true, 2))
            for found, true in zip((ck, ntk), exact, strict=True)
        ]
        sizes = [float(torch.linalg.matrix_norm(true, 2)) for true in exact]
        print(
            f"{type(phi).__name__:6} {elapsed:6.1f} s, {elapsed / kernel_time:6.0f} times shoal's; "
            f"error of CK {errors[0]:.2f} of {sizes[0]:.1f}, "
            f"of NTK {errors[1]:.2f} of {sizes[1]:.1f}"
        )


def growth(device: str) -> None:
    """Time against samples, features, depth and tightness."""
    print("\nGrowth (Tanh, any norms, float64), seconds after set-up")

    def timed(arch: shoal.Architecture, count: int, features: int) -> str:
        x = inputs(count, features, one_norm=False).to(device)
        shoal.kernel(arch, x)
        return f"{best(lambda: shoal.kernel(arch, x), device, 3):.3f}"

    deq = shoal.DEQ("tanh", **DEQ)
    sizes = (1000, 2000, 4000, 8000)
    print("  n =", sizes, [timed(deq, n, 200) for n in sizes], "p = 200")
    widths = (50, 200, 800, 3200)
    print("  p =", widths, [timed(deq, 2000, p) for p in widths], "n = 2000")
    depths = (1, 3, 10, 30)
    nets = [shoal.FullyConnected(["tanh"] * depth) for depth in depths]
    print("  depth =", depths, [timed(net, 2000, 200) for net in nets], "n = 2000, p = 200")
    variances = (0.2, 0.8, 0.95, 0.99)
    deqs = [shoal.DEQ("tanh", v, 0.8) for v in variances]
    print("  σ_a² =", variances, [timed(d, 2000, 200) for d in deqs], "n = 2000, p = 200")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        peaks = [pool.submit(memory_beyond_results, n).result() for n in (1000, 2000, 4000, 8000)]
    print("  peak memory beyond inputs and results, MiB, n =", sizes, [round(p) for p in peaks])


def memory_beyond_results(count: int) -> float:
    """The peak memory of a process, less its inputs and results, in MiB (Linux)."""
    x = inputs(count, 200, one_norm=False)
    result = shoal.kernel(shoal.DEQ("tanh", **DEQ), x)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return peak - (x.nbytes + result.ck.nbytes + result.ntk.nbytes) / 2**20


def single_precision() -> None:
    """The error of float32 against the distance of the correlation from one."""
    print("\nfloat32, p = 784: largest error relative to the diagonal, by 1 - |cos θ|")
    x = inputs(400, 784, one_norm=True).float().double()
    x /= x.norm(dim=1, keepdim=True)
    x = x.float().double()
    for phi in (shoal.activations.ReLU(), shoal.activations.Tanh()):
        deq, row = shoal.DEQ(phi, **DEQ), []
        for gap in (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0):
            angle = math.acos(1 - gap)
            y = (math.cos(angle) * x[:200] + math.sin(angle) * x[200:]).float().double()
            exact = shoal.kernel(deq, x[:200], y)
            found = shoal.kernel(deq, x[:200].float(), y.float())
            errors = [
                float((a.double() - b).diagonal().abs().max() / b.abs().max())
                for a, b in zip(found, exact, strict=True)
            ]
            row.append(f"{gap:g}: {errors[0]:.0e}, {errors[1]:.0e}")
        print(f"  {type(phi).__name__}  " + "; ".join(row))


def peer(interpreter: str, count: int, features: int) -> None:
    """Times of neural-tangents for explicit networks, beside ours."""
    script = Path(__file__).with_name("neural_tangents_peer.py")
    options = ["--samples", str(count), "--features", str(features)]
    output = subprocess.run(
        [interpreter, str(script), *options], check=True, capture_output=True, text=True
    )
    print("\nneural-tangents:", json.dumps(json.loads(output.stdout), indent=1))
    x = inputs(count, features, one_norm=False)
    for depth in (3, 10):
        net = shoal.FullyConnected(["relu"] * depth)
        first = best(lambda net=net: shoal.kernel(net, x), "cpu", 1)
        again = best(lambda net=net: shoal.kernel(net, x), "cpu", 3)
        print(f"shoal, ReLU, depth {depth}: {again:.2f} s, first call {first:.2f} s")


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--peer", help="an interpreter that has neural-tangents")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.device}")
    ratios(options.device, options.samples, options.features)
    gradients(options.device, 2000 if options.device == "cpu" else 8000, options.features)
    growth(options.device)
    single_precision()
    if options.device == "cpu":
        monte_carlo(4096, min(1000, options.samples), options.features)
    if options.peer:
        peer(options.peer, options.samples, options.features)


if __name__ == "__main__":
    main()
