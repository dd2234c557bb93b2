"""What autograd recorded is freed with the call that recorded it."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import shoal

# tanh keeps its output for its derivative: kept with its own history, it would keep itself
X = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)
WEIGHT = nn.Parameter(torch.full((3, 3), 0.1, dtype=torch.float64))
MODULE = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def cell(z: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(z @ WEIGHT + x)


LAYER = shoal.Equilibrium(cell)


@contextmanager
def only_new_objects() -> Iterator[None]:
    """Where the garbage collector does not see what was there before."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def alive() -> int:
    gc.collect()
    return sum(type(one) is Tensor for one in gc.get_objects())


@pytest.mark.thorough("diagnosis")
@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.autograd.grad(LAYER(torch.zeros_like(X), X).sum(), WEIGHT),
        lambda: shoal.fixed_point(lambda z: cell(z, X), torch.zeros_like(X)).sum().backward(),
        lambda: shoal.empirical_kernel(MODULE, X),
        lambda: shoal.diagnose(shoal.Loop(LAYER.cell, torch.zeros_like(X), X, steps=2)),
    ],
    ids=["training step", "fixed point", "empirical kernel", "diagnosis"],
)
def test_calls_leave_nothing_behind(call: Callable[[], object]) -> None:
    call()  # what is kept for good is made by the first
    with only_new_objects():
        call()
        before = alive()  # what a layer keeps of its last call
        for _ in range(3):
            call()
        assert alive() <= before
