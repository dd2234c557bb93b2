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


@pytest.mark.parametrize("modes", [*product(MODES, MODES, MODES)], ids=" of ".join)
def test_third_derivatives(modes):
    def total(function):
        return lambda t: function(t * X, WEIGHT).pow(3).sum()

    one = torch.ones((), dtype=F64)
    found, exact = (derivative(total(f), modes, (0, 0, 0))(one) for f in (solved, unrolled))
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


def test_a_backward_pass_through_a_tangent():
    """By what autograd follows, outside of the transform: an input and a weight it captures."""
    x, weight = X.clone().requires_grad_(), WEIGHT.clone().requires_grad_()

    def gradients(function):
        tangent = jvp(lambda x: function(x, weight), (x,), (torch.ones_like(x),))[1]
        return torch.autograd.grad(tangent.square().sum(), [x, weight])

    for found, exact in zip(gradients(solved), gradients(unrolled), strict=True):
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


class Inside(torch.nn.Module):
    """A cell with an equilibrium in it, whose own cell has a weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 3).double() / 5)
        self.layer = shoal.Equilibrium(self.step, on_failure="raise")

    def step(self, y, z):
        return torch.tanh(y @ self.weight + z / 3)

    def forward(self, z, x):
        return self.layer(torch.zeros_like(z), z) / 2 + x


def test_an_equilibrium_inside_a_cell():
    torch.manual_seed(0)
    cell, x = Inside(), torch.randn(4, 3).double().requires_grad_()
    weight, zero = cell.weight, torch.zeros(4, 3).double()

    def passed(z, x, weight):  # the same, with the weight as an input at both levels
        inner = shoal.Equilibrium(lambda y, z, w: torch.tanh(y @ w + z / 3), on_failure="raise")
        return inner(torch.zeros_like(z), z, weight) / 2 + x

    unrolled = zero
    for _ in range(50):
        y = zero
        for _ in range(50):
            y = torch.tanh(y @ weight + unrolled / 3)
        unrolled = y / 2 + x
    layers = [shoal.Equilibrium(one, on_failure="raise") for one in (cell, passed)]
    found = []
    for z in (unrolled, layers[0](zero, x), layers[1](zero, x, weight)):
        first = torch.autograd.grad(z.pow(3).sum(), (x, weight), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), (x, weight))
        found.append((z, *first, *second))
    torch.testing.assert_close(found[1], found[0], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found[2], found[0], rtol=1e-8, atol=1e-9)
