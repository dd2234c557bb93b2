"""Series of one variable, and their fits: within the stated error, or refused with a reason."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st
from numpy.polynomial import chebyshev as reference
from torch import Tensor

from shoal.core.exceptions import AccuracyError
from shoal.numerics import (
    Chebyshev,
    chebyshev_basis,
    chebyshev_nodes,
    coefficients_from_values,
    differentiate,
    fit,
)
from shoal.numerics.chebyshev import supremum

EPSILON = torch.finfo(torch.float64).eps
UNIT = (-1.0, 1.0)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scattered(span: tuple[float, float], count: int = 50_000) -> Tensor:
    """Random points, and both ends."""
    x = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[:2] = torch.tensor([0.0, 1.0])
    return span[0] * (1 - x) + span[1] * x


def largest_error(series: Chebyshev, function: Callable[[Tensor], Tensor]) -> float:
    x = scattered(series.span)
    return float((series(x) - function(x)).abs().max())


@pytest.mark.parametrize("degree", [1, 2, 7, 64, 1000])
def test_nodes_are_symmetric_ascending_nested_extrema(degree: int) -> None:
    nodes = chebyshev_nodes(degree)
    assert torch.equal(nodes, -nodes.flip(0))
    assert nodes[0] == -1
    assert nodes[-1] == 1
    assert bool((nodes.diff() > 0).all())
    # |T_n| = 1 there; an error of half a unit in x is quadratic in effect but for the ends.
    extrema = torch.cos(degree * torch.acos(nodes)).abs()
    assert float((extrema - 1).abs().max()) <= degree * EPSILON
    finer = chebyshev_nodes(2 * degree, 0.1, 3.0)[::2]
    assert torch.equal(finer, chebyshev_nodes(degree, 0.1, 3.0))


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 2, 3, 9, 30])
def test_interpolants_have_the_values(dim: int, size: int) -> None:
    shape = [2, 3, 4]
    shape[dim] = size
    values = random(*shape)
    basis = chebyshev_basis(chebyshev_nodes(size - 1), size - 1)
    series = coefficients_from_values(values, dim)
    back = torch.tensordot(series, basis, dims=([dim], [0])).movedim(-1, dim)
    # Some units in the last place of values of size about 4, and of as many terms.
    torch.testing.assert_close(back, values, rtol=0, atol=32 * size * EPSILON)


@pytest.mark.parametrize("degree", [0, 1, 2, 40])
def test_basis_is_the_cosines(degree: int) -> None:
    angle = torch.linspace(0, math.pi, 101, dtype=torch.float64)
    # T_k near an end moves by k² per unit of t, which carries half a unit of rounding.
    expected = torch.cos(torch.arange(degree + 1)[:, None] * angle)
    error = (chebyshev_basis(torch.cos(angle), degree) - expected).abs().max()
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


@pytest.mark.parametrize("size", [1, 2, 24])
def test_supremum_is_a_close_upper_bound(size: int) -> None:
    coefficients = random(3, size)
    t = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    largest = float((coefficients @ chebyshev_basis(t, size - 1)).abs().max())
    assert largest <= supremum(coefficients) * (1 + 64 * EPSILON)
    assert supremum(coefficients) <= 1.01 * math.sqrt(2) * largest


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, float]]] = {
    "exp": (torch.exp, (-1.0, 2.0)),
    "runge": (lambda x: 1 / (1 + 25 * x**2), UNIT),
    "odd runge": (lambda x: x / (1 + 25 * x**2), UNIT),
    "even powers of T_4": (lambda x: torch.exp(8 * x**4 - 8 * x**2 + 1), UNIT),
    "fast cosine": (lambda x: torch.cos(60 * x), (0.0, 2.0)),
    "small ripple": (lambda x: x + 1e-4 * torch.sin(50 * x), UNIT),
    "ripple behind T_4": (lambda x: x**4 + 1e-4 * torch.sin(50 * x), UNIT),
    "far interval": (lambda x: torch.sin(x / 100), (1000.0, 1300.0)),
    "large values": (lambda x: 1e3 * torch.exp(-x), (0.0, 3.0)),
    "tanh": (lambda x: torch.tanh(3 * x), (-2.0, 1.0)),
}


@pytest.mark.parametrize("tolerance", [1e-3, 1e-7, 1e-10])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_stated_error_is_true_and_not_far_off(name: str, tolerance: float) -> None:
    function, span = FUNCTIONS[name]
    series = fit(function, span, tolerance=tolerance)
    found = largest_error(series, function)
    assert found <= series.error <= tolerance
    assert series.error <= 100 * found


@given(st.integers(1, 12), st.integers(0, 2**31), st.floats(-2, 2), st.floats(0.1, 1.1))
def test_a_polynomial_is_its_own_fit(size: int, seed: int, low: float, width: float) -> None:
    polynomial = Chebyshev((low, low + width), random(size, seed=seed))
    found = fit(polynomial, polynomial.span, tolerance=1e-9)
    x = scattered(polynomial.span, 200)
    assert float((found(x) - polynomial(x)).abs().max()) <= found.error
    # A trailing coefficient may be small enough to be cut, but none is invented.
    assert found.degree <= polynomial.degree


def test_constants_and_zero() -> None:
    for value in (0.0, -3.0):
        series = fit(lambda x, v=value: torch.full_like(x, v), (0.0, 2.0), tolerance=1e-12)
        assert series.degree == 0
        assert float(series(torch.tensor(1.3))) == value
        assert series.error <= 16 * EPSILON * abs(value)


@pytest.mark.parametrize("parity", [0, 1])
def test_parity_does_not_end_the_fit_early(parity: int) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cos(30 * x - parity * math.pi / 2)

    series = fit(function, UNIT, tolerance=1e-10)
    assert float(series.coefficients[1 - parity :: 2].abs().max()) <= 4 * EPSILON
    assert largest_error(series, function) <= series.error


@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_what_hides_between_the_nodes_is_found(shift: float) -> None:
    def hidden(x: Tensor) -> Tensor:  # (1 - x²) U_7(x), zero at all nodes of the first grid
        angle = torch.acos(x.clamp(-1, 1))
        return shift + torch.sin(angle) * torch.sin(8 * angle)

    series = fit(hidden, UNIT, tolerance=1e-9)
    assert largest_error(series, hidden) <= series.error <= 1e-9


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (torch.abs, "too rough"),
        (lambda x: (x - 0.3).abs(), "too rough"),
        (lambda x: (1 + x).sqrt(), "too rough"),
        (lambda x: (x - 0.1).sign(), "too rough"),
        (lambda x: torch.cos(2000 * x), "too rough"),
        (lambda x: 1 / (1 + 1e4 * x**2), "too rough"),
        (lambda x: x / 0, "met to nan"),
        (lambda x: torch.stack([x.exp(), (x - 0.3).abs()]), "too rough"),
    ],
)
def test_what_one_series_cannot_represent(
    function: Callable[[Tensor], Tensor], complaint: str
) -> None:
    with pytest.raises(AccuracyError, match=complaint):
        fit(function, UNIT, tolerance=1e-8)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_a_tolerance_below_rounding(scale: float) -> None:
    with pytest.raises(AccuracyError, match="rounding errors leave no more digits"):
        fit(lambda x: scale * torch.exp(x), UNIT, tolerance=4 * EPSILON * scale)
    assert fit(lambda x: scale * torch.exp(x), UNIT, tolerance=1e-13 * scale)


def test_noise_below_the_tolerance_is_no_obstacle() -> None:
    noise = torch.Generator().manual_seed(0)

    def function(x: Tensor) -> Tensor:
        return x.exp() + 1e-9 * (torch.rand(x.shape, dtype=x.dtype, generator=noise) - 0.5)

    series = fit(function, UNIT, tolerance=1e-6)
    assert largest_error(series, torch.exp) <= series.error
    with pytest.raises(AccuracyError, match="too rough"):
        fit(function, UNIT, tolerance=1e-9)


WAVES = torch.tensor([[1.0, 3.0, 0.2], [9.0, 2.0, 5.0]], dtype=torch.float64)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-7, 1e-10])
def test_several_functions_at_once_are_each_within_the_error(tolerance: float) -> None:
    found = fit(lambda x: torch.cos(WAVES[..., None] * x), (-1.0, 2.0), tolerance=tolerance)
    assert found.coefficients.shape[:2] == WAVES.shape
    assert found.error <= tolerance
    assert largest_error(found, lambda x: torch.cos(WAVES[..., None] * x)) <= found.error


@given(st.floats(-0.999, 0.999), st.sampled_from([1.0, 1.5, 3.0]), st.floats(-1.5, 0))
def test_the_error_holds_for_kinks_anywhere(place: float, power: float, digits: float) -> None:
    def function(x: Tensor) -> Tensor:
        return (x - place).abs() ** power

    try:
        series = fit(function, UNIT, tolerance=10**digits, max_degree=256)
    except AccuracyError:
        reject()  # too many of these are an error
    near = place + torch.linspace(-0.1, 0.1, 10_001, dtype=torch.float64)
    x = torch.cat([scattered(series.span, 1000), near.clamp(-1, 1)])
    assert float((series(x) - function(x)).abs().max()) <= series.error


def test_values_keep_the_shape_and_match_numpy() -> None:
    series = Chebyshev((0.0, 2.0), random(3, 9))
    x = scattered(series.span, 60).view(3, 4, 5)
    expected = reference.chebval((x - 1).numpy(), series.coefficients.numpy().T)
    np.testing.assert_allclose(series(x), expected, rtol=0, atol=256 * EPSILON)
    assert series(x.float()).dtype == torch.float64
    assert series(x[:, :0]).shape == (3, 3, 0, 5)
