"""Times of kernels of images, in microseconds per entry.

python benchmarks/images.py [--device cuda] [--dtype float32] [--samples N] [--pooled N]
    [--explicit N] [--explicit-pooled N] [--side S]

A ConvDEQ with a flattened and with an average-pooled readout, and 21 explicit layers, for images of
one channel. Entries of CK and NTK together count as one.
"""

import argparse
import time

import torch
from torch import Tensor

import shoal


def images(count: int, side: int, device: str, dtype: torch.dtype) -> Tensor:
    """Random images whose border is empty, as that of most digits is."""
    x = torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(0))
    edge = max(1, side // 7)
    x[:, :, :edge] = x[:, :, -edge:] = 0
    return x.to(device, dtype)


def per_entry(net: shoal.Architecture, x: Tensor) -> tuple[float, float]:
    """Microseconds for each entry of the upper half, the first time and the best of three."""
    times = []
    for _ in range(4):
        start = time.perf_counter()
        shoal.kernel(net, x)
        if x.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    entries = len(x) * (len(x) + 1) / 2
    return 1e6 * times[0] / entries, 1e6 * min(times[1:]) / entries


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--samples", type=int, default=60, help="images for flattened readouts")
    parser.add_argument("--pooled", type=int, default=4, help="images for pooled readouts")
    parser.add_argument("--explicit", type=int, default=20, help="images for explicit layers")
    parser.add_argument("--explicit-pooled", type=int, default=2, help="the same, pooled")
    parser.add_argument("--side", type=int, default=28, help="pixels along each axis")
    given = parser.parse_args()
    dtype = getattr(torch, given.dtype)
    relu = shoal.activations.ReLU()
    print(f"{given.side} by {given.side} pixels, {given.dtype}, {given.device}: µs per entry")
    print(f"{'network':34} {'images':>7} {'first':>10} {'best':>10}")
    counts = ((given.samples, given.explicit), (given.pooled, given.explicit_pooled))
    for pooling, (count, few) in zip((None, "average"), counts, strict=True):
        x = images(count, given.side, given.device, dtype)
        readout = "pooled" if pooling else "flattened"
        for variance in (0.2, 1.0, 1.6):
            net = shoal.ConvDEQ(relu, variance, 1.0, pooling=pooling)
            times = "".join(f" {t:10.4g}" for t in per_entry(net, x))
            print(f"{f'ConvDEQ {variance:g}, {readout}':34} {count:7}{times}", flush=True)
        explicit = shoal.ConvNet([relu] * 21, normalized=True, pooling=pooling)
        times = "".join(f" {t:10.4g}" for t in per_entry(explicit, x[:few]))
        print(f"{f'ConvNet of 21 layers, {readout}':34} {few:7}{times}", flush=True)


if __name__ == "__main__":
    main()
