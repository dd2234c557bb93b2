"""The value: evaluation, compression, bad points."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor

from numerics.helpers import Box, largest_error, on_grid, scattered
from shoal.core.exceptions import AccuracyError
from shoal.numerics import Chebyshev, fit

EPSILON = torch.finfo(torch.float64).eps
BOX = ((-1.0, 1.0), (0.0, 2.0), (1.0, 4.0))


def wave(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.cos(x + 2 * y) * torch.exp(-x * z / 4) + y / z


@pytest.fixture(scope="module")
def series() -> Chebyshev:
    return fit(on_grid(wave), BOX, tolerance=1e-9)


@pytest.fixture(scope="module", params=["full", "compressed"])
def either(request: pytest.FixtureRequest, series: Chebyshev) -> Chebyshev:
    return series if request.param == "full" else series.compress(1e-9)


def test_points_broadcast(either: Chebyshev) -> None:
    x, y, z = scattered(BOX, 8)
    grid = either(x[:, None, None], y[:, None], z)
    assert grid.shape == (8, 8, 8)
    pairs = torch.stack([grid[i, i, i] for i in range(8)])
    # Matrix products of different shapes round differently: some units of each of many terms.
    torch.testing.assert_close(either(x, y, z), pairs, rtol=0, atol=2**7 * EPSILON)
    assert either(x[3], y, z[5]).shape == (8,)
    assert either(x[0], y[0], z[0]).shape == ()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 1, 2)])
def test_no_points(either: Chebyshev, shape: tuple[int, ...]) -> None:
    assert either(*(torch.empty(shape, dtype=torch.float64) for _ in BOX)).shape == shape


def test_float64_computes_whatever_the_points_are(either: Chebyshev) -> None:
    x, y, z = (t.float() for t in scattered(BOX, 100))
    exact = either(x.double(), y.double(), z.double())
    assert torch.equal(either(x, y, z), exact)


def test_ends_of_the_box_are_inside_whatever_their_rounding() -> None:
    line = fit(torch.exp, ((0.1, 0.7),), tolerance=1e-9)
    for dtype in (torch.float16, torch.float32, torch.float64):
        ends = torch.tensor([0.1, 0.7], dtype=dtype)
        torch.testing.assert_close(line(ends).to(dtype), ends.exp())
    with pytest.raises(ValueError, match="axis 0"):
        line(ends + 1e-14)


@pytest.mark.parametrize(
    ("points", "error", "complaint"),
    [
        ((0.0, 1.0), ValueError, "3 axes, got 2"),
        ((0.0, 2.1, 2.0), ValueError, r"axis 1 must lie in \[0, 2\], got values from 2.1 to 2.1"),
        ((-math.inf, 1.0, 2.0), ValueError, r"axis 0 must lie in \[-1, 1\]"),
        ((0.0, 1.0, math.nan), ValueError, "axis 2 must not be NaN"),
        ((0, 1.0, 2.0), TypeError, "axis 0 must be a floating-point .*, got dtype torch.int64"),
        ((torch.zeros(1, requires_grad=True), 1.0, 2.0), ValueError, "must not require gradients"),
    ],
)
def test_bad_points(
    series: Chebyshev, points: tuple[float, ...], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        series(*map(torch.as_tensor, points))


@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-8, 1e-12])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_compression_stays_within_tolerance_and_error(axes: int, tolerance: float) -> None:
    def function(*x: Tensor) -> Tensor:
        return 1 / (3 + sum(x))

    full = fit(on_grid(function), ((-0.5, 1.0),) * axes, tolerance=1e-9)
    small = full.compress(tolerance)
    points = scattered(full.box)
    change = float((small(*points) - full(*points)).abs().max())
    assert change <= tolerance + 2**6 * EPSILON  # the rounding of the two evaluations
    assert largest_error(small, function) <= small.error
    assert small.error <= full.error + tolerance + 2**8 * EPSILON
    assert small.tucker is not None
    torch.testing.assert_close(small.tucker.dense(), small.coefficients, rtol=0, atol=0)


def test_compression_finds_the_rank() -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.cos(x + y) * torch.exp(z)

    small = fit(on_grid(function), BOX, tolerance=1e-9).compress(1e-9)
    assert small.tucker is not None
    assert small.tucker.core.shape == (2, 2, 1)
    assert "ranks=(2, 2, 1)" in repr(small)


def test_compression_below_rounding(series: Chebyshev) -> None:
    with pytest.raises(AccuracyError, match="lost in rounding errors"):
        series.compress(1e-18)
    with pytest.raises(ValueError, match="tolerance must be > 0"):
        series.compress(0.0)


def test_copies_and_pickles(either: Chebyshev) -> None:
    points = scattered(BOX, 10)
    for twin in (copy.deepcopy(either), pickle.loads(pickle.dumps(either))):
        assert torch.equal(twin(*points), either(*points))
        assert (twin.box, twin.error) == (either.box, either.error)


@pytest.mark.parametrize(
    ("box", "coefficients", "error", "complaint"),
    [
        (((0.0, 1.0),), torch.ones(3), 0.0, "float64 with 1 dimensions or more, got torch.float32"),
        (((0.0, 1.0),) * 2, torch.ones(3).double(), 0.0, r"got torch.float64 of shape \(3,\)"),
        (((0.0, 1.0),), torch.ones(0).double(), 0.0, "must not be empty"),
        (((0.0, 1.0),), torch.tensor([math.nan]).double(), 0.0, "must be finite"),
        (((0.0, 1.0),), torch.ones(3).double(), -1.0, "error must be >= 0"),
        (((1.0, 0.0),), torch.ones(3).double(), 0.0, r"box\[0\]\[1\] must be > 1"),
    ],
)
def test_bad_fields(box: Box, coefficients: Tensor, error: float, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Chebyshev(box, coefficients, error)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda(either: Chebyshev) -> None:
    points = scattered(BOX, 10**6)
    values = either(*(p.cuda() for p in points))
    assert values.device.type == "cuda"
    torch.testing.assert_close(values.cpu(), either(*points), rtol=0, atol=2**7 * EPSILON)
