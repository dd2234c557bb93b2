"""The time of a product with a kernel matrix that several processes share, kept and not kept.

torchrun --standalone --nproc-per-node=R benchmarks/several_processes.py [--samples 6000]
    [--features 784] [--columns 10] [--device cpu] [--repeats 3] [--gloo]

Strong scaling: the same samples for every R. Weak scaling: samples times the root of R. With --gloo
processes may share one GPU; otherwise each has its own. On a busy
machine compare times of the CPU, which has each process to itself.
"""

import argparse
import os
import time

import torch

import shoal

DEQ = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)


def seconds(
    operator: shoal.kernels.KernelOperator, vectors: torch.Tensor, repeats: int
) -> tuple[float, float]:
    """The shortest time of a product, and of its work on a CPU, after one that is not counted."""
    times, work = [], []
    for _ in range(repeats + 1):
        begin, before = time.perf_counter(), time.process_time()
        float((operator @ vectors).sum())  # waits for the device
        times.append(time.perf_counter() - begin)
        work.append(time.process_time() - before)
    return min(times[1:]), min(work[1:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("samples", 6000), ("features", 784), ("columns", 10), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--gloo", action="store_true")
    given = parser.parse_args()
    rank, size = (int(os.environ.get(name, "0")) for name in ("LOCAL_RANK", "WORLD_SIZE"))
    device = torch.device(given.device)
    if given.gloo:
        torch.distributed.init_process_group("gloo")
    elif device.type == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    generator = torch.Generator().manual_seed(0)
    shape = (given.samples, given.features)
    x = torch.randn(shape, dtype=torch.float64, generator=generator).to(device)
    vectors = torch.randn(given.samples, given.columns, dtype=torch.float64, generator=generator)
    half = 8 * given.samples**2 // 2  # bytes of the matrix that are computed
    ways = {
        "kept": (2 * half + 2**30, None),
        "computed again": (half // 6, None),
        "in float32": (half // 6, torch.float32),
    }
    for name, (memory, precision) in ways.items():
        operator = shoal.kernel_operator(DEQ, x, memory=memory, precision=precision).ntk
        took, work = seconds(operator, vectors.to(device), given.repeats)
        if not rank:
            who = f"{max(size, 1)} processes, {given.samples} samples"
            print(f"{who}, {name}: {took:.3f} s, of the first one's CPU {work:.3f} s")
    if given.gloo:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
