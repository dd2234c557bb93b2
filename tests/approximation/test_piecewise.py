"""Pieces: kinks, jumps and singularities."""

import copy
import itertools
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


def step(x: Tensor) -> Tensor:
    return torch.where(x < 0.5, -x.exp(), x.exp())


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize(
    ("function", "box"),
    [
        (torch.abs, ((-1.0, 1.0),)),
        (kink, LINE),
        (torch.sqrt, ((0.0, 1.0),)),
        (lambda x: 1 / (1 + 1e4 * x**2), LINE),
        (step, LINE),
    ],
)
def test_bisection_meets_the_tolerance(
    function: Callable[..., Tensor], box: Box, tolerance: float
) -> None:
    pieces = fit_piecewise(function, box, tolerance=tolerance)
    assert pieces.box == box
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


def test_pieces_follow_each_other() -> None:
    pieces = fit_piecewise(lambda x: 1 / (0.01 + x**2), LINE, tolerance=1e-6, max_degree=16)
    ends = [piece.box[0] for piece in pieces.pieces]
    assert len(ends) > 2
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))


@pytest.mark.parametrize(
    ("function", "options", "complaint"),
    [
        (lambda x: (x - 0.3).sign(), {}, r"cannot be halved again near 0\.(3|29999)"),
        (lambda x: (x - 0.3).abs().sqrt(), {"tolerance": 1e-12}, r"near 0\.(3|29999)"),
        (kink, {"max_pieces": 5}, "max_pieces are used up near"),
        (torch.exp, {"tolerance": 1e-16}, "rounding errors leave no more digits"),
    ],
)
def test_what_cannot_be_met_says_where(
    function: Callable[..., Tensor], options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(AccuracyError, match=complaint):
        fit_piecewise(function, LINE, **{"tolerance": 1e-8, **options})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"box": (*LINE, (0.0, 1.0))}, "box must have one axis, got 2"),
        ({"max_pieces": 0}, "max_pieces must be >= 1"),
        ({"max_degree": 2}, "max_degree must be >= 4"),
        ({"tolerance": -1.0}, "tolerance must be > 0"),
    ],
)
def test_bad_arguments(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        fit_piecewise(torch.exp, **{"box": LINE, "tolerance": 1e-6, **options})


@pytest.fixture(scope="module")
def pieces() -> PiecewiseChebyshev:
    return fit_piecewise(step, LINE, tolerance=1e-9, max_degree=16)


def test_points_on_a_cut_belong_to_the_right(pieces: PiecewiseChebyshev) -> None:
    x = torch.tensor([0.5 - 1e-12, 0.5], dtype=torch.float64)  # at the middle of the interval
    torch.testing.assert_close(pieces(x), step(x), rtol=1e-8, atol=0.0)


def test_bad_and_missing_points(pieces: PiecewiseChebyshev) -> None:
    with pytest.raises(ValueError, match=r"axis 0 must lie in \[-1, 2\]"):
        pieces(2.5)
    with pytest.raises(ValueError, match="axis 0 must not be NaN"):
        pieces(float("nan"))
    assert pieces(torch.empty(0, 3)).shape == (0, 3)


def test_blocks_change_nothing(pieces: PiecewiseChebyshev, monkeypatch: pytest.MonkeyPatch) -> None:
    (x,) = scattered(pieces.box, 3000)
    whole = pieces.evaluate_block([x])
    sizes, one_block = [], Chebyshev.evaluate_block

    def recorded(self: Chebyshev, columns: Sequence[Tensor]) -> Tensor:
        sizes.append(columns[0].numel())
        return one_block(self, columns)

    monkeypatch.setattr(evaluation, "_BLOCK_CPU", 100 * pieces.workspace)
    monkeypatch.setattr(Chebyshev, "evaluate_block", recorded)
    values = pieces(x.view(60, 50))
    assert max(sizes) <= 100
    # Sums of some tens of terms of size up to ten, in another order.
    torch.testing.assert_close(values.view(-1), whole, rtol=0, atol=1e-13)


def test_copies(pieces: PiecewiseChebyshev) -> None:
    points = scattered(pieces.box, 10)
    for twin in (copy.deepcopy(pieces), pickle.loads(pickle.dumps(pieces))):
        assert torch.equal(twin(*points), pieces(*points))
    assert f"pieces={len(pieces.pieces)}" in repr(pieces)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda(pieces: PiecewiseChebyshev) -> None:
    points = scattered(pieces.box, 10**6)
    values = pieces(*(p.cuda() for p in points))
    assert values.device.type == "cuda"
    torch.testing.assert_close(values.cpu(), pieces(*points), rtol=0, atol=1e-13)
