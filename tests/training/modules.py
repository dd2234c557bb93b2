"""Modules that shoal did not write, for the tests of training."""

import torch
from torch import nn

import shoal


def seeded(make, dtype=torch.float64):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().to(dtype)


def mlp():
    return seeded(lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)))


def restless():
    """Random in training, and with statistics of batches."""

    def make():
        middle = [nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3)]
        return nn.Sequential(nn.Linear(5, 8), *middle, nn.Linear(8, 2))

    return seeded(make)


class Residual(nn.Module):
    """A network of shoal between layers of PyTorch."""

    def __init__(self, **options):
        super().__init__()
        deq = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.1, input_variance=0.8)
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 2)
        self.deq = shoal.build(deq, in_features=4, width=8, out_features=4, **options)

    def forward(self, x):
        y = torch.tanh(self.first(x))
        return self.last(y + self.deq(y))


def residual(**options):
    return seeded(lambda: Residual(**options))


class Cell(nn.Module):
    """A recurrent cell of one's own."""

    def __init__(self):
        super().__init__()
        self.recurrent, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, z, x):
        return torch.tanh(0.5 * self.recurrent(z) + self.norm(x))


class Layered(nn.Module):
    """The equilibrium of that cell between layers of PyTorch."""

    def __init__(self, **options):
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 2)
        self.middle = shoal.Equilibrium(Cell(), **options)

    def forward(self, x):
        y = self.first(x)
        return self.last(self.middle(torch.zeros_like(y), y))


def layered(**options):
    return seeded(lambda: Layered(**options))


def data(n=7, outputs=2):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return x, torch.randn(n, outputs, generator=generator, dtype=torch.float64)


def jacobian(net, x):
    """A row for each sample and output, one backward pass each."""
    parameters = list(net.parameters())
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(o, parameters, retain_graph=True)])
        for one in x.split(1)
        for o in net(one).flatten()
    ]
    return torch.stack(rows)
