"""Moments and Hermite coefficients as series on octaves, and duals at fixed variances."""

import math

import numpy as np
import pytest
import torch

import shoal
from shoal.gaussian import mehler, smoothing
from shoal.gaussian.fixed_variances import FixedVariances
from shoal.gaussian.moments import mean_square


class Step(shoal.Activation):
    """An error function whose closed form nobody knows."""

    def function(self, x):
        return torch.erf(x / math.sqrt(2))


class Wave(shoal.Activation):
    """Neither even nor odd, with duals that cancel."""

    def function(self, x):
        return torch.sin(x + 1)


def arcsine(a, b, c):
    """Williams 1998: the dual of erf(x/√2), and its derivative in c."""
    root = torch.sqrt((1 + a) * (1 + b))
    return 2 / math.pi * torch.asin(c / root), 2 / math.pi / torch.sqrt(root**2 - c**2)


def wave(a, b, c):
    """cos(c) with weights, from products of sines."""
    decay = torch.exp(-(a + b) / 2) / 2
    return (
        decay * (torch.exp(c) - math.cos(2) * torch.exp(-c)),
        decay * (torch.exp(c) + math.cos(2) * torch.exp(-c)),
    )


@pytest.mark.parametrize("variance", [1e-3, 0.2, 0.7, 1.0, 2.0, 3.3, 40.0])
def test_mean_squares(variance):
    """Against the trapezoidal rule, which is exact for analytic functions that decay."""
    xi = np.linspace(-12, 12, 12001)
    weight = np.exp(-(xi**2) / 2) / math.sqrt(2 * math.pi) * (xi[1] - xi[0])
    t = np.tanh(math.sqrt(variance) * xi)
    exact = (t**2) @ weight, ((1 - t**2) * (1 - 3 * t**2)) @ weight
    found = mean_square(shoal.Tanh(), torch.tensor([variance], dtype=torch.float64))
    assert [float(value) for value in found] == pytest.approx(exact, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(("phi", "exact"), [(Step(), arcsine), (Wave(), wave)])
def test_duals_at_fixed_variances(phi, exact):
    """Polynomials of three lengths against closed forms, up to a correlation of one."""
    variances = torch.tensor([1e-4, 0.3, 1.0, 2.7, 9.0], dtype=torch.float64)
    places = torch.combinations(torch.arange(5), 2, with_replacement=True).T[..., None]
    cosine = torch.tensor([-1.0, -0.999, -0.5, 0.0, 0.3, 0.9, 0.99999, 1.0], dtype=torch.float64)
    a, b = variances[places]
    c = cosine * a.sqrt() * b.sqrt()
    duals = FixedVariances(phi, variances, places)
    size = [exact(t, t, t) for t in (a, b)]
    for shift in (0.0, 0.01):  # as a solver moves on
        moved = (1 - shift) * c
        value, slope = duals(moved)
        for i, found in enumerate((value, slope())):
            root = (size[0][i] * size[1][i]).abs().sqrt()
            assert float(((found - exact(a, b, moved)[i]) / root).abs().max()) < 3e-13


def test_other_variances_integrate_nothing_again(monkeypatch):
    """What an activation is at some variances serves all networks made of it."""
    x = torch.randn(100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = x / x.norm(dim=1, keepdim=True) * torch.linspace(1.0, 1.9, 100).double()[:, None]
    shoal.clear_caches()
    shoal.kernel(shoal.DEQ(shoal.Tanh(), 0.2, 1.0), x)

    def refuse(*_, **__):
        raise AssertionError("integrals are computed again")

    monkeypatch.setattr(mehler, "expansion", refuse)
    monkeypatch.setattr(smoothing, "_integral", refuse)
    deq = shoal.DEQ(shoal.Tanh(), 0.21, 0.97)
    found = shoal.kernel(deq, x)
    i, j = torch.tensor([3, 50, 99]), torch.tensor([7, 2, 98])
    square, product = (x**2).sum(1), (x[i] * x[j]).sum(1)
    exact = shoal.kernel_function(deq)(square[i], square[j], product)
    for matrix, values in zip(found, exact, strict=True):
        torch.testing.assert_close(matrix[i, j], values, rtol=1e-9, atol=0)
