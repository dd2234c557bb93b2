"""A Tanh DEQ of width 1024, cold and in training: time, ratio to torchdeq, ratio to the floor.

python benchmarks/deq.py [--device D] [--width M] [--batch N] [--steps T] [--repeats R]

The floor is the time of the matrix products in float32 that the solves need, and of those of the
input and of the gradients, with nothing around them. torchdeq (if it is installed) solves the same
model with the same weights, the exact gradient, and, in each pass, the loosest tolerance that gives
its result a true residual of at most 1e-6; of its solvers the fastest are taken. Backward passes of
all run in the thread that asks for them: on a GPU, handing them over may cost much of a step.
"""

import argparse
import importlib.util
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import shoal

RTOL = 1e-6
ACCURATE = shoal.Picard(rtol=RTOL, atol=0.0)
DEQ = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)


@dataclass(frozen=True)
class Task:
    """Data and sizes that all contestants share."""

    x: Tensor
    y: Tensor
    width: int

    def network(
        self,
        solver: shoal.Picard = ACCURATE,
        *,
        gradient: shoal.Implicit | shoal.Unrolled | None = None,
        warm_start: bool = False,
    ) -> shoal.networks.Network:
        """A fresh network, with the same weights every time."""
        return shoal.build(
            DEQ,
            in_features=self.x.shape[1],
            width=self.width,
            dtype=self.x.dtype,
            device=self.x.device,
            solver=solver,
            gradient=gradient or shoal.Implicit(),
            warm_start=warm_start,
        )

    def loss(self, output: Tensor) -> Tensor:
        """Half the mean squared error."""
        return (output - self.y).square().mean() / 2


