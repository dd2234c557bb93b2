"""What people do to layers, and what must not go wrong in silence."""

import pytest
import torch
from torch import Tensor, nn

import shoal

F64 = torch.float64


class Cell(nn.Module):
    """A contraction with weights."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(5, 5, generator=generator, dtype=F64) / 5)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(z @ self.weight) / 2 + x


def inputs() -> Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=F64)


def unrolled(cell: nn.Module, x: Tensor, steps: int = 100) -> Tensor:
    z = torch.zeros_like(x)
    for _ in range(steps):
        z = cell(z, x)
    return z


def test_weights_changed_before_the_backward_pass_are_an_error() -> None:
    layer = shoal.Equilibrium(Cell())
    z = layer(torch.zeros(4, 5, dtype=F64), inputs())
    with torch.no_grad():
        layer.cell.weight.mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        z.sum().backward()
