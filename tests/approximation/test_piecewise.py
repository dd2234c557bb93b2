"""Pieces: kinks, jumps and singularities, with and without breaks."""

import copy
import pickle
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from approximation.helpers import Box, largest_error, scattered
from shoal.approximation import Chebyshev, PiecewiseChebyshev, evaluation, fit, fit_piecewise
from shoal.core.exceptions import AccuracyError

LINE = ((-1.0, 2.0),)


def kink(x: Tensor) -> Tensor:
    return (x - 0.3).abs()


@pytest.mark.parametrize(
    ("function", "box", "breaks"),
    [
        (kink, LINE, [[0.3]]),
        (lambda x: (x - 0.3).relu() + (x - 1).relu() ** 2, LINE, [[1.0, 0.3]]),
        (lambda x: (x - 0.3).sign() * x.exp(), LINE, [[0.3]]),
        (lambda x, y: kink(x) * y.exp() + (y - 0.5).abs(), (*LINE, (0.0, 1.0)), [[0.3], [0.5]]),
        (lambda x, y, z: kink(z) * (x + y).cos(), ((0.0, 1.0), (0.0, 1.0), *LINE), [[], [], [0.3]]),
    ],
)
def test_known_breaks_make_smooth_pieces(
    function: Callable[..., Tensor], box: Box, breaks: list[list[float]]
) -> None:
    pieces = fit_piecewise(function, box, tolerance=1e-11, breaks=breaks, sampler="elementwise")
    expected = 1
    for places in breaks:
        expected *= len(places) + 1
    assert len(pieces.pieces) == expected
    assert largest_error(pieces, function) <= pieces.error <= 1e-11


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize(
    ("function", "box"),
    [
        (torch.abs, ((-1.0, 1.0),)),
        (kink, LINE),
        (torch.sqrt, ((0.0, 1.0),)),
        (lambda x: 1 / (1 + 1e4 * x**2), LINE),
        (lambda x, y: kink(x) * y.exp(), (*LINE, (0.0, 1.0))),
    ],
)
def test_bisection_meets_the_tolerance(
    function: Callable[..., Tensor], box: Box, tolerance: float
) -> None:
    pieces = fit_piecewise(function, box, tolerance=tolerance, sampler="elementwise")
    assert largest_error(pieces, function) <= pieces.error <= tolerance


def test_the_error_holds_next_to_the_kink() -> None:
    pieces = fit_piecewise(kink, LINE, tolerance=1e-6)
    x = 0.3 + torch.linspace(-1e-4, 1e-4, 20_001, dtype=torch.float64)
    found = float((pieces(x) - kink(x)).abs().max())
    assert found <= pieces.error <= 1e3 * found


def test_one_piece_if_one_does() -> None:
    pieces = fit_piecewise(torch.exp, LINE, tolerance=1e-10)
    points = scattered(LINE)
    assert len(pieces.pieces) == 1
    assert torch.equal(pieces(*points), fit(torch.exp, LINE, tolerance=1e-10)(*points))


def test_only_the_axis_to_blame_is_cut() -> None:
    pieces = fit_piecewise(
        lambda x, y: x.cos() * (5 * y).tanh(),
        ((-1.0, 1.0), (-4.0, 4.0)),
        tolerance=1e-8,
        max_degree=32,
        sampler="elementwise",
    )
    assert len(pieces.pieces) > 1
    assert {piece.box[0] for piece in pieces.pieces} == {(-1.0, 1.0)}


def test_pieces_tile_the_box() -> None:
    pieces = fit_piecewise(
        lambda x, y: 1 / (0.01 + x**2 + y**2),
        ((-1.0, 1.0), (-1.0, 1.0)),
        tolerance=1e-6,
        max_degree=16,
        sampler="elementwise",
    )
    points = scattered(pieces.box, 2000)
    found = pieces.tree.locate(points)
    for index, piece in enumerate(pieces.pieces):
        inside = torch.ones(2000, dtype=torch.bool)
        for x, (low, high), (_, top) in zip(points, piece.box, pieces.box, strict=True):
            inside &= (x >= low) & ((x < high) | (x == high) & (high == top))
        assert torch.equal(inside, found == index)


