"""Inputs and a trained model that diagnoses are made of."""

import torch
from torch import Tensor, nn

import shoal

DTYPE = torch.float64


def inputs(count: int = 6, size: int = 4) -> Tensor:
    return torch.randn(count, size, dtype=DTYPE, generator=torch.Generator().manual_seed(0))


class Classifier(nn.Module):
    """An encoder, an equilibrium and a readout, as one trains them."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.recurrent = nn.Linear(4, width), nn.Linear(width, width)
        self.layer = shoal.Equilibrium(self.step)
        self.readout = nn.Linear(width, 3)

    def step(self, z: Tensor, u: Tensor) -> Tensor:
        return torch.tanh(self.recurrent(z) / 2 + u)

    def forward(self, x: Tensor) -> Tensor:
        u = self.encoder(x)
        return self.readout(self.layer(torch.zeros_like(u), u))
