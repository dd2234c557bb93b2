"""The table of ratios: what a user pays beside what cannot be avoided, or beside a peer.

python benchmarks/ratios.py [equilibria] [tables] [matrices] [--device cuda] [--limit SECONDS]

Without a part's name, all parts run. On a CPU everything runs in one thread and CPU time is
counted (``matrices``: as many threads as torch uses, shortest wall time), on a GPU wall time.
Each ratio is of times from the same run, in which the contestants are interleaved.

equilibria  shoal.Equilibrium beside the twenty lines of plain_equilibrium.py and beside torchdeq
            (if it can be imported): forward and backward of a Tanh cell, Picard, rtol 1e-4
tables      the first call of ``kernel`` in a fresh process on scikit-learn's tables, in CPU seconds
            after the import, for several activations; ``--limit`` ends those that take longer
matrices    CK and NTK beside the product x @ x.T, and a backward pass beside a forward one
"""

import argparse
import importlib.util
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from plain_equilibrium import PlainEquilibrium
from torch import Tensor, nn

import shoal

SIZES = ((16, 4), (64, 32), (256, 64), (1024, 256))  # width and batch
TABLES = ("wine", "breast_cancer", "diabetes", "iris", "digits")
ACTIVATIONS = ("ReLU", "Tanh", "GELU", "Erf", "ELU")
VARIANCES = {"recurrent_variance": 0.23, "input_variance": 0.77}


def clock(device: str) -> float:
    """CPU time of this process, or on a GPU the time when its work is done."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def median_times(
    functions: dict[str, Callable[[], object]], repeats: int, device: str
) -> dict[str, float]:
    """The median time of each function; runs are interleaved, so that all see the same machine."""
    for function in functions.values():
        function()
    spent: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = clock(device)
            function()
            spent[name].append(clock(device) - start)
    return {name: sorted(each)[repeats // 2] for name, each in spent.items()}


class TanhCell(nn.Module):
    """A linear layer of the state, the input, and a tanh; it contracts by about a half."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.recurrent = nn.Linear(width, width)
        nn.init.normal_(self.recurrent.weight, std=0.25 / math.sqrt(width))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """One iteration."""
        return torch.tanh(self.recurrent(z) + x)