@pytest.mark.parametrize(
    ("function", "box", "options", "complaint"),
    [
        (lambda x: (x - 0.3).sign(), LINE, {}, r"cannot be halved again near \(0\.(3|29999)"),
        (lambda x: (x - 0.3).abs().sqrt(), LINE, {"tolerance": 1e-12}, r"near \(0\.(3|29999)"),
        (kink, LINE, {"max_pieces": 5}, "max_pieces are used up near"),
        (
            lambda x, y: (x - y).abs(),
            ((0.0, 1.0), (0.0, 1.0)),
            {"max_pieces": 16, "tolerance": 1e-6},
            "max_pieces are used up near",
        ),
        (torch.exp, LINE, {"tolerance": 1e-16}, "rounding errors leave no more digits"),
    ],
)
def test_what_cannot_be_met_says_where(
    function: Callable[..., Tensor], box: Box, options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(AccuracyError, match=complaint):
        fit_piecewise(function, box, sampler="elementwise", **{"tolerance": 1e-8, **options})


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"breaks": [[0.0], [0.0]]}, ValueError, "breaks must be given for 1 axes, got 2"),
        ({"breaks": [[2.0]]}, ValueError, r"breaks\[0\]\[0\] must be < 2"),
        ({"breaks": [[0.0, float("nan")]]}, ValueError, r"breaks\[0\]\[1\] must be finite"),
        ({"max_pieces": 0}, ValueError, "max_pieces must be >= 1"),
        ({"max_degree": 2}, ValueError, "max_degree must be >= 4"),
        ({"tolerance": -1.0}, ValueError, "tolerance must be > 0"),
    ],
)
def test_bad_arguments(options: dict[str, object], error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        fit_piecewise(torch.exp, LINE, **{"tolerance": 1e-6, **options})


@pytest.fixture(scope="module")
def plane() -> PiecewiseChebyshev:
    return fit_piecewise(
        lambda x, y: kink(x) ** 3 * y.cos(),
        (*LINE, (0.0, 1.0)),
        tolerance=1e-9,
        breaks=[[0.3], []],
        max_degree=8,
        sampler="elementwise",
    )


def test_points_on_a_cut_belong_to_the_right() -> None:
    step = fit_piecewise(lambda x: (x - 0.5).sign(), LINE, tolerance=1e-9, breaks=[[0.5]])
    assert step(torch.tensor([-1.0, 0.5, 2.0])).tolist() == [-1.0, 1.0, 1.0]


def test_bad_and_missing_points(plane: PiecewiseChebyshev) -> None:
    with pytest.raises(ValueError, match=r"axis 0 must lie in \[-1, 2\]"):
        plane(2.5, 0.5)
    with pytest.raises(ValueError, match="axis 1 must not be NaN"):
        plane(0.5, float("nan"))
    assert plane(torch.empty(0, 3), torch.empty(0, 1)).shape == (0, 3)


def test_blocks_change_nothing(plane: PiecewiseChebyshev, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = scattered(plane.box, 3000)
    whole = plane.evaluate_block([x, y])
    sizes, one_block = [], Chebyshev.evaluate_block

    def recorded(self: Chebyshev, columns: Sequence[Tensor]) -> Tensor:
        sizes.append(columns[0].numel())
        return one_block(self, columns)

    monkeypatch.setattr(evaluation, "_BLOCK_CPU", 100 * plane.workspace)
    monkeypatch.setattr(Chebyshev, "evaluate_block", recorded)
    values = plane(x.view(60, 50), y.view(60, 50))
    assert max(sizes) <= 100
    # Sums of some tens of terms of size up to one, in another order.
    torch.testing.assert_close(values.view(-1), whole, rtol=0, atol=1e-14)


def test_derivatives_and_gradients(plane: PiecewiseChebyshev) -> None:
    slope = plane.derivative(0)
    found = largest_error(slope, lambda x, y: 3 * (x - 0.3).sign() * kink(x) ** 2 * y.cos())
    assert found <= slope.error
    points = [p.requires_grad_() for p in scattered(((-0.9, 1.9), (0.1, 0.9)), 8)]
    assert torch.autograd.gradcheck(plane, points)


def test_compression_and_copies(plane: PiecewiseChebyshev) -> None:
    small = plane.compress(1e-9)
    assert all(piece.tucker is not None for piece in small.pieces)
    assert largest_error(small, lambda x, y: kink(x) ** 3 * y.cos()) <= small.error
    points = scattered(plane.box, 10)
    for twin in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert torch.equal(twin(*points), small(*points))
    assert f"pieces={len(small.pieces)}" in repr(small)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda(plane: PiecewiseChebyshev) -> None:
    points = scattered(plane.box, 10**6)
    values = plane(*(p.cuda() for p in points))
    assert values.device.type == "cuda"
    torch.testing.assert_close(values.cpu(), plane(*points), rtol=0, atol=1e-14)
