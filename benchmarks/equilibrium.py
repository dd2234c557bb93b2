"""A user's own cells in shoal.Equilibrium beside torchdeq: cold, in training, and in memory.

python benchmarks/equilibrium.py [--device D] [--rtol T] [--width M] [--batch N] [--channels C]
    [--side S] [--steps T] [--repeats R]

The cells are a Tanh layer with a recurrent weight and a ReLU layer with a 3x3 convolution, with
channels first and last in memory; they contract by about a half. torchdeq (if it can be imported)
solves the same cell with the same weights, the exact gradient, and, in each pass, the loosest
tolerance that gives its result a true residual of at most the same; of its solvers the fastest are
taken. Times are medians of runs that take turns. On a GPU convolutions are in float32, not in TF32,
in which no residual gets there, and training starts cold: evaluations in a CUDA graph cost less
than to extrapolate earlier solutions.
"""

import argparse
import math
import time
from collections.abc import Callable

import torch
import torchdeq_peer as peer
from torch import Tensor, nn

import shoal

RATE = 1e-2  # of the optimizer


class TanhCell(nn.Module):
    """A linear layer of the state, the input, and a tanh."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.recurrent = nn.Linear(width, width)
        nn.init.normal_(self.recurrent.weight, std=0.5 / math.sqrt(width))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """One step."""
        return torch.tanh(self.recurrent(z) + x)


class ConvolutionalCell(nn.Module):
    """A convolution of the state, the input, and a ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.recurrent = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.normal_(self.recurrent.weight, std=0.7 / math.sqrt(9 * channels))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """One step."""
        return torch.relu(self.recurrent(z) + x)


