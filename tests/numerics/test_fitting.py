"""Fits: known functions within the reported error, failures with a reason."""

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from numerics.helpers import Box, largest_error, on_grid, scattered
from shoal.core.exceptions import AccuracyError
from shoal.numerics import Chebyshev, fit

EPSILON = torch.finfo(torch.float64).eps


class Case(NamedTuple):
    name: str
    function: Callable[..., Tensor]
    box: Box


def erf_dual(log_a: Tensor, log_b: Tensor, theta: Tensor) -> Tensor:
    """E[erf(u) erf(v)] in closed form (Williams, 1997): the kind of function we are here for."""
    a, b = log_a.exp(), log_b.exp()
    argument = 2 * (a * b).sqrt() * theta.cos() / ((1 + 2 * a) * (1 + 2 * b)).sqrt()
    return 2 / math.pi * torch.asin(argument)


CASES = [
    Case("exp", torch.exp, ((-1.0, 2.0),)),
    Case("runge", lambda x: 1 / (1 + 25 * x**2), ((-1.0, 1.0),)),
    Case("odd runge", lambda x: x / (1 + 25 * x**2), ((-1.0, 1.0),)),
    Case("even powers of T_4", lambda x: torch.exp(8 * x**4 - 8 * x**2 + 1), ((-1.0, 1.0),)),
    Case("fast cosine", lambda x: torch.cos(60 * x), ((0.0, 2.0),)),
    Case("small ripple", lambda x: x + 1e-4 * torch.sin(50 * x), ((-1.0, 1.0),)),
    Case("ripple behind T_4", lambda x: x**4 + 1e-4 * torch.sin(50 * x), ((-1.0, 1.0),)),
    Case("far box", lambda x: torch.sin(x / 100), ((1000.0, 1300.0),)),
    Case("large values", lambda x: 1e3 * torch.exp(-x), ((0.0, 3.0),)),
    Case("tanh", lambda x: torch.tanh(3 * x), ((-2.0, 1.0),)),
    Case("exp of product", lambda x, y: torch.exp(x * y), ((-1.0, 1.0), (0.0, 2.0))),
    Case("runge 2", lambda x, y: 1 / (1 + 4 * x**2 + 9 * y**2), ((-1.0, 1.0), (-1.0, 1.0))),
    Case("anisotropic", lambda x, y: torch.cos(x + 20 * y), ((-1.0, 1.0), (-1.0, 1.0))),
    Case("gauss", lambda x, y, z: torch.exp(-(x**2 + y**2 + z**2) / 2), ((-1.0, 1.5),) * 3),
    Case("runge 3", lambda x, y, z: 1 / (2 + x**2 + y**2 + z), ((-1.0, 1.0),) * 3),
    Case("erf dual", erf_dual, ((-1.0, 1.0), (-1.0, 1.0), (0.0, math.pi))),
]


@pytest.mark.parametrize("tolerance", [1e-3, 1e-7, 1e-10])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reported_error_is_true_and_not_far_off(case: Case, tolerance: float) -> None:
    series = fit(on_grid(case.function), case.box, tolerance=tolerance)
    found = largest_error(series, case.function)
    assert found <= series.error <= tolerance
    assert series.error <= 100 * found


POLYNOMIALS = [
    Case("cubic", lambda x: x**3 - 2 * x + 1, ((-1.0, 2.0),)),
    Case("degree of the first grid", lambda x: 128 * x**8 - 3 * x**4, ((-1.0, 1.0),)),
    Case("bilinear", lambda x, y: (1 + x) * (2 - y), ((0.0, 1.0), (-3.0, 1.0))),
    Case("mixed", lambda x, y: x**5 * y**2 - y**7, ((-1.0, 1.0), (-1.0, 1.0))),
    Case("three", lambda x, y, z: x * y**2 * z**3 - z + 0.5, ((-1.0, 1.0),) * 3),
]


@pytest.mark.parametrize("case", POLYNOMIALS, ids=lambda case: case.name)
def test_polynomials_are_reproduced_to_rounding(case: Case) -> None:
    series = fit(on_grid(case.function), case.box, tolerance=1e-10)
    scale = float(case.function(*scattered(case.box)).abs().max())
    # Evaluation and function each round some tens of terms.
    assert largest_error(series, case.function) <= 32 * EPSILON * scale
    assert largest_error(series, case.function) <= series.error <= 2**10 * EPSILON * scale


