"""The first and the second call of ``kernel`` on scikit-learn's tables, each in a fresh process.

    python benchmarks/first_calls.py [--tables iris wine] [--activations tanh mine]

CPU seconds after the import, on one thread. ``mine`` is an activation of a user, with one method.
"""

import argparse
import multiprocessing
import time

import torch
from sklearn import datasets

import shoal

TABLES = ("iris", "wine", "breast_cancer", "diabetes", "digits")
ACTIVATIONS = (
    *("relu", "tanh", "gelu", "erf", "sigmoid", "softplus"),
    *("elu", "mish", "sine", "hardtanh", "mine"),
)
ROWS = 1000


class Mine(shoal.Activation):
    """An activation of a user."""

    def function(self, x: torch.Tensor) -> torch.Tensor:
        """Evaluate it."""
        return torch.tanh(x - 1.5) * torch.sigmoid(x)


def measure(case: tuple[str, str, str]) -> tuple[float, float]:
    """Seconds of both calls."""
    table, scale, name = case
    data = getattr(datasets, f"load_{table}")()
    x = torch.tensor(data.data[:ROWS], dtype=torch.float64)
    if scale == "standardized":
        spread = x.std(0, unbiased=False)
        x = (x - x.mean(0)) / torch.where(spread > 0, spread, 1.0)
    network = shoal.DEQ(Mine() if name == "mine" else name, 0.23, 0.77)

    def seconds() -> float:
        start = time.process_time()
        shoal.kernel(network, x)
        return time.process_time() - start

    return seconds(), seconds()


def main() -> None:
    """Run every case in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="*", default=TABLES)
    parser.add_argument("--activations", nargs="*", default=ACTIVATIONS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [
        (table, scale, name)
        for table in options.tables
        for scale in ("raw", "standardized")
        for name in options.activations
    ]
    print(f"{'activation':12}{'table':16}{'scale':14}{'first':>8}{'second':>9}")
    # a fork has imported everything, and has called nothing
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for (table, scale, name), (first, second) in zip(
            cases, pool.imap(measure, cases), strict=True
        ):
            print(f"{name:12}{table:16}{scale:14}{first:8.2f}{second:9.3f}", flush=True)


if __name__ == "__main__":
    main()
