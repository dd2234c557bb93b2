"""Kernels for Gaussian processes: time of values, of their gradient, and of a learning step.

python benchmarks/hyperparameters.py [--points N ...] [--learning N ...]
"""

import argparse
import time
from statistics import median

import numpy as np
import torch
from kernel_parts import deviation

import shoal
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


def learning_steps(
    phi: shoal.Activation, count: int, features: int = 10
) -> tuple[list[float], float]:
    """CPU seconds of steps of a marginal likelihood in three variances, standardized features.

    With the largest error at random pairs after the last one, relative to the diagonal.
    """
    x = torch.randn(
        count, features, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    x, y = (x - x.mean(0)) / x.std(0), torch.sin(x[:, 0])
    names = ("recurrent_variance", "input_variance", "bias_variance")
    logs = torch.tensor([-1.6, -2.0, -2.3], dtype=torch.float64, requires_grad=True)
    optimizer, times = torch.optim.Adam([logs], lr=0.02), []
    for _ in range(6):
        start = time.process_time()
        optimizer.zero_grad()
        variances = dict(zip(names, logs.exp(), strict=True))
        deq = shoal.DEQ(phi, 0.2, 1.0, bias_variance=0.1)
        covariance = shoal.kernel(deq, x, variances=variances).ck + 0.1 * torch.eye(count)
        normal = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance)
        (-normal.log_prob(y)).backward()
        optimizer.step()
        times.append(time.process_time() - start)
    values = dict(zip(names, logs.exp().tolist(), strict=True))
    learned = shoal.DEQ(phi, **values)
    return times, deviation(learned, x, shoal.kernel(learned, x))


def main() -> None:
    """Print a row per activation and number of inputs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, nargs="*", default=[12, 80])
    parser.add_argument("--learning", type=int, nargs="*", default=[300])
    arguments = parser.parse_args()
    for count in arguments.learning:
        for phi in (
            shoal.activations.ReLU(),
            shoal.activations.GELU(),
            shoal.activations.Tanh(),
            shoal.activations.ELU(),
        ):
            (first, *others), error = learning_steps(phi, count)
            print(
                f"{type(phi).__name__:>5} {count:>4} inputs: learning step {median(others):.3f} s "
                f"of CPU, the first {first:.2f} s, error {error:.0e}"
            )
    for points in arguments.points:
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