def test_degrees_of_polynomials_are_found() -> None:
    series = fit(on_grid(lambda x, y, z: x * y**2 * z**3), ((-1.0, 1.0),) * 3, tolerance=1e-12)
    assert series.degrees == (1, 2, 3)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_constants_and_zero(axes: int) -> None:
    for value in (0.0, -3.0):
        series = fit(
            on_grid(lambda *x, value=value: torch.full_like(x[0], value)),
            ((0.0, 2.0),) * axes,
            tolerance=1e-12,
        )
        assert series.degrees == (0,) * axes
        assert float(series(*[torch.tensor(1.3)] * axes)) == value
        assert series.error <= 16 * EPSILON * abs(value)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_variable_among_three(axis: int) -> None:
    series = fit(on_grid(lambda *x: torch.exp(x[axis])), ((-1.0, 1.0),) * 3, tolerance=1e-9)
    assert [degree > 0 for degree in series.degrees] == [a == axis for a in range(3)]
    assert largest_error(series, lambda *x: torch.exp(x[axis])) <= series.error


@pytest.mark.parametrize("parity", [0, 1])
def test_parity_does_not_end_the_fit_early(parity: int) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cos(30 * x - parity * math.pi / 2)

    series = fit(function, ((-1.0, 1.0),), tolerance=1e-10)
    missing = series.coefficients[1 - parity :: 2]
    assert float(missing.abs().max()) <= 4 * EPSILON
    assert largest_error(series, function) <= series.error


def hidden(x: Tensor) -> Tensor:
    """(1 - x²) U_7(x), which vanishes at all nodes of the first grid."""
    angle = torch.acos(x.clamp(-1, 1))
    return torch.sin(angle) * torch.sin(8 * angle)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: hidden(x) + 0 * y,
        lambda x, y: torch.exp(x) * hidden(y),
        lambda x, y: hidden(x) * hidden(y),
        lambda x, y: 5 + hidden(x) * torch.cos(3 * y),
    ],
)
def test_what_hides_between_the_nodes_is_found(function: Callable[..., Tensor]) -> None:
    series = fit(on_grid(function), ((-1.0, 1.0),) * 2, tolerance=1e-9)
    assert largest_error(series, function) <= series.error <= 1e-9


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (torch.abs, "kink or singularity; cut the box"),
        (lambda x: (x - 0.3).abs(), "kink or singularity"),
        (lambda x: (1 + x).sqrt(), "kink or singularity"),
        (lambda x: (x - 0.1).sign(), "do not decay"),
        (lambda x: torch.cos(2000 * x), "do not decay"),
        (lambda x: 1 / (1 + 1e4 * x**2), "still decay fast; raise max_degree"),
    ],
)
def test_what_one_series_cannot_represent(
    function: Callable[[Tensor], Tensor], complaint: str
) -> None:
    with pytest.raises(AccuracyError, match=complaint) as error:
        fit(function, ((-1.0, 1.0),), tolerance=1e-8)
    assert "axis 0, sampled to degree 1024" in str(error.value)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_axis_to_blame_is_named(axis: int) -> None:
    with pytest.raises(AccuracyError, match=f"axis {axis}, sampled to degree 16"):
        fit(
            on_grid(lambda *x: (x[axis] - 0.2).abs() + torch.exp(x[0] + x[1] + x[2])),
            ((-1.0, 1.0),) * 3,
            tolerance=1e-4,
            max_degree=16,
        )


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_a_tolerance_below_rounding(scale: float) -> None:
    with pytest.raises(AccuracyError, match="rounding errors leave no more digits"):
        fit(lambda x: scale * torch.exp(x), ((-1.0, 1.0),), tolerance=4 * EPSILON * scale)
    assert fit(lambda x: scale * torch.exp(x), ((-1.0, 1.0),), tolerance=1e-13 * scale)


def test_noise_below_the_tolerance_is_no_obstacle() -> None:
    noise = torch.Generator().manual_seed(0)

    def function(x: Tensor) -> Tensor:
        return torch.exp(x) + 1e-9 * (
            torch.rand(x.shape, dtype=torch.float64, generator=noise) - 0.5
        )

    series = fit(function, ((-1.0, 1.0),), tolerance=1e-6)
    assert largest_error(series, torch.exp) <= series.error
    with pytest.raises(AccuracyError, match="noise"):
        fit(function, ((-1.0, 1.0),), tolerance=1e-9)


def test_degrees_may_be_limited_per_axis() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(x) * torch.cos(20 * y)

    box = ((-1.0, 1.0), (-1.0, 1.0))

    def grid(x: Tensor, y: Tensor) -> Tensor:
        return function(x[:, None], y)

    assert fit(grid, box, tolerance=1e-8, max_degree=(16, 64)).sampled == (16, 64)
    with pytest.raises(AccuracyError, match="axis 1, sampled to degree 16"):
        fit(on_grid(function), box, tolerance=1e-8, max_degree=(64, 16))


