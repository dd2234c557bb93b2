"""Nodes, transforms, basis, derivative and largest value of series of one variable."""

import math

import numpy as np
import pytest
import torch
from numpy.polynomial import chebyshev as reference
from torch import Tensor

from shoal.numerics import (
    chebyshev_basis,
    chebyshev_nodes,
    coefficients_from_values,
    differentiate,
    supremum,
    values_from_coefficients,
)

EPSILON = torch.finfo(torch.float64).eps


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("degree", [1, 2, 7, 64, 1000])
def test_nodes_are_symmetric_ascending_extrema(degree: int) -> None:
    nodes = chebyshev_nodes(degree)
    assert torch.equal(nodes, -nodes.flip(0))
    assert nodes[0] == -1
    assert nodes[-1] == 1
    assert bool((nodes.diff() > 0).all())
    # |T_n| = 1 there; an error of half a unit in x is quadratic in effect but for the ends.
    extrema = torch.cos(degree * torch.acos(nodes)).abs()
    assert float((extrema - 1).abs().max()) <= degree * EPSILON


def test_nodes_of_degree_zero_and_on_an_interval() -> None:
    assert chebyshev_nodes(0, 2.0, 4.0).tolist() == [3.0]
    assert chebyshev_nodes(4, 0.1, 0.7)[[0, -1]].tolist() == [0.1, 0.7]


@pytest.mark.parametrize("degree", [4, 5, 32])
def test_nodes_are_nested(degree: int) -> None:
    assert torch.equal(
        chebyshev_nodes(2 * degree, 0.1, 3.0)[::2], chebyshev_nodes(degree, 0.1, 3.0)
    )


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 2, 3, 9, 30])
def test_transforms_invert_each_other(dim: int, size: int) -> None:
    shape = [2, 3, 4]
    shape[dim] = size
    values = random(*shape)
    back = values_from_coefficients(coefficients_from_values(values, dim), dim)
    # Two Fourier transforms: some units in the last place of values of size about 4.
    torch.testing.assert_close(back, values, rtol=0, atol=32 * EPSILON)


@pytest.mark.parametrize("degree", [0, 1, 6, 33])
def test_values_match_numpy(degree: int) -> None:
    coefficients = random(degree + 1)
    nodes = chebyshev_nodes(2 * degree)
    expected = reference.chebval(nodes.numpy(), coefficients.numpy())
    values = values_from_coefficients(coefficients, degree=2 * degree)
    # Both sum degree + 1 terms of size about one.
    np.testing.assert_allclose(values, expected, rtol=0, atol=32 * (degree + 1) * EPSILON)


def test_values_at_too_few_nodes() -> None:
    with pytest.raises(ValueError, match="degree must be >= 4, got 3"):
        values_from_coefficients(random(5), degree=3)


@pytest.mark.parametrize("degree", [0, 1, 2, 40])
def test_basis_is_the_cosines(degree: int) -> None:
    angle = torch.linspace(0, math.pi, 101, dtype=torch.float64)
    t = torch.cos(angle)
    # T_k near an end moves by k² per unit of t, which carries half a unit of rounding.
    expected = torch.cos(torch.arange(degree + 1)[:, None] * angle)
    error = (chebyshev_basis(t, degree) - expected).abs().max()
    assert float(error) <= max(degree, 1) ** 2 * EPSILON


@pytest.mark.parametrize("degree", [0, 1, 2, 17])
@pytest.mark.parametrize("dim", [0, 1])
def test_derivative_matches_numpy(degree: int, dim: int) -> None:
    coefficients = random(degree + 1, 3)
    expected = torch.from_numpy(reference.chebder(coefficients.numpy(), axis=0))
    if dim == 1:
        coefficients, expected = coefficients.T, expected.T
    # Sums of `degree` terms of size up to 2 degree.
    tolerance = 4 * max(degree, 1) ** 2 * EPSILON
    torch.testing.assert_close(differentiate(coefficients, dim), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", [(1,), (2,), (24,), (6, 9), (1, 4, 7)])
def test_supremum_is_a_close_upper_bound(shape: tuple[int, ...]) -> None:
    coefficients = random(*shape)
    axes = [torch.linspace(-1, 1, 201, dtype=torch.float64)] * len(shape)
    values = coefficients
    for axis, t in enumerate(axes):
        basis = chebyshev_basis(t, shape[axis] - 1)
        values = torch.tensordot(values, basis, dims=([0], [0]))
    largest = float(values.abs().max())
    assert largest <= supremum(coefficients) * (1 + 64 * EPSILON)
    # sqrt(2) per axis by the theorem, one percent for the scan between whose points it may peak.
    assert supremum(coefficients) <= 1.01 * math.sqrt(2) ** len(shape) * largest
