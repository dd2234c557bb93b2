"""Kernels that several processes share, for the tests."""

from typing import Any

import torch
from torch.distributed.fsdp import fully_shard

import shoal


def data(samples: int = 7) -> torch.Tensor:
    """Inputs; their number is no multiple of that of the processes."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(samples, 4, dtype=torch.float64, generator=generator)


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


def kernels(rank: int) -> list[Any]:  # noqa: ARG001
    """Kernels of networks and of another module, of inputs with themselves and with others."""
    x = data()
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
    """The errors of each process if one goes wrong."""
    x, told = data(), []
    for net, inputs in (
        (network("chain"), x + rank),
        (network("chain"), x if rank else x[:, :3]),
        (fully_shard(network("chain")), x),
    ):
        try:
            shoal.empirical_kernel(net, inputs)
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
    return [*told, str(shoal.empirical_kernel(network("chain"), x).ntk.shape)]


def parts(rank: int) -> dict[str, Any]:
    """Both functions, one after the other."""
    return {"kernels": kernels(rank), "failures": failures(rank)}


def one_sided(rank: int) -> str:
    """The error of a call that only the first process makes before the other one ends."""
    if rank == 0:
        try:
            shoal.empirical_kernel(network("chain"), data())
        except ConnectionError as error:
            return str(error)
    return ""
