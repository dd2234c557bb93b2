"""Derivatives of derivatives of equilibria, in all orders of modes, against unrolled iterations."""

from itertools import product

import pytest
import torch
from torch.func import jacfwd, jacrev

import shoal

# PyTorch's forward mode still loads parts that it calls deprecated itself
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")

F64 = torch.float64
MODES = {"forward": jacfwd, "reverse": jacrev}


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


WEIGHT, X = 0.4 * random(3, 3), random(1, 3, seed=1)


def cell(z, x, weight):
    return torch.tanh(z @ weight.T + x)


def solved(x, weight, **options):
    return shoal.Equilibrium(cell, **options)(torch.zeros_like(x), x, weight)


def unrolled(x, weight):
    z = torch.zeros_like(x)
    for _ in range(60):
        z = cell(z, x, weight)
    return z


def derivative(function, modes, arguments):
    """Of modes from the outermost to the innermost, by one argument each."""
    for mode, argument in zip(reversed(modes), arguments, strict=True):
        function = MODES[mode](function, argnums=argument)
    return function


@pytest.mark.thorough
@pytest.mark.parametrize("modes", [*product(MODES, MODES)], ids=" of ".join)
@pytest.mark.parametrize("arguments", [(0, 0), (1, 0), (0, 1), (1, 1)], ids=str)
def test_second_derivatives(modes, arguments):
    found = derivative(solved, modes, arguments)(X, WEIGHT)
    exact = derivative(unrolled, modes, arguments)(X, WEIGHT)
    torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("gradient", [shoal.Neumann(3), shoal.OneStep(), shoal.Unrolled()])
def test_those_of_other_methods_are_one_in_all_modes(gradient):
    def total(x):
        return solved(x, WEIGHT, gradient=gradient).square().sum()

    truth = jacrev(jacrev(total))(X)
    for modes in product(MODES, MODES):
        found = derivative(total, modes, (0, 0))(X)
        torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("gradient", [shoal.Implicit(), shoal.Neumann(80)], ids=repr)
def test_a_vjp_that_is_called_after_its_transform(gradient):
    upstream = random(1, 3, seed=2)
    _, pull = torch.func.vjp(lambda x, w: solved(x, w, gradient=gradient), X, WEIGHT)
    _, expected = torch.func.vjp(unrolled, X, WEIGHT)
    torch.testing.assert_close(pull(upstream), expected(upstream), rtol=1e-9, atol=1e-11)


def test_statuses_after_vmap():
    layer, x = shoal.Equilibrium(cell), random(5, 3, seed=3)
    torch.vmap(lambda x: layer(torch.zeros_like(x[None]), x[None], WEIGHT))(x)
    assert layer.solution.status.tolist() == [0] * 5
    residual = cell(layer.solution.value, x, WEIGHT) - layer.solution.value
    torch.testing.assert_close(residual.norm(dim=1), layer.solution.residual, rtol=0, atol=1e-14)
