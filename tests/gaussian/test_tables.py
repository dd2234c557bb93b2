"""Duals at many points: the table against the quadrature that it was not made with."""

import pytest
import torch

from shoal.activations import ELU, Activation, HardTanh, Softplus, Swish, Tanh
from shoal.gaussian import dual, dual_derivative
from shoal.gaussian.domain import covariance
from shoal.gaussian.mixed import mixed_dual
from shoal.gaussian.tables import Tables, _table, tabulable


def triples(count, low, high, seed=0):
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(3, count, dtype=torch.float64, generator=generator)
    a, b = low * (high / low) ** unit[0], low * (high / low) ** unit[1]
    return a, b, (2 * unit[2] - 1) * (a * b).sqrt()


@pytest.mark.thorough("1-", "0-ELU", "0-Softplus", "0-Tanh")
@pytest.mark.parametrize("phi", [Tanh(), Swish(), Softplus(), ELU(0.5)], ids=repr)
@pytest.mark.parametrize("order", [0, 1])
def test_tables_agree_with_quadrature(phi, order):
    a, b, c = triples(5000, 0.3, 3.0)
    c[:3] = (a * b).sqrt()[:3] * torch.tensor([1.0, -1.0, 1 - 1e-12])
    tables = Tables.of(phi, order, order, covariance(a, b, c), 1e-12)
    assert tables.tables
    few = slice(0, 48)
    exact = mixed_dual(phi, order, order, a[few], b[few], c[few])
    scale = (mixed_dual(phi, order, order, *[t[few] for t in (a, a, a)])).sqrt() * (
        mixed_dual(phi, order, order, *[t[few] for t in (b, b, b)])
    ).sqrt()
    assert ((tables(a, b, c)[few] - exact).abs() <= 1e-12 * scale).all()


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
def test_deltas_have_no_table_and_kinks_away_from_zero_none_near_equal_inputs():
    assert all(tabulable(Tanh(), 2, part) for part in range(3))
    assert all(tabulable(ELU(0.5), 1, part) for part in range(3))
    assert not any(tabulable(ELU(0.5), 2, part) for part in range(3))
    assert [tabulable(HardTanh(), 0, part) for part in range(3)] == [False, True, False]
    a, b, c = triples(5000, 0.5, 2.0)
    tables = Tables.of(HardTanh(), 0, 0, covariance(a, b, c), 1e-12)
    assert tables.tables
    assert (tables(a, b, c) - dual(HardTanh(), a, b, c)).abs().max() <= 1e-12


def test_an_input_and_itself_need_no_table():
    a = torch.linspace(0.5, 2.0, 300, dtype=torch.float64)
    assert Tables.of(Tanh(), 0, 0, covariance(a, a, a), 1e-12) is None


def test_few_points_need_no_table():
    assert Tables.of(Tanh(), 0, 0, covariance(*triples(100, 0.5, 2.0)), 1e-12) is None


@pytest.mark.thorough
def test_unequal_orders():
    a, b, c = triples(3000, 0.5, 2.0, seed=5)
    few = slice(0, 16)
    for j, k in ((2, 0), (0, 2)):
        found = Tables.of(Tanh(), j, k, covariance(a, b, c), 1e-12)(a, b, c)
        exact = mixed_dual(Tanh(), j, k, a[few], b[few], c[few])
        assert (found[few] - exact).abs().max() <= 1e-12


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


class Ripples(Activation):
    """So fast that no table resolves it."""

    def function(self, x):
        return torch.sin(50 * x)

    @property
    def kink_locations(self):
        return ()


def test_no_table_where_it_cannot_be_accurate():
    assert _table(Ripples(), 0, 0, (-1.0, 1.0), (-1.0, 1.0), (0.0, 0.25), 1e-12) is None


@pytest.mark.thorough
def test_gradients_at_many_points():
    a, b, c = (t.requires_grad_() for t in triples(5000, 0.5, 2.0, seed=3))
    many = torch.autograd.grad(dual(Tanh(), a, b, c).sum(), (a, b, c))
    few = [t.detach()[:16].requires_grad_() for t in (a, b, c)]
    alone = torch.autograd.grad(dual(Tanh(), *few).sum(), few)
    for left, right in zip(many, alone, strict=True):
        assert (left[:16] - right).abs().max() <= 1e-11
