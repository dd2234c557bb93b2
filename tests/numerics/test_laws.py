"""Laws that hold for all functions: random polynomials, linearity, true errors."""

from collections.abc import Callable

import torch
from hypothesis import given, reject
from hypothesis import strategies as st
from torch import Tensor

from numerics.helpers import on_grid, scattered
from shoal.core.exceptions import AccuracyError
from shoal.numerics import Chebyshev, fit

EPSILON = torch.finfo(torch.float64).eps

shapes = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)
seeds = st.integers(0, 2**31)
weights = st.floats(-10, 10)


def random_series(shape: tuple[int, ...], seed: int) -> Chebyshev:
    generator = torch.Generator().manual_seed(seed)
    ends = 4 * torch.rand(len(shape), generator=generator, dtype=torch.float64)
    widths = 0.1 + torch.rand(len(shape), generator=generator, dtype=torch.float64)
    box = tuple(zip((ends - 2).tolist(), (ends - 2 + widths).tolist(), strict=True))
    return Chebyshev(box, torch.randn(shape, generator=generator, dtype=torch.float64))


@given(shapes, seeds)
def test_a_polynomial_is_its_own_fit(shape: tuple[int, ...], seed: int) -> None:
    polynomial = random_series(shape, seed)
    found = fit(on_grid(polynomial), polynomial.box, tolerance=1e-9)
    points = scattered(polynomial.box, 200)
    difference = float((found(*points) - polynomial(*points)).abs().max())
    assert difference <= found.error
    # A trailing coefficient may be small enough to be cut, but none is invented.
    assert all(a <= b for a, b in zip(found.degrees, polynomial.degrees, strict=True))


@given(weights, weights, st.floats(0.1, 3), st.floats(0.1, 3))
def test_fits_are_linear(a: float, b: float, p: float, q: float) -> None:
    def first(x: Tensor, y: Tensor) -> Tensor:
        return torch.cos(p * x + y)

    def second(x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-q * x * y)

    box = ((0.0, 1.0), (-1.0, 1.0))
    both = fit(on_grid(lambda x, y: a * first(x, y) + b * second(x, y)), box, tolerance=1e-8)
    one = fit(on_grid(first), box, tolerance=1e-8)
    two = fit(on_grid(second), box, tolerance=1e-8)
    points = scattered(box, 200)
    difference = both(*points) - a * one(*points) - b * two(*points)
    assert float(difference.abs().max()) <= both.error + abs(a) * one.error + abs(b) * two.error


@given(shapes, seeds, st.floats(1e-12, 1.0))
def test_compression_never_exceeds_its_tolerance(
    shape: tuple[int, ...], seed: int, tolerance: float
) -> None:
    series = random_series(shape, seed)
    small = series.compress(tolerance)
    points = scattered(series.box, 200)
    difference = float((small(*points) - series(*points)).abs().max())
    assert difference <= small.error


@given(st.floats(-0.999, 0.999), st.sampled_from([1.0, 1.5, 3.0]), st.floats(-1.5, 0))
def test_the_error_holds_for_kinks_anywhere(place: float, power: float, digits: float) -> None:
    def function(x: Tensor) -> Tensor:
        return (x - place).abs() ** power

    try:
        series = fit(function, ((-1.0, 1.0),), tolerance=10**digits, max_degree=256)
    except AccuracyError:
        reject()  # too many of these are an error
    near = place + torch.linspace(-0.1, 0.1, 10_001, dtype=torch.float64)
    x = torch.cat([scattered(series.box, 1000)[0], near.clamp(-1, 1)])
    assert float((series(x) - function(x)).abs().max()) <= series.error


@given(
    st.lists(st.tuples(st.floats(-8, 8), st.floats(-2, 2)), min_size=1, max_size=3),
    st.sampled_from([torch.cos, torch.tanh, lambda x: torch.exp(-(x**2) / 2)]),
    st.floats(-10, -1),
)
def test_the_error_holds_for_ridges(
    ridge: list[tuple[float, float]], profile: Callable[[Tensor], Tensor], digits: float
) -> None:
    def function(*x: Tensor) -> Tensor:
        return profile(sum(slope * (t - shift) for t, (slope, shift) in zip(x, ridge, strict=True)))

    box = ((-1.0, 1.0), (0.0, 0.5), (-0.5, 0.5))[: len(ridge)]
    try:
        series = fit(on_grid(function), box, tolerance=10**digits)
    except AccuracyError:
        reject()  # too many of these are an error
    points = scattered(box, 2000)
    assert float((series(*points) - function(*points)).abs().max()) <= series.error
