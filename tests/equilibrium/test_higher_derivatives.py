"""Derivatives of derivatives of equilibria, in all orders of modes, against unrolled iterations."""

from itertools import product

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, jvp, vmap

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


def test_products_with_hessians_for_many_directions():
    directions = random(4, 1, 3, seed=2)

    def products(function):
        def total(x):
            return function(x, WEIGHT).pow(3).sum()

        def slope(x, v):
            return jvp(total, (x,), (v,))[1]

        return [
            vmap(lambda v: jvp(grad(total), (X,), (v,))[1])(directions),
            vmap(lambda v: grad(slope)(X, v))(directions),
            vmap(lambda v: jvp(lambda x: slope(x, v), (X,), (v,))[1])(directions),
        ]

    for found, exact in zip(products(solved), products(unrolled), strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("architecture", [shoal.DEQ("tanh", 0.2, 0.8), shoal.ImplicitNetwork(0.2)])
def test_those_of_networks(architecture):
    net = shoal.build(architecture, in_features=3, width=4, dtype=F64)
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def total(x, weight):
        given = {**parameters, "recurrent": weight}
        return torch.func.functional_call(net, given, (x,)).pow(3).sum()

    weight = parameters["recurrent"]
    truth = jacrev(jacrev(total, argnums=1), argnums=0)(X, weight)
    for modes in product(MODES, MODES):
        found = derivative(total, modes, (1, 0))(X, weight)
        torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-10)