def equilibria(device: str) -> None:
    """Forward and backward passes of small and large cells."""
    print(f"\nEquilibria, forward and backward, float32, {device}: ms, and ratio to 20 lines")
    print(
        f"{'width x batch':14} {'20 lines':>9} {'shoal':>16} {'torchdeq':>16}  error of gradients"
    )
    for width, batch in SIZES:
        torch.manual_seed(0)
        cell = TanhCell(width).to(device)
        x = torch.randn(batch, width).to(device)
        start = torch.zeros_like(x)
        weights = torch.randn(batch, width).to(device)
        plain = PlainEquilibrium(cell)
        ours = shoal.Equilibrium(cell, solver=shoal.Picard(rtol=1e-4, atol=0.0), graphs=True)
        layers: dict[str, Callable[[], Tensor]] = {
            "20 lines": lambda plain=plain, start=start, x=x: plain(start, x),
            "shoal": lambda ours=ours, start=start, x=x: ours(start, x),
        }
        if importlib.util.find_spec("torchdeq") is not None:
            layers["torchdeq"] = torchdeq_layer(cell, start, x)

        def step(
            layer: Callable[[], Tensor], cell: nn.Module = cell, weights: Tensor = weights
        ) -> Tensor:
            cell.zero_grad()
            (layer() * weights).sum().backward()
            return cell.recurrent.weight.grad.clone()

        exact = shoal.Equilibrium(cell, solver=shoal.Picard(rtol=1e-6, atol=0.0))
        true = step(lambda exact=exact, start=start, x=x: exact(start, x))
        errors = {name: float((step(f) - true).norm() / true.norm()) for name, f in layers.items()}
        functions = {name: lambda f=f, step=step: step(f) for name, f in layers.items()}
        found = median_times(functions, max(9, 6000 // width), device)
        row = f"{width:5} x {batch:<6} {1e3 * found['20 lines']:9.2f}"
        for name in ("shoal", "torchdeq"):
            if name in found:
                ratio = found[name] / found["20 lines"]
                row += f" {1e3 * found[name]:8.2f} ({ratio:4.2f}x)"
        print(row + "  " + ", ".join(f"{name} {e:.0e}" for name, e in errors.items()), flush=True)


def torchdeq_layer(cell: nn.Module, start: Tensor, x: Tensor) -> Callable[[], Tensor]:
    """The same cell with torchdeq's plain iteration and its implicit gradient."""
    from torchdeq import get_deq

    kinds = {"f_solver": "fixed_point_iter", "b_solver": "fixed_point_iter", "ift": True}
    tolerances = {"f_tol": 1e-4, "b_tol": 1e-4, "f_stop_mode": "rel", "b_stop_mode": "rel"}
    deq = get_deq(f_max_iter=100, b_max_iter=100, **kinds, **tolerances)
    return lambda: deq(lambda z: cell(z, x), start)[0][-1]


FIRST_CALL = """
import resource, sys, time
import torch, sklearn.datasets, shoal
torch.set_num_threads(1)
x = torch.tensor(getattr(sklearn.datasets, "load_{table}")().data[:1000], dtype=torch.float64)
if {standardized}:
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-12)
deq = shoal.DEQ(shoal.activations.{activation}(), **{variances})
start = time.process_time()
resource.setrlimit(resource.RLIMIT_CPU, (int(start + {limit} + 1), resource.RLIM_INFINITY))
shoal.kernel(deq, x)
first = time.process_time()
shoal.kernel(deq, x)
second = time.process_time()
x @ x.T
print(first - start, second - first, time.process_time() - second)
"""


def tables(limit: float) -> None:
    """First calls on tables, each in a fresh process."""
    print(f"\nFirst kernel of a DEQ on a table, CPU seconds, one thread; ended after {limit:g} s")
    print(f"{'table':14} {'':13} " + " ".join(f"{name:>7}" for name in ACTIVATIONS))
    for table in TABLES:
        for standardized in (False, True):
            row = f"{table:14} {'standardized' if standardized else 'raw':13} "
            for activation in ACTIVATIONS:
                script = FIRST_CALL.format(
                    table=table,
                    standardized=standardized,
                    activation=activation,
                    variances=VARIANCES,
                    limit=limit,
                )
                row += f"{first_call(script, limit):>7} "
            print(row, flush=True)


def first_call(script: str, limit: float) -> str:
    """The CPU seconds of a first call, or the limit that it exceeded."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if done.returncode == -signal.SIGXCPU:
        return f">{limit:g}"
    if done.returncode:
        return done.stderr.strip().splitlines()[-1].partition(":")[0]
    return f"{float(done.stdout.split()[0]):.2f}"


def inputs(count: int, features: int, *, one_norm: bool) -> Tensor:
    """Random directions, of norm one or of norms between 1/2 and 2."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, features, dtype=torch.float64, generator=generator)
    x /= x.norm(dim=1, keepdim=True)
    share = torch.rand(count, 1, dtype=torch.float64, generator=generator)
    return x if one_norm else x * 4**share / 2


def best_time(function: Callable[[], object], device: str, repeats: int = 7) -> float:
    """The shortest of several wall times."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        del result
    return min(times)


def matrices(device: str) -> None:
    """CK and NTK together beside one product, backward passes beside forward ones."""
    count = 3500 if device == "cpu" else 32768
    print(
        f"\nCK and NTK of {count} x 784 over x @ x.T, {device}, {torch.get_num_threads()} threads"
    )
    print(f"{'dtype':8} {'norms':5} " + " ".join(f"{name:>7}" for name in ACTIVATIONS))
    for dtype in (torch.float64, torch.float32):
        for one_norm in (True, False):
            x = inputs(count, 784, one_norm=one_norm).to(device, dtype)
            row = f"{str(dtype)[6:]:8} {'one' if one_norm else 'any':5} "
            for activation in ACTIVATIONS:
                deq = shoal.DEQ(getattr(shoal.activations, activation)(), **VARIANCES)
                shoal.kernel(deq, x)
                product = best_time(lambda x=x: x @ x.T, device)
                both = best_time(lambda x=x, deq=deq: shoal.kernel(deq, x), device)
                product = min(product, best_time(lambda x=x: x @ x.T, device))
                row += f"{both / product:7.2f} "
            print(row, flush=True)
    count = 2000 if device == "cpu" else 8000
    print(f"Backward over forward, float64, {count} x 784: one norm, any norms")
    weights = torch.ones(count, count, dtype=torch.float64, device=device)
    for activation in ACTIVATIONS:
        deq, row = shoal.DEQ(getattr(shoal.activations, activation)(), **VARIANCES), ""
        for one_norm in (True, False):
            x = inputs(count, 784, one_norm=one_norm).to(device).requires_grad_()
            both = shoal.kernel(deq, x)

            def backward(both: tuple[Tensor, Tensor] = both) -> None:
                torch.autograd.backward(list(both), [weights, weights], retain_graph=True)

            backward()
            forward = best_time(lambda deq=deq, x=x: shoal.kernel(deq, x), device)
            row += f" {best_time(backward, device) / forward:5.2f}"
        print(f"  {activation:8}{row}", flush=True)


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="equilibria, tables, matrices; default: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds for a first call")
    options = parser.parse_args()
    parts = options.parts or ["equilibria", "tables", "matrices"]
    print(f"shoal {shoal.__version__}, torch {torch.__version__}, {options.device}")
    if "matrices" in parts:
        matrices(options.device)
    if options.device == "cpu":
        torch.set_num_threads(1)
    if "equilibria" in parts:
        equilibria(options.device)
    if "tables" in parts:
        tables(options.limit)


if __name__ == "__main__":
    main()