def finish(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def times(functions: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict:
    """The median time of each function; they take turns, so that all see the same machine."""
    for function in functions.values():
        function()
    measured: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            finish(device)
            start = time.perf_counter()
            function()
            finish(device)
            measured[name].append(time.perf_counter() - start)
    return {name: sorted(each)[repeats // 2] for name, each in measured.items()}


def residual(z: Tensor, injection: Tensor, weight: Tensor) -> float:
    """The largest relative residual of a batch of equilibria."""
    with torch.no_grad():
        off = torch.tanh(torch.addmm(injection, z, weight.t())) - z
        return float((off.norm(dim=1) / z.norm(dim=1)).max())


def relative(solution: shoal.equilibrium.Solution) -> float:
    """The largest relative residual of a solution."""
    return float((solution.residual / solution.value.detach().norm(dim=1)).max())


class TorchDEQ:
    """The same model with torchdeq's solvers and its implicit gradient."""

    def __init__(self, task: Task, forward: tuple[str, float], backward: tuple[str, float]) -> None:
        from torchdeq import get_deq

        self.task = task
        self.net = task.network()
        self.deq = get_deq(
            f_solver=forward[0],
            b_solver=backward[0],
            f_max_iter=100,
            b_max_iter=100,
            f_tol=forward[1],
            b_tol=backward[1],
            f_stop_mode="rel",
            b_stop_mode="rel",
            ift=True,
        )

    def output(self) -> Tensor:
        """The network's outputs."""
        width = self.task.width
        injection = torch.mm(self.task.x, self.net.input.t()) * math.sqrt(0.8)
        weight = self.net.recurrent * math.sqrt(0.2 / width)
        solved, _ = self.deq(
            lambda z: torch.tanh(torch.addmm(injection, z, weight.t())),
            torch.zeros_like(injection),
        )
        self.solved = (solved[-1].detach(), injection.detach(), weight.detach())
        return torch.mm(solved[-1], self.net.readout.t()) / math.sqrt(width)

    def adjoint_residual(self) -> float:
        """The true residual of what its backward solver makes of a cotangent."""
        self.output()
        z, _, weight = self.solved
        slope = 1 - z * z
        right = (self.net.readout.detach()).expand_as(z)

        def adjoint(g: Tensor) -> Tensor:
            return torch.addmm(right, g * slope, weight)

        options = {"max_iter": 100, "tol": self.deq.b_tol, "stop_mode": "rel"}
        with torch.no_grad():
            g, _, _ = self.deq.b_solver(adjoint, torch.zeros_like(z), **options)
            return float(((adjoint(g) - g).norm(dim=1) / g.norm(dim=1)).max())


def best_torchdeq(task: Task, repeats: int) -> TorchDEQ | None:
    """Its fastest solvers with tolerances as loose as may be, or nothing if not installed."""
    if importlib.util.find_spec("torchdeq") is None:
        return None
    solvers = ("fixed_point_iter", "anderson", "broyden")
    plain = ("fixed_point_iter", RTOL)
    tolerances = (1e-5, 7e-6, 5e-6, 3e-6, 2e-6, 1e-6)
    forward, backward = {}, {}
    for solver, tolerance in itertools.product(solvers, tolerances):
        if solver not in forward:
            candidate = TorchDEQ(task, (solver, tolerance), plain)
            candidate.output()
            if residual(*candidate.solved) <= RTOL:
                forward[solver] = tolerance
        candidate = TorchDEQ(task, plain, (solver, tolerance))
        if solver not in backward and candidate.adjoint_residual() <= RTOL:
            backward[solver] = tolerance
    candidates = {
        pair: TorchDEQ(task, *pair) for pair in itertools.product(forward.items(), backward.items())
    }
    found = times(
        {pair: lambda c=c: step(c.output, task, c.net) for pair, c in candidates.items()},
        max(1, repeats // 3),
        task.x.device,
    )
    best = min(found, key=found.__getitem__)
    print("torchdeq's best: {0[0]} (tolerance {0[1]:.0e}), {1[0]} ({1[1]:.0e})".format(*best))
    return candidates[best]


def step(output: Callable[[], Tensor], task: Task, net: shoal.networks.Network) -> float:
    """A forward and a backward pass."""
    net.zero_grad()
    loss = task.loss(output())
    with torch.autograd.set_multithreading_enabled(mode=False):
        loss.backward()
    return float(loss.detach())


def floor(task: Task, forward: int, backward: int) -> Callable[[], None]:
    """The matrix products of a forward and a backward pass, with nothing around them."""
    net = task.network()
    recurrent, inputs, x = net.recurrent.detach(), net.input.detach(), task.x
    z = torch.randn(len(x), task.width, dtype=x.dtype, device=x.device)
    like, weights, injections = torch.empty_like(z), torch.empty_like(recurrent), inputs.clone()

    def products() -> None:
        torch.mm(x, inputs.t(), out=like)
        for _ in range(forward):
            torch.mm(z, recurrent.t(), out=like)
        for _ in range(backward):
            torch.mm(z, recurrent, out=like)
        torch.mm(z.t(), z, out=weights)
        torch.mm(z.t(), x, out=injections)

    return products


def cold(task: Task, rival: TorchDEQ | None, repeats: int) -> None:
    """Forward and backward pass from a cold start."""
    net = task.network()
    step(lambda: net(task.x), task, net)
    products = net.last_solve.evaluations, net.last_adjoint.evaluations
    print(
        f"floor: {products[0]} products forward, {products[1]} backward; shoal's largest relative "
        f"residual: {relative(net.last_solve):.1e} forward, "
        f"{relative(net.last_adjoint):.1e} backward"
    )
    leaf = torch.zeros_like(task.y, requires_grad=True)
    contestants: dict[str, Callable[[], object]] = {
        "shoal": lambda: step(lambda: net(task.x), task, net),
        "loss and autograd without a network": lambda: step(lambda: leaf, task, net),
        "floor": floor(task, *products),
    }
    if rival is not None:
        print(
            f"torchdeq: largest relative residual {residual(*rival.solved):.1e} forward, "
            f"{rival.adjoint_residual():.1e} backward"
        )
        contestants["torchdeq"] = lambda: step(rival.output, task, rival.net)
    found = times(contestants, repeats, task.x.device)
    report("forward + backward, cold", found, unit=1e3, name="ms")


def report(title: str, found: dict[str, float], *, unit: float, name: str) -> None:
    """Print a line of times and ratios."""
    parts = [f"{who} {unit * seconds:.3g} {name}" for who, seconds in found.items()]
    if "torchdeq" in found:
        parts.append(f"torchdeq/shoal {found['torchdeq'] / found['shoal']:.2f}")
    if "floor" in found:
        parts.append(f"shoal/floor {found['shoal'] / found['floor']:.2f}")
    print(f"{title}: " + ", ".join(parts))


def memory(task: Task) -> None:
    """What autograd holds between the passes, for few steps and for many."""
    for gradient in (shoal.Implicit(), shoal.Unrolled()):
        held = {}
        for rtol in (1e-1, 1e-6):
            net = task.network(shoal.Picard(rtol=rtol), gradient=gradient)
            tensors: dict[int, int] = {}

            def pack(tensor: Tensor, tensors: dict[int, int] = tensors) -> Tensor:
                storage = tensor.untyped_storage()
                tensors[storage.data_ptr()] = storage.nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                output = net(task.x)  # what it holds must live until all is counted
            for known in (task.x, *net.parameters()):
                tensors.pop(known.untyped_storage().data_ptr(), None)
            held[int(net.last_solve.steps.max())] = sum(tensors.values()) / 2**20
            del output
        each = ", ".join(f"{size:.1f} MiB after {steps} steps" for steps, size in held.items())
        name = type(gradient).__name__
        print(f"held for the backward pass besides weights and data, {name}: {each}")


def one_input(task: Task, repeats: int) -> None:
    """The time from an input that the network has not seen to its output, without a gradient."""
    net = task.network(ACCURATE)
    count = iter(itertools.cycle(range(len(task.x))))

    def run() -> Tensor:
        at = next(count)
        with torch.no_grad():
            return net(task.x[at : at + 1])

    for _ in range(10):
        run()
    found = times({"shoal": run}, 3 * repeats, task.x.device)
    report("one input", found, unit=1e3, name="ms")


def train(
    output: Callable[[], Tensor], net: shoal.networks.Network, task: Task, rate: float, steps: int
):
    """Full-batch gradient descent; the time of each step and the last loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    device = task.x.device
    for _ in range(steps):
        finish(device)
        start = time.perf_counter()
        loss = step(output, task, net)
        optimizer.step()
        finish(device)
        yield time.perf_counter() - start, loss


def training(task: Task, rival: TorchDEQ | None, rate: float, steps: int) -> None:
    """Full-batch training from the same start; the contestants take turns, step by step."""
    net = task.network(warm_start=not task.x.is_cuda)
    runs = {"shoal": train(lambda: net(task.x), net, task, rate, steps)}
    if rival is not None:
        rival.net = task.network()
        runs["torchdeq"] = train(rival.output, rival.net, task, rate, steps)
    seconds, losses = dict.fromkeys(runs, 0.0), {}
    products = 0
    for _ in range(steps):
        for name, run in runs.items():
            spent, losses[name] = next(run)
            seconds[name] += spent
        products += net.last_solve.evaluations + net.last_adjoint.evaluations
    ends = ", ".join(f"{name} {loss:.6f}" for name, loss in losses.items())
    print(f"learning rate {rate}: {products / steps:.1f} evaluations per step; last losses: {ends}")
    report(f"{steps} steps at {rate}", seconds, unit=1, name="s")


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    device = torch.device(options.device)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(options.batch, options.features, generator=generator)
    y = torch.randn(options.batch, 1, generator=generator)
    x = x / x.norm(dim=1, keepdim=True)
    task = Task(x.to(device), y.to(device), options.width)
    threads = f"{torch.get_num_threads()} threads" if device.type == "cpu" else str(device)
    print(
        f"Tanh DEQ, width {options.width}, {options.features} inputs, batch {options.batch}, "
        f"float32, relative tolerance {RTOL:g}, {threads}"
    )
    rival = best_torchdeq(task, options.repeats)
    if rival is None:
        print("torchdeq is not installed and left out")
    cold(task, rival, options.repeats)
    one_input(task, options.repeats)
    memory(task)
    for rate in (0.05, 0.5):
        training(task, rival, rate, options.steps)


if __name__ == "__main__":
    main()
