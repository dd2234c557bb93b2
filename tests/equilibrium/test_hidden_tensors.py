"""Tensors that a function uses without being given them are differentiated by like any others."""

import pytest
import torch

from shoal.equilibrium import OneStep, Unrolled, fixed_point

# PyTorch's forward mode still loads parts that it calls deprecated itself
forward_mode = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")

Z0 = torch.ones(2, 1, dtype=torch.float64)
A = torch.tensor(0.5, dtype=torch.float64)


def hidden(a, **options):
    return fixed_point(lambda z: torch.cos(a * z), Z0, **options).sum()


def given(a, **options):
    return fixed_point(lambda z, a: torch.cos(a * z), Z0, parameters=(a,), **options).sum()


def within(a):
    """As a constant of an inner derivative, which an outer one follows."""
    one = torch.ones_like(A)
    return torch.func.grad(
        lambda b: fixed_point(lambda z, b: torch.cos(a * b * z), Z0, parameters=(b,)).sum()
    )(one)


def hidden_closed_form(a):
    """The sum of two equal fixed points of cos(a z), by Newton's method in plain numbers."""
    z = torch.ones((), dtype=torch.float64)
    for _ in range(60):
        z = z - (z - torch.cos(a * z)) / (1 + a * torch.sin(a * z))
    return 2 * z


def within_closed_form(a):
    """Its derivative by b at b = 1, of cos(a b z): -2 a z sin(a z)/(1 + a sin(a z))."""
    z = hidden_closed_form(a) / 2
    return -2 * a * z * torch.sin(a * z) / (1 + a * torch.sin(a * z))


def tangent(function):
    return lambda a: torch.func.jvp(function, (a,), (torch.ones_like(a),))


def dual(function):
    def call(a):
        with torch.autograd.forward_ad.dual_level():
            result = function(torch.autograd.forward_ad.make_dual(a, torch.ones_like(a)))
            return torch.autograd.forward_ad.unpack_dual(result).tangent

    return call


TRANSFORMS = {
    "grad": torch.func.grad,
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "hessian": torch.func.hessian,
    "jvp": tangent,
    "dual": dual,
    "twice": lambda f: torch.func.grad(torch.func.grad(f)),
    "forward twice": lambda f: torch.func.jacfwd(torch.func.jacfwd(f)),
    "reverse of forward": lambda f: torch.func.jacrev(torch.func.jacfwd(f)),
    "tangent of a tangent": lambda f: tangent(tangent(f)),
}


@forward_mode
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
@pytest.mark.parametrize("function", [hidden, within])
def test_transforms_see_them(transform, function):
    expected = {hidden: hidden_closed_form, within: within_closed_form}[function]
    found, exact = transform(function)(A), transform(expected)(A)
    torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-10)


def test_vmap_sees_them():
    several = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    found = torch.func.vmap(hidden)(several)
    exact = torch.stack([hidden_closed_form(a) for a in several])
    torch.testing.assert_close(found, exact)
    # and the derivative may come after it
    (left,) = torch.autograd.grad(found.square().sum(), several)
    (right,) = torch.autograd.grad(exact.square().sum(), several)
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


def test_what_is_given_is_not_hidden():
    expected = torch.autograd.functional.jacobian(given, A)
    torch.testing.assert_close(torch.func.grad(given)(A), expected)
    # constants may be hidden, also ones that are made within a transform
    found = torch.func.grad(
        lambda a: fixed_point(
            lambda z, b: torch.cos(b * z * torch.ones_like(a)), Z0, parameters=(a,)
        ).sum()
    )(A)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("gradient", [Unrolled(), OneStep()], ids=repr)
@forward_mode
def test_the_other_methods_see_them(gradient):
    for function in (hidden, given):
        leaf = A.clone().requires_grad_()
        (expected,) = torch.autograd.grad(given(leaf, gradient=gradient), leaf)
        found = torch.func.grad(lambda a, f=function: f(a, gradient=gradient))(A)
        torch.testing.assert_close(found, expected)
        _, found = tangent(lambda a, f=function: f(a, gradient=gradient))(A)
        torch.testing.assert_close(found, expected)
