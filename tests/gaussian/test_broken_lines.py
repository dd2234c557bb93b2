"""Duals of broken lines, against quadrature and their own laws."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.activations import (
    Activation,
    Affine,
    HardTanh,
    LeakyReLU,
    ReLU,
)
from shoal.gaussian import dual, dual_derivative
from shoal.gaussian.mixed import mixed_dual


@dataclass(frozen=True)
class Hinges(Activation):
    """value + slope x + a hinge at each kink, which opens outwards."""

    value: float
    slope: float
    hinges: tuple[tuple[float, float], ...]

    def function(self, x):
        result = self.value + self.slope * x
        for place, jump in self.hinges:
            result = result + jump * torch.relu(x - place if place >= 0 else place - x)
        return result

    @property
    def kink_locations(self):
        return tuple(sorted(place for place, _ in self.hinges))


OWN = {
    "ReLU6": Hinges(0.0, 0.0, ((0.0, 1.0), (6.0, -1.0))),
    "clipped": Hinges(0.0, 1.0, ((-0.5, 1.0), (2.0, -1.0))),
    "hard sigmoid": Hinges(0.5, 1 / 6, ((-3.0, 1 / 6), (3.0, -1 / 6))),
    "abs": Hinges(0.0, -1.0, ((0.0, 2.0),)),
    "five kinks": Hinges(
        0.3, 0.2, ((-2.0, 0.4), (-0.3, -0.7), (0.0, 0.5), (0.9, 1.1), (1.4, -2.0))
    ),
}


def triples(low, high, seed=0, count=400):
    """Variances between two bounds and angles of all sizes, up to full correlation."""
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(5, count, dtype=torch.float64, generator=generator)
    a, b = (low * (high / low) ** unit[i] for i in (0, 1))
    b = torch.where(unit[2] < 0.3, a, torch.where(unit[2] < 0.5, a * (1 + 1e-6 * unit[1]), b))
    angle = torch.where(unit[3] < 0.6, 10 ** (-9 * unit[4]), math.pi * unit[4])
    sign = torch.where(unit[3] < 0.2, -1.0, 1.0)
    c = sign * angle.cos() * a.sqrt() * b.sqrt()
    c[:3], b[:3] = torch.stack([a[0], -a[1], 0 * a[2]]), a[:3]
    return a, b, c


def errors(phi, a, b, c):
    """Relative differences from quadrature, of the dual and that of the derivative."""
    for order, function in enumerate((dual, dual_derivative)):
        scales = [mixed_dual(phi, order, order, t, t, t) for t in (a, b)]
        exact = mixed_dual(phi, order, order, a, b, c)
        yield (function(phi, a, b, c) - exact).abs() / (scales[0] * scales[1]).sqrt()


@pytest.mark.thorough("0.01-1000000000.0", "100.0-100000.0")
@pytest.mark.parametrize(("low", "high"), [(1e-3, 1e2), (1e2, 1e5), (1e-2, 1e9), (1e-9, 1e-2)])
def test_hard_tanh_against_quadrature(low, high):
    a, b, c = triples(low, high, count=80)
    for phi in (HardTanh(), HardTanh(0.3)):
        for error in errors(phi, a, b, c):
            # what both slopes at the ends cancel, if variances differ by a factor of a million
            assert error.max() <= 2e-13


@pytest.mark.thorough
@pytest.mark.parametrize("name", OWN)
def test_kinks_anywhere_against_quadrature(name):
    phi = OWN[name]
    a, b, c = triples(0.05, 1e3, count=100)
    for error in errors(phi, a, b, c):
        assert error.max() <= 1e-13


def test_affine_hard_tanh():
    phi = Affine(HardTanh(0.7), scale=-2.0, shift=0.3)
    a, b, c = triples(1e-2, 1e2, count=200)
    scale = (mixed_dual(phi, 0, 0, a, a, a) * mixed_dual(phi, 0, 0, b, b, b)).sqrt()
    error = (dual(phi, a, b, c) - mixed_dual(phi, 0, 0, a, b, c)).abs()
    assert (error <= 1e-14 * scale).all()
    inner = dual_derivative(HardTanh(0.7), a, b, c)
    torch.testing.assert_close(dual_derivative(phi, a, b, c), 4 * inner, rtol=1e-14, atol=0.0)


def test_one_kink_at_zero_is_the_arc_cosine_form():
    a, b, c = triples(1e-6, 1e6)
    for slope in (0.1, -1.0):
        hinge = Hinges(0.0, slope, ((0.0, 1 - slope),))
        difference = dual(hinge, a, b, c) - dual(LeakyReLU(slope), a, b, c)
        assert (difference.abs() <= 1e-14 * (a * b).sqrt()).all()
        difference = dual_derivative(hinge, a, b, c) - dual_derivative(LeakyReLU(slope), a, b, c)
        assert difference.abs().max() <= 1e-14


def test_variances_that_reach_no_kink_see_a_line():
    a, b, c = triples(1e-9, 6e-3)
    torch.testing.assert_close(dual(HardTanh(), a, b, c), c, rtol=4e-15, atol=0.0)
    assert (dual_derivative(HardTanh(), a, b, c) - 1).abs().max() <= 1e-14
    difference = dual(OWN["ReLU6"], a, b, c) - dual(ReLU(), a, b, c)
    assert (difference.abs() <= 1e-14 * (a * b).sqrt()).all()
    tiny, zero = torch.tensor([1e-160, 0.0]).double(), torch.zeros(2).double()
    assert torch.equal(dual(HardTanh(), tiny, 1.0, zero), zero)


def test_huge_variances_see_a_sign():
    """The dual of the sign is (2/π) arcsin ρ; and four times the density is left of the slope."""
    rho = torch.tensor([-0.9, 0.0, 0.5], dtype=torch.float64)
    for variance in (1e12, 1e40, 1e200):
        found = dual(HardTanh(), variance, variance, variance * rho)
        assert (found - 2 / math.pi * rho.asin()).abs().max() <= 1e-14 + 2 / variance
        slope = dual_derivative(HardTanh(), variance, variance, variance * rho) * variance
        expected = 2 / math.pi / (1 - rho**2).sqrt()
        torch.testing.assert_close(slope, expected, rtol=1e-11, atol=0.0)


variances = st.floats(-20.0, 20.0).map(math.exp)


@pytest.mark.thorough
@given(variances, variances, st.floats(-1.0, 1.0), st.sampled_from([0.3, 1.0, 7.0]))
def test_symmetry_and_cauchy_schwarz(a, b, rho, bound):
    phi = HardTanh(bound)
    a, b = (torch.tensor([t], dtype=torch.float64) for t in (a, b))
    c = rho * a.sqrt() * b.sqrt()
    for function in (dual, dual_derivative):
        value = function(phi, a, b, c)
        assert torch.equal(value, function(phi, b, a, c))
        limit = (function(phi, a, a, a) * function(phi, b, b, b)).sqrt()
        assert value.abs() <= limit * (1 + 1e-13)


def test_symmetry_of_many():
    a, b, c = triples(1e-3, 1e4, count=5000)
    for phi in (HardTanh(), Affine(HardTanh(), 2.0, 1.0)):
        assert torch.equal(dual(phi, a, b, c), dual(phi, b, a, c))
        assert torch.equal(dual_derivative(phi, a, b, c), dual_derivative(phi, b, a, c))


def test_parity_of_many():
    a, b, c = triples(1e-3, 1e3, count=5000)
    for function, sign in ((dual, -1), (dual_derivative, 1)):
        mirrored = sign * function(HardTanh(), a, b, -c)
        torch.testing.assert_close(mirrored, function(HardTanh(), a, b, c), rtol=1e-13, atol=1e-14)


def test_gradients_at_many_points():
    a, b, c = (t.requires_grad_() for t in triples(0.1, 10.0, count=64))
    (slope,) = torch.autograd.grad(dual(HardTanh(), a, b, c).sum(), c)
    expected = dual_derivative(HardTanh(), a, b, c).detach()
    torch.testing.assert_close(slope, expected, rtol=1e-14, atol=0.0)
