"""A function on an interval cut into smaller ones, one Chebyshev series on each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core import checks
from shoal.core.exceptions import AccuracyError

from .chebyshev import Chebyshev, checked_box
from .evaluation import Box, evaluate, fill
from .fitting import Shortfall, attempt, checked_degrees
from .sampling import Function, sampled_function

__all__ = ["PiecewiseChebyshev", "fit_piecewise"]

DEFAULT_MAX_DEGREE = (128,)
"""Largest degree of a piece."""


@dataclass(frozen=True, eq=False, repr=False)
class PiecewiseChebyshev:
    """Chebyshev series on the pieces of an interval; made by `fit_piecewise`, called like one.

    On a cut the right-hand piece counts.

    Args:
        pieces: The series, in ascending order, each beginning where the one before it ends.
    """

    pieces: tuple[Chebyshev, ...]

    def __repr__(self) -> str:
        """Say what matters and leave out the numbers."""
        count = len(self.pieces)
        return f"PiecewiseChebyshev(box={self.box}, pieces={count}, error={self.error:.2g})"

    @property
    def box(self) -> Box:
        """Lower and upper end."""
        return ((self.pieces[0].box[0][0], self.pieces[-1].box[0][1]),)

    @property
    def error(self) -> float:
        """Bound of the distance to the function: the largest among the pieces."""
        return max(piece.error for piece in self.pieces)

    def __call__(self, *points: Tensor | float) -> Tensor:
        """Return the values at ``points``; raise a ValueError for NaN or points off the box."""
        return evaluate(self, points)

    @property
    def workspace(self) -> int:
        """Numbers that each point takes while a block is sorted by piece."""
        return 8

    def evaluate_block(self, points: Sequence[Tensor]) -> Tensor:
        """Return the values at a float64 vector, unchecked, piece after piece."""
        (x,) = points
        cuts = x.new_tensor([piece.box[0][0] for piece in self.pieces[1:]])
        piece = torch.bucketize(x, cuts, right=True)
        order = piece.argsort()
        counts = piece.bincount(minlength=len(self.pieces)).tolist()
        grouped = torch.empty_like(x)
        for series, out, some in zip(
            self.pieces, grouped.split(counts), x[order].split(counts), strict=True
        ):
            fill(out, [some], series)
        return torch.empty_like(grouped).index_copy_(0, order, grouped)


def fit_piecewise(
    function: Function,
    box: Sequence[Sequence[float]],
    *,
    tolerance: float,
    max_degree: int | None = None,
    max_pieces: int = 256,
) -> PiecewiseChebyshev:
    """Return Chebyshev series within ``tolerance`` on pieces of an interval.

    A piece that one series does not meet is halved. The function is sampled just inside of each
    cut, so that it may jump there.

    Args:
        function: Called with the float64 nodes of a piece; returns the values there.
        box: Lower and upper end of the one axis, as for `fit`.
        tolerance: Largest error, absolute.
        max_degree: Largest degree within a piece.
        max_pieces: Largest number of pieces.

    Raises:
        AccuracyError: The pieces run out, or rounding stands in the way; with the place.

    Example:
        >>> root = fit_piecewise(torch.sqrt, ((0.0, 1.0),), tolerance=1e-6)
        >>> bool((root(0.25) - 0.5).abs() <= root.error)
        True
    """
    box = checked_box(box)
    if len(box) > 1:
        raise ValueError(f"box must have one axis, got {len(box)}")
    tolerance = checks.real("tolerance", tolerance, above=0.0)
    max_pieces = checks.integer("max_pieces", max_pieces, at_least=1)
    degrees = checked_degrees(max_degree, 1, DEFAULT_MAX_DEGREE)
    values = sampled_function(function, "tensor")
    pieces: list[Chebyshev] = []
    rest = list(box)  # the next one last
    while rest:
        low, high = rest.pop()
        inside = _one_sided(values, (low, high), box[0])
        outcome = attempt(inside, ((low, high),), tolerance=tolerance, max_degrees=degrees)
        if isinstance(outcome, Chebyshev):
            pieces.append(outcome)
        else:
            middle = _halving(outcome, full=len(pieces) + len(rest) + 1 >= max_pieces)
            rest += [(middle, high), (low, middle)]
    return PiecewiseChebyshev(tuple(pieces))


def _halving(shortfall: Shortfall, *, full: bool) -> float:
    """Return where to halve an interval, or raise if that is no use or not allowed."""
    ((low, high),) = shortfall.box
    if shortfall.cause == "rounding":
        raise AccuracyError(shortfall.message)
    resolution = 64 * torch.finfo(torch.float64).eps * max(abs(low), abs(high))
    middle = (low + high) / 2
    if full or high - low <= resolution:
        why = "max_pieces are used up" if full else "the interval cannot be halved again"
        raise AccuracyError(
            f"{why} near {middle}, where the error is still {shortfall.error:.2g}, above the "
            f"tolerance {shortfall.tolerance:.2g}; raise max_pieces, or ask for a larger tolerance"
        )
    return middle


def _one_sided(
    function: Function, span: tuple[float, float], whole: tuple[float, float]
) -> Function:
    """Return the function with nodes on a cut moved inside by one unit in the last place."""
    low = span[0] if span[0] == whole[0] else math.nextafter(span[0], math.inf)
    high = span[1] if span[1] == whole[1] else math.nextafter(span[1], -math.inf)
    return lambda x: function(x.clamp(low, high))
