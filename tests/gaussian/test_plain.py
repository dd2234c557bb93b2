"""The calculus against its definition on dense grids."""

import math

import pytest
import torch

from shoal import DEQ, design
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


@pytest.mark.parametrize("cosine", [-0.99, -0.5, 0.3, 0.96])
def test_duals_of_many_pieces(cosine):
    """Power series in the cosine serve the activations of designs at one variance."""
    phi = design(DEQ("erf", 0.2, 0.8), method="sphere").architecture.activations[0]
    assert abs(float(dual(phi, 1.0, 1.0, cosine) - plain.dual(phi, 1.0, 1.0, cosine))) <= 1e-11
    slopes = dual_derivative(phi, 1.0, 1.0, cosine) - plain.dual(phi, 1.0, 1.0, cosine, order=1)
    assert abs(float(slopes)) <= 1e-11