def finish(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def times(
    functions: dict[str, Callable[[], object]], repeats: int, device: torch.device
) -> dict[str, float]:
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


def report(title: str, found: dict[str, float]) -> None:
    """Print a line of times and their ratio."""
    line = f"{title}: " + ", ".join(f"{who} {1e3 * s:.2f} ms" for who, s in found.items())
    if len(found) > 1:
        line += f", torchdeq/shoal {found['torchdeq'] / found['shoal']:.2f}"
    print(line)


class Contest:
    """A cell, its input, and all who solve it."""

    def __init__(self, make: Callable[[], nn.Module], x: Tensor, rtol: float) -> None:
        self.make, self.x, self.rtol = make, x, rtol
        torch.manual_seed(1)
        self.target = torch.tanh(torch.randn_like(x))
        self.cell = self.fresh()

    def fresh(self) -> nn.Module:
        """The same cell every time."""
        torch.manual_seed(0)
        return self.make().to(self.x.device)

    def loss(self, z: Tensor) -> Tensor:
        """A mean squared error."""
        return (z - self.target).square().mean()

    def layer(self, cell: nn.Module, *, warm_start: bool = False) -> shoal.Equilibrium:
        """The cell in shoal."""
        solver = shoal.Picard(rtol=self.rtol, atol=0.0, max_steps=peer.STEPS)
        return shoal.Equilibrium(cell, solver=solver, warm_start=warm_start, graphs=True)

    def step(self, cell: nn.Module, state: Callable[[], Tensor]) -> float:
        """A forward and a backward pass."""
        cell.zero_grad()
        loss = self.loss(state())
        with torch.autograd.set_multithreading_enabled(mode=False):  # in this thread, for everyone
            loss.backward()
        return float(loss.detach())

    def rival(self, repeats: int) -> tuple[str, peer.Peer] | None:
        """The fastest of torchdeq's solvers, by name."""
        if not peer.is_installed():
            return None
        several = peer.candidates(self.cell, self.x, self.rtol, self.loss)
        found = times(
            {name: lambda p=p: self.step(self.cell, p.state) for name, p in several.items()},
            max(1, repeats // 3),
            self.x.device,
        )
        if not found:  # none of its solvers gets there
            return None
        best = min(found, key=found.__getitem__)
        return best, several[best]


def cold(contest: Contest, rival: peer.Peer | None, repeats: int) -> None:
    """Forward alone, and forward and backward, from a cold start."""
    cell, x = contest.cell, contest.x
    layer, start = contest.layer(cell), torch.zeros_like(x)
    contest.step(cell, lambda: layer(start, x))
    found, adjoint = layer.solution, layer.solution.adjoint
    with torch.no_grad():
        true = peer.relative_residual(cell(found.value, x), found.value)
    print(
        f"  true relative residual: shoal {true:.1e}, {found.evaluations} evaluations forward and "
        f"{adjoint.evaluations} backward"
        + ("" if rival is None else f"; torchdeq {rival.residual():.1e} forward, ")
        + ("" if rival is None else f"{rival.adjoint_residual(contest.loss):.1e} backward")
    )

    def forward(state: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad():
            return state()

    ours = {"shoal": lambda: layer(start, x)}
    everyone = ours if rival is None else {**ours, "torchdeq": rival.state}
    device = x.device
    each = {name: lambda s=s: forward(s) for name, s in everyone.items()}
    report("  forward, cold", times(each, repeats, device))
    each = {name: lambda s=s: contest.step(cell, s) for name, s in everyone.items()}
    report("  forward and backward, cold", times(each, repeats, device))


def training(contest: Contest, rival: peer.Peer | None, steps: int) -> None:
    """Steps of gradient descent on the same batch, from the same weights; they take turns."""
    x, start = contest.x, torch.zeros_like(contest.x)
    own, other = contest.fresh(), contest.fresh()
    layer = contest.layer(own, warm_start=not x.is_cuda)
    runs: dict[str, tuple[nn.Module, Callable[[], Tensor]]] = {
        "shoal": (own, lambda: layer(start, x))
    }
    if rival is not None:
        rival.cell = other
        runs["torchdeq"] = (other, rival.state)
    optimizers = {n: torch.optim.SGD(cell.parameters(), RATE) for n, (cell, _) in runs.items()}
    spent: dict[str, list[float]] = {name: [] for name in runs}
    losses = {}
    for _ in range(steps):
        for name, (cell, state) in runs.items():
            finish(x.device)
            begin = time.perf_counter()
            losses[name] = contest.step(cell, state)
            optimizers[name].step()
            finish(x.device)
            spent[name].append(time.perf_counter() - begin)
    ends = ", ".join(f"{name} {loss:.6f}" for name, loss in losses.items())
    print(f"  last losses: {ends}; {layer.solution.evaluations} evaluations in shoal's last solve")
    found = {name: sorted(each)[steps // 2] for name, each in spent.items()}
    report(f"  {steps} steps of training", found)


def memory(contest: Contest) -> None:
    """What autograd holds between the passes, for few steps and for many."""
    held = {}
    for rtol in (1e-1, 1e-6):
        layer = shoal.Equilibrium(contest.cell, solver=shoal.Picard(rtol=rtol, atol=0.0))
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            state = layer(torch.zeros_like(contest.x), contest.x)
        held[int(layer.solution.steps.max())] = sum(sizes.values()) / 2**20
        del state
    each = ", ".join(f"{size:.2f} MiB after {steps} steps" for steps, size in held.items())
    print(f"  held for the backward pass: {each}")
    if contest.x.is_cuda:
        peak_memory(contest)


def peak_memory(contest: Contest) -> None:
    """The most that a forward and a backward pass need on the device."""
    peaks = {}
    for rtol in (1e-1, 1e-6):
        layer = shoal.Equilibrium(contest.cell, solver=shoal.Picard(rtol=rtol, atol=0.0))
        torch.cuda.reset_peak_memory_stats(contest.x.device)
        before = torch.cuda.memory_allocated(contest.x.device)
        contest.step(contest.cell, lambda e=layer: e(torch.zeros_like(contest.x), contest.x))
        peak = torch.cuda.max_memory_allocated(contest.x.device) - before
        peaks[int(layer.solution.steps.max())] = peak / 2**20
    each = ", ".join(f"{size:.2f} MiB with {steps} steps" for steps, size in peaks.items())
    print(f"  peak of both passes: {each}")


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rtol", type=float, default=1e-4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--side", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=15)
    o = parser.parse_args()
    device = torch.device(o.device)
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    generator = torch.Generator().manual_seed(0)
    images = (o.batch, o.channels, o.side, o.side)
    plain, last = torch.contiguous_format, torch.channels_last
    size = f"{o.channels}x{o.side}x{o.side}"
    cells = {
        f"Tanh, width {o.width}": (lambda: TanhCell(o.width), (o.batch, o.width), plain),
        f"convolution, {size}": (lambda: ConvolutionalCell(o.channels), images, plain),
        f"convolution, {size}, channels last": (
            lambda: ConvolutionalCell(o.channels).to(memory_format=last),
            images,
            last,
        ),
    }
    where = f"{torch.get_num_threads()} threads" if device.type == "cpu" else str(device)
    print(f"batch {o.batch}, float32, relative residual {o.rtol:g}, {where}")
    for name, (make, shape, memory_format) in cells.items():
        x = torch.randn(shape, generator=generator).to(device, memory_format=memory_format)
        contest = Contest(make, x, o.rtol)
        best = contest.rival(o.repeats)
        named = "not there, or not to this residual" if best is None else best[0]
        print(f"{name}; torchdeq: {named}")
        rival = None if best is None else best[1]
        cold(contest, rival, o.repeats)
        memory(contest)
        training(contest, rival, o.steps)


if __name__ == "__main__":
    main()
