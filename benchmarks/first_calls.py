"""The first and the second call of ``kernel`` on scikit-learn's tables, each in a fresh process.

    python benchmarks/first_calls.py [--tables iris wine] [--activations tanh mine]

CPU seconds after the import, on one thread. ``mine`` is an activation of a user, with one method.
"""

import argparse
import json
import os
import subprocess
import sys
import time

TABLES = ("iris", "wine", "breast_cancer", "diabetes", "digits")
ACTIVATIONS = (
    *("relu", "tanh", "gelu", "erf", "sigmoid", "softplus"),
    *("elu", "mish", "sine", "hardtanh", "mine"),
)
ROWS = 1000


def measure(name: str, table: str, *, standardized: bool) -> dict[str, float]:
    """Seconds of both calls, and of one product of the table with itself."""
    import torch
    from sklearn import datasets

    import shoal

    class Mine(shoal.Activation):
        def function(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x - 1.5) * torch.sigmoid(x)

    torch.set_num_threads(1)
    data = getattr(datasets, f"load_{table}")()
    x = torch.tensor(data.data[:ROWS], dtype=torch.float64)
    if standardized:
        spread = x.std(0, unbiased=False)
        x = (x - x.mean(0)) / torch.where(spread > 0, spread, 1.0)
    network = shoal.DEQ(Mine() if name == "mine" else name, 0.23, 0.77)

    def seconds(call) -> float:
        start = time.process_time()
        call()
        return time.process_time() - start

    times = [seconds(lambda: shoal.kernel(network, x)) for _ in range(2)]
    return {"first": times[0], "second": times[1], "product": seconds(lambda: x @ x.T)}


def main() -> None:
    """Run every case in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="*", default=TABLES)
    parser.add_argument("--activations", nargs="*", default=ACTIVATIONS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, table, scale = options.one
        print(json.dumps(measure(name, table, standardized=scale == "standardized")))
        return
    print(f"{'activation':12}{'table':16}{'scale':14}{'first':>8}{'second':>9}")
    for table in options.tables:
        for scale in ("raw", "standardized"):
            for name in options.activations:
                command = [sys.executable, __file__, "--one", name, table, scale]
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                done = subprocess.run(command, capture_output=True, env=environment, check=True)
                found = json.loads(done.stdout.splitlines()[-1])
                row = f"{name:12}{table:16}{scale:14}{found['first']:8.2f}{found['second']:9.3f}"
                print(row, flush=True)


if __name__ == "__main__":
    main()
