"""Trainings that several processes share, for the tests."""

from pathlib import Path
from typing import Any

import torch

import shoal


def data(samples: int = 13) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels; their number is no multiple of that of the processes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 4, dtype=torch.float64, generator=generator)
    return x, torch.sin(3 * x[:, :2])


def network(kind: str) -> torch.nn.Module:
    """A network with tight equilibria, or one without."""
    if kind == "deq":
        deq = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8)
        solver = shoal.Picard(rtol=3e-15)
        return shoal.build(
            deq, in_features=4, width=32, out_features=2, dtype=torch.float64, solver=solver
        )
    chain = shoal.FullyConnected([shoal.Tanh()])
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
    }
    found: dict[str, Any] = {}
    for name, (kind, options) in given.items():
        net = network(kind)
        run = shoal.train(net, x, y, steps=4, **options)
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
    run = shoal.train(network("chain"), x, y, steps=1, step_size=0.01, monitor=False)
    return [*told, run.status]


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
