"""The calculus against its definition on dense grids."""

import math

import pytest
import torch

from shoal.activations import ELU, GELU, HardTanh, Softplus, Tanh
from shoal.gaussian import dual, dual_derivative, hermite, moments, plain


@pytest.mark.parametrize("phi", [Tanh(), GELU(), ELU(), HardTanh(0.7)], ids=repr)
def test_moments_and_coefficients(phi):
    found, expected = moments(phi, 1.3), plain.moments(phi, 1.3)
    for name, value in vars(expected).items():
        # the grid misses kinks by the square of its step, slopes that jump by its step
        error = abs(float(getattr(found, name)) - float(value))
        assert error <= (1e-5 if name == "first_square" else 1e-9), name
    torch.testing.assert_close(hermite(phi, 1.3, 5), plain.hermite(phi, 1.3, 5), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("phi", "error"), [(Softplus(), 1e-13), (Tanh(), 1e-13), (ELU(), 1e-4)])
@pytest.mark.parametrize(("a", "b", "rho"), [(1.0, 2.3, 0.9), (0.4, 3.0, -0.6)])
def test_duals(phi, error, a, b, rho):
    c = rho * math.sqrt(a * b)
    assert abs(float(dual(phi, a, b, c) - plain.dual(phi, a, b, c))) <= error
    slopes = dual_derivative(phi, a, b, c) - plain.dual(phi, a, b, c, order=1)
    assert abs(float(slopes)) <= error
