"""Kernels of few inputs for Gaussian processes: time of values, and of their gradient.

python benchmarks/hyperparameters.py [--points N ...]
"""

import argparse
import time

import numpy as np

from shoal.adapters import SklearnKernel


def seconds(kernel: SklearnKernel, x: np.ndarray, *, gradient: bool, repeats: int = 3) -> float:
    """The shortest of several times, each at other variances, as an optimizer tries them."""
    times = []
    for step in range(repeats):
        moved = kernel.clone_with_theta(kernel.theta + 0.01 * step)
        start = time.perf_counter()
        moved(x, eval_gradient=gradient)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print a row per activation and number of inputs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, nargs="+", default=[12, 80])
    for points in parser.parse_args().points:
        x = np.random.default_rng(0).standard_normal((points, 3))
        for activation in ("relu", "tanh"):
            kernel = SklearnKernel(activation, 0.2, 1.0, bias_variance=0.1)
            value, gradient = (seconds(kernel, x, gradient=wanted) for wanted in (False, True))
            print(
                f"{activation:>5} {points:>4} inputs: values {value:.3f} s, with gradient "
                f"{gradient:.3f} s, ratio {gradient / value:.1f}"
            )


if __name__ == "__main__":
    main()
