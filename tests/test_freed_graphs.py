"""What autograd recorded is freed with the call that recorded it."""

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn

import shoal

# tanh keeps its output for its derivative: kept with its own history, it would keep itself
X = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)
WEIGHT = nn.Parameter(torch.full((3, 3), 0.1, dtype=torch.float64))
LAYER = shoal.Equilibrium(lambda z, x: torch.tanh(z @ WEIGHT + x))
MODULE = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def alive() -> int:
    gc.collect()
    return sum(type(one) is torch.Tensor for one in gc.get_objects())


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.autograd.grad(LAYER(torch.zeros_like(X), X).sum(), WEIGHT),
        lambda: shoal.empirical_kernel(MODULE, X),
        lambda: shoal.diagnose(LAYER, torch.zeros_like(X), X, starts=1, steps=20),
    ],
    ids=["training step", "empirical kernel", "diagnosis"],
)
def test_calls_leave_nothing_behind(call: Callable[[], object]) -> None:
    for _ in range(2):
        call()
    before = alive()
    for _ in range(5):
        call()
    assert alive() <= before
