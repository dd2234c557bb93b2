"""Tensors that a function uses without being given them are refused, whoever follows them."""

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


def tangent(function):
    return lambda a: torch.func.jvp(function, (a,), (torch.ones_like(a),))


def dual(function):
    def call(a):
        with torch.autograd.forward_ad.dual_level():
            return function(torch.autograd.forward_ad.make_dual(a, torch.ones_like(a)))

    return call


TRANSFORMS = {
    "grad": torch.func.grad,
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "hessian": torch.func.hessian,
    "jvp": tangent,
    "dual": dual,
    "twice": lambda f: torch.func.grad(torch.func.grad(f)),
}


@forward_mode
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
@pytest.mark.parametrize("function", [hidden, within])
def test_transforms_refuse_them(transform, function):
    with pytest.raises(TypeError, match="is not among its arguments"):
        transform(function)(A)


def test_vmap_refuses_them():
    with pytest.raises(TypeError, match="is not among its arguments"):
        torch.func.vmap(hidden)(A.expand(3))


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