@pytest.mark.parametrize(
    ("function", "box", "options", "error", "complaint"),
    [
        (torch.exp, (), {}, ValueError, "one to 3 axes, got 0"),
        (torch.exp, ((0.0, 1.0),) * 4, {}, ValueError, "one to 3 axes, got 4"),
        (torch.exp, ((1.0, 1.0),), {}, ValueError, r"box\[0\]\[1\] must be > 1"),
        (torch.exp, ((0.0, math.inf),), {}, ValueError, r"box\[0\]\[1\] must be finite"),
        (torch.exp, ((0.0, 1.0, 2.0),), {}, ValueError, r"box\[0\] must be \(low, high\)"),
        (torch.exp, ((0.0, "1"),), {}, TypeError, r"box\[0\]\[1\] must be a real number"),
        (torch.exp, ((0.0, 1.0),), {"tolerance": 0.0}, ValueError, "tolerance must be > 0"),
        (torch.exp, ((0.0, 1.0),), {"max_degree": 3}, ValueError, "max_degree must be >= 4"),
        (torch.exp, ((0.0, 1.0),), {"max_degree": (8, 8)}, ValueError, "one number or 1"),
        (torch.log, ((0.0, 1.0),), {}, ValueError, "values of the function must be finite"),
        (torch.sum, ((0.0, 1.0),), {}, ValueError, r"must have shape \(9,\)"),
        (torch.mul, ((0.0, 1.0),) * 2, {}, ValueError, r"must have shape \(9, 9\)"),
        (lambda x: x > 0, ((0.0, 1.0),), {}, TypeError, "floating-point"),
        (len, ((0.0, 1.0),), {}, ValueError, "must have shape"),
        (str, ((0.0, 1.0),), {}, TypeError, "floating-point"),
    ],
)
def test_bad_arguments(
    function: Callable[..., Tensor],
    box: Box,
    options: dict[str, object],
    error: type[Exception],
    complaint: str,
) -> None:
    with pytest.raises(error, match=complaint):
        fit(function, box, **{"tolerance": 1e-6, **options})


WAVES = torch.tensor([[1.0, 3.0, 0.2], [9.0, 2.0, 5.0]], dtype=torch.float64)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-7, 1e-10])
def test_several_functions_at_once_are_each_within_the_error(tolerance: float) -> None:
    box = ((-1.0, 2.0),)
    found = fit(lambda x: torch.cos(WAVES[..., None] * x), box, tolerance=tolerance)
    assert found.coefficients.shape[:2] == WAVES.shape
    assert found.error <= tolerance
    for wave, coefficients in zip(WAVES.flatten(), found.coefficients.flatten(0, 1), strict=True):
        series = Chebyshev(box, coefficients.contiguous())
        assert largest_error(series, lambda x, w=wave: torch.cos(w * x)) <= found.error


def test_several_functions_of_two_variables() -> None:
    box = ((0.0, 1.0), (-1.0, 1.0))

    def grid(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([torch.exp(x[:, None] * y), torch.cos(4 * x[:, None] + y)])

    found = fit(grid, box, tolerance=1e-9, check_points=5)
    one = fit(lambda x, y: grid(x, y)[1], box, tolerance=1e-9)
    second = Chebyshev(box, found.coefficients[1].contiguous())
    x, y = scattered(box, 50)
    torch.testing.assert_close(second(x, y), one(x, y), rtol=0, atol=1e-9)


def test_one_rough_function_among_several_is_seen() -> None:
    def both(x: Tensor) -> Tensor:
        return torch.stack([x.exp(), (x - 0.3).abs()])

    with pytest.raises(AccuracyError, match="decay slowly"):
        fit(both, ((-1.0, 1.0),), tolerance=1e-8)


def test_what_hides_between_the_nodes_of_one_function_among_several_is_found() -> None:
    def both(x: Tensor) -> Tensor:
        return torch.stack([x, x + 1e-3 * torch.exp(-((60 * (x - 0.06)) ** 2))])

    found = fit(both, ((-1.0, 1.0),), tolerance=1e-6)
    assert found.sampled[0] > 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"check_points": -1}, "check_points must be >= 0"),
        ({"first_degree": 2}, "first_degree must be >= 4"),
        ({"tolerance": 0.0}, "tolerance must be > 0"),
        ({"max_degree": 2}, "max_degree must be >= 4"),
    ],
)
def test_bad_arguments_of_several(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(torch.sin, ((0.0, 1.0),), **{"tolerance": 1e-6, **options})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must have shape"):
        fit(lambda x: x[:-1], ((0.0, 1.0),), tolerance=1e-6)
