"""Trainings that several processes share, for the tests."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import shoal


def data(samples: int = 13) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels; their number is no multiple of that of the processes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 4, dtype=torch.float64, generator=generator)
    return x, torch.sin(3 * x[:, :2])


def network(kind: str) -> torch.nn.Module:
    """A network with tight equilibria, or one without."""
    if kind == "deq":
        deq = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.2, input_variance=0.8)
        solver = shoal.Picard(rtol=3e-15)
        return shoal.build(
            deq, in_features=4, width=32, out_features=2, dtype=torch.float64, solver=solver
        )
    if kind == "pairs":  # of inputs
        torch.manual_seed(0)
        return torch.nn.Bilinear(4, 3, 2, dtype=torch.float64)
    chain = shoal.FullyConnected([shoal.activations.Tanh()])
    return shoal.build(chain, in_features=4, width=32, out_features=2, dtype=torch.float64)


def ways(rank: int, folder: str) -> dict[str, Any]:  # noqa: ARG001
    """Weights and losses after each way of training."""
    x, y = data()
    adam = {"optimizer": lambda p: torch.optim.Adam(p, lr=1e-2)}
    given: dict[str, tuple[str, dict[str, Any]]] = {
        "descent": ("deq", {"step_size": 0.02, "monitor": 3}),
        "silent": ("chain", {"step_size": 0.02, "monitor": False}),
        "batches": ("chain", {**adam, "batch_size": 5, "monitor": False}),
        "mean": ("chain", {**adam, "reduction": "mean", "monitor": False}),
        "flow": ("chain", {"method": "flow", "step_size": 0.002, "monitor": False}),
        "pairs": ("pairs", {"step_size": 0.02, "batch_size": 5, "monitor": 2}),
    }
    found: dict[str, Any] = {}
    for name, (kind, options) in given.items():
        net = network(kind)
        inputs = (x, x[:, :3]) if kind == "pairs" else x
        run = shoal.train(net, inputs, y, steps=4, **options)
        found[name] = [run.losses, *(p.detach() for p in net.parameters())]
    path = Path(folder) / "run.safetensors"  # two steps, and two more
    for steps in (2, 4):
        net = network("chain")
        shoal.train(net, x, y, steps=steps, step_size=0.02, monitor=False, checkpoint=path)
    found["resumed"] = [p.detach() for p in net.parameters()]
    return found


def kernels(rank: int) -> list[Any]:  # noqa: ARG001
    """Kernels of networks and of another module, of inputs with themselves and with others."""
    x, _ = data(7)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    found: list[Any] = []
    for net in (network("deq"), network("chain"), module.double()):
        found += [shoal.empirical_kernel(net, x), shoal.empirical_kernel(net, x[:5], x)]
        found += [shoal.empirical_kernel(net, x, diag=True)]
        found += [shoal.empirical_kernel(net, x[:1])]  # fewer than processes
    found += [shoal.empirical_kernel(module, x, features="0", memory=500)]
    found += [shoal.empirical_kernel(network("pairs"), (x, x[:, :3]), memory=500)]
    return [[k for k in pair if k is not None] for pair in found]


def failures(rank: int) -> list[str]:
    """What each process is told if one goes wrong."""
    x, y = data()
    told = []
    others: list[tuple[Any, Any]] = [
        (network("chain"), x + rank),
        (network("chain"), x if rank else x[:, :3]),
        (_Failing(fails=rank == 1), x),
    ]
    for net, inputs in others:
        try:
            shoal.train(net, inputs, y, steps=3, step_size=0.01, monitor=False)
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
    classes = torch.arange(13) % 2
    other = {"loss": torch.nn.functional.cross_entropy, "step_size": 0.01, "monitor": False}
    try:
        shoal.train(network("chain"), x, (classes + rank) % 2, steps=1, **other)
    except ValueError as error:
        told.append(str(error).split("differ in: ")[1])
    run = shoal.train(network("chain"), x, y, steps=1, step_size=0.01, monitor=False)
    return [*told, run.status]


def diverged(rank: int) -> tuple[str, list[str]]:  # noqa: ARG001
    """How a training with far too large steps ends, and what this process warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = shoal.train(network("chain"), *data(), steps=50, step_size=1e6, monitor=False)
    return run.status, [warning.category.__name__ for warning in caught]


def parts(rank: int, names: list[str], folder: str) -> dict[str, Any]:
    """Several of these functions, one after the other."""
    where = {"ways": (folder,)}
    return {name: globals()[name](rank, *where.get(name, ())) for name in names}


def wrapped(rank: int) -> tuple[list[Any], list[str]]:  # noqa: ARG001
    """Losses and weights of networks as they are and of distributed ones, and what is refused."""
    x, y = data()
    found: list[Any] = []
    refused: list[str] = []
    adam = {"optimizer": lambda p: torch.optim.Adam(p, lr=1e-2), "batch_size": 5}
    for wrap in (lambda net: net, DistributedDataParallel):
        for options in ({"step_size": 0.02}, adam, {"step_size": 0.02, "process_group": None}):
            net = network("chain")
            run = shoal.train(wrap(net), x, y, steps=4, monitor=False, **options)
            found.append([run.losses, *(p.detach().clone() for p in net.parameters())])
    divided = fully_shard(network("chain"))
    for attempt in (
        lambda: shoal.train(divided, x, y, steps=1, step_size=0.02),
        lambda: shoal.empirical_kernel(divided, x),
    ):
        try:
            attempt()
        except ValueError as error:
            refused.append(str(error))
    return found, refused


def one_sided(rank: int) -> str:
    """The error of a call that only the first process makes before the other one ends."""
    if rank == 0:
        try:
            shoal.train(network("chain"), *data(), steps=1, step_size=0.01)
        except ConnectionError as error:
            return str(error)
    return ""


class _Failing(torch.nn.Module):
    """A module that fails in its second step, in one process."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.layer, self.fails, self.calls = torch.nn.Linear(4, 2, dtype=torch.float64), fails, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.fails and self.calls > 1 and len(x) < 13:
            raise RuntimeError("out of luck")
        return self.layer(x)
