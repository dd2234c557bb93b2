"""Duals at many points against the quadrature of single ones."""

import pytest
import torch

from shoal.activations import Activation, Softplus, Tanh
from shoal.gaussian import dual, dual_derivative
from shoal.gaussian.mixed import mixed_dual


def triples(count, low, high, seed=0):
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(3, count, dtype=torch.float64, generator=generator)
    a, b = low * (high / low) ** unit[0], low * (high / low) ** unit[1]
    return a, b, (2 * unit[2] - 1) * (a * b).sqrt()


def test_many_triples_take_the_table_and_are_symmetric():
    a, b, c = triples(6000, 0.5, 2.0, seed=1)
    assert torch.equal(dual(Tanh(), a, b, c), dual(Tanh(), b, a, c))
    few = slice(100, 110)
    assert (dual(Tanh(), a, b, c)[few] - dual(Tanh(), a[few], b[few], c[few])).abs().max() <= 1e-12


@pytest.mark.thorough
def test_variances_beyond_the_table_are_integrated():
    a, b, c = triples(5000, 0.5, 2.0, seed=2)
    a[:3], c[:3] = torch.tensor([0.0, 1e-9, 2e4]), 0.0
    result = dual_derivative(Softplus(), a, b, c)
    alone = dual_derivative(Softplus(), a[:3], b[:3], c[:3])
    torch.testing.assert_close(result[:3], alone, rtol=1e-13, atol=0.0)


@pytest.mark.thorough
def test_variances_of_many_sizes_in_one_call():
    a, b, c = triples(6000, 1e-3, 50.0, seed=4)
    result = dual(Softplus(), a, b, c)
    few = slice(0, 40)
    exact = mixed_dual(Softplus(), 0, 0, a[few], b[few], c[few])
    assert ((result[few] - exact).abs() <= 1e-12 * exact.abs()).all()  # it is positive


class Clipped(Activation):
    """Kinks away from zero, known by search only."""

    def function(self, x):
        return x.clamp(-1.0, 1.5)


@pytest.mark.thorough("Clipped", "1-Tanh")
@pytest.mark.parametrize("phi", [Tanh(), Softplus(), Clipped()], ids=repr)
@pytest.mark.parametrize("order", [0, 1])
def test_few_variances_one_of_them_large_and_one_zero(phi, order):
    values = torch.tensor([0.0, 0.3, 0.5, 0.9, 1.0, 1.2, 8e3], dtype=torch.float64)
    a, b = (t.flatten().repeat_interleave(9) for t in torch.meshgrid(values, values, indexing="ij"))
    angle = torch.linspace(0.03, 3.1, 9, dtype=torch.float64).repeat(len(values) ** 2)
    c = (a * b).sqrt() * angle.cos()
    few = slice(1, None, 17)
    found = (dual_derivative if order else dual)(phi, a, b, c)[few]
    a, b, c = (t[few] for t in (a, b, c))
    exact = mixed_dual(phi, order, order, a, b, c)
    squares = [mixed_dual(phi, order, order, t, t, t).sqrt() for t in (a, b)]
    assert ((found - exact).abs() <= 1e-12 * squares[0] * squares[1] + 1e-300).all()


@pytest.mark.thorough
def test_gradients_at_many_points():
    a, b, c = (t.requires_grad_() for t in triples(5000, 0.5, 2.0, seed=3))
    many = torch.autograd.grad(dual(Tanh(), a, b, c).sum(), (a, b, c))
    few = [t.detach()[:16].requires_grad_() for t in (a, b, c)]
    alone = torch.autograd.grad(dual(Tanh(), *few).sum(), few)
    for left, right in zip(many, alone, strict=True):
        assert (left[:16] - right).abs().max() <= 1e-11
