"""A function on a box cut into smaller boxes, one Chebyshev series on each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from shoal.core import checks
from shoal.core.exceptions import AccuracyError

from .chebyshev import Chebyshev, checked_box
from .evaluation import Box, evaluate, fill
from .fitting import Fit, Shortfall, attempt, checked_degrees
from .sampling import Function, sampled_function

__all__ = ["PiecewiseChebyshev", "fit_piecewise"]

DEFAULT_MAX_DEGREE = (128, 64, 32)
"""Largest degree per axis of a piece for one, two, three variables."""


@dataclass(frozen=True, eq=False)
class _Tree:
    """A binary tree of cuts; the children of a node are neighbours.

    Args:
        axis: Axis that each node cuts; any at a leaf. shape: (nodes,)
        cut: Where it cuts; infinity at a leaf. shape: (nodes,)
        child: The node left of the cut, the right one follows; a leaf itself. shape: (nodes,)
        piece: The piece at a leaf. shape: (nodes,)
    """

    axis: Tensor
    cut: Tensor
    child: Tensor
    piece: Tensor

    def locate(self, points: Sequence[Tensor]) -> Tensor:
        """Return the piece of each point; a point on a cut belongs to the right."""
        device = points[0].device
        axis, cut, child = (t.to(device) for t in (self.axis, self.cut, self.child))
        stacked = torch.stack(tuple(points))  # shape: (axes, n)
        node = torch.zeros_like(points[0], dtype=torch.long)
        rest = torch.arange(node.shape[0], device=device)  # points not yet known to be at a leaf
        while rest.numel() > 0:
            here = node[rest]
            there = child[here] + (stacked[axis[here], rest] >= cut[here])
            node[rest] = there
            rest = rest[there != here]
        return self.piece.to(device)[node]


@dataclass(frozen=True, eq=False, repr=False)
class PiecewiseChebyshev:
    """Chebyshev series on the pieces of a box; made by `fit_piecewise`, called like `Chebyshev`.

    On a cut the right-hand piece counts, for values and derivatives.

    Args:
        box: Lower and upper end per axis.
        pieces: The series, whose boxes tile the box.
        tree: Where the box is cut.

    Example:
        >>> kink = fit_piecewise(torch.abs, ((-1.0, 2.0),), tolerance=1e-9, breaks=[[0.0]])
        >>> len(kink.pieces), kink(torch.tensor([-0.25, 1.5]))
        (2, tensor([0.2500, 1.5000]))
    """

    box: Box
    pieces: tuple[Chebyshev, ...]
    tree: _Tree

    def __repr__(self) -> str:
        """Say what matters and leave out the numbers."""
        count = len(self.pieces)
        return f"PiecewiseChebyshev(box={self.box}, pieces={count}, error={self.error:.2g})"

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
        """Return the values at equally long float64 vectors, unchecked, piece after piece."""
        piece = self.tree.locate(points)
        order = piece.argsort()
        counts = piece.bincount(minlength=len(self.pieces)).tolist()
        groups = zip(*(torch.split(p[order], counts) for p in points), strict=True)
        grouped = torch.empty_like(points[0])
        for series, out, columns in zip(
            self.pieces, torch.split(grouped, counts), groups, strict=True
        ):
            fill(out, columns, series)
        return torch.empty_like(grouped).index_copy_(0, order, grouped)

    def derivative(self, axis: int) -> "PiecewiseChebyshev":
        """Return the partial derivative along ``axis``, piece by piece; see `Chebyshev`."""
        return replace(self, pieces=tuple(piece.derivative(axis) for piece in self.pieces))

    @cached_property
    def gradient(self) -> tuple["PiecewiseChebyshev", ...]:
        """The derivatives along all axes, made once."""
        return tuple(self.derivative(axis) for axis in range(len(self.box)))

    def compress(self, tolerance: float) -> "PiecewiseChebyshev":
        """Return the pieces at low rank; see `Chebyshev.compress`."""
        return replace(self, pieces=tuple(piece.compress(tolerance) for piece in self.pieces))


def fit_piecewise(
    function: Function,
    box: Sequence[Sequence[float]],
    *,
    tolerance: float,
    max_degree: int | Sequence[int] | None = None,
    max_pieces: int = 256,
    breaks: Sequence[Sequence[float]] | None = None,
    sampler: str = "tensor",
    device: torch.device | str = "cpu",
) -> PiecewiseChebyshev:
    """Return Chebyshev series within ``tolerance`` on pieces of a box.

    A piece that one series does not meet is halved along the axis to blame. The function is
    sampled just inside of each cut, so that it may jump there.

    Args:
        function: See `fit`.
        box: See `fit`.
        tolerance: Largest error, absolute.
        max_degree: Largest degree within a piece, for all axes or for each.
        max_pieces: Largest number of pieces.
        breaks: Per axis, places of known kinks and jumps, to cut at first.
        sampler: See `fit`.
        device: See `fit`.

    Raises:
        AccuracyError: The pieces run out, or rounding stands in the way; with the place.

    Example:
        >>> root = fit_piecewise(torch.sqrt, ((0.0, 1.0),), tolerance=1e-6)
        >>> bool((root(0.25) - 0.5).abs() <= root.error)
        True
    """
    box = checked_box(box)
    tolerance = checks.real("tolerance", tolerance, above=0.0)
    max_pieces = checks.integer("max_pieces", max_pieces, at_least=1)
    degrees = checked_degrees(max_degree, len(box), DEFAULT_MAX_DEGREE)
    known = _checked_breaks(breaks, box)
    values = sampled_function(function, sampler)
    growth = _Growth()
    todo = [(0, box)]
    while todo:
        node, cell = todo.pop()
        cut = _known_cut(cell, known)
        if cut is None:
            inside = _one_sided(values, cell, box)
            outcome = attempt(inside, cell, tolerance=tolerance, max_degrees=degrees, device=device)
            if isinstance(outcome, Fit):
                growth.leaf(node, outcome.series())
                continue
            cut = _halving(outcome, full=growth.leaves >= max_pieces)
        todo += growth.cut_at(node, cell, *cut)
    return PiecewiseChebyshev(box, tuple(growth.pieces), growth.tree())


class _Growth:
    """The tree while it grows, and the pieces found so far."""

    def __init__(self) -> None:
        """Start with the root as a leaf."""
        self.axis, self.cut, self.child, self.piece = [0], [math.inf], [0], [0]
        self.pieces: list[Chebyshev] = []

    @property
    def leaves(self) -> int:
        """Number of leaves, whether they hold a piece yet or not."""
        return (len(self.axis) + 1) // 2

    def leaf(self, node: int, series: Chebyshev) -> None:
        """Put the next piece at a leaf."""
        self.piece[node] = len(self.pieces)
        self.pieces.append(series)

    def cut_at(self, node: int, cell: Box, axis: int, place: float) -> list[tuple[int, Box]]:
        """Cut a leaf in two, and return the two with their boxes."""
        left = len(self.axis)
        self.axis[node], self.cut[node], self.child[node] = axis, place, left
        for child in (left, left + 1):
            self.axis.append(0)
            self.cut.append(math.inf)
            self.child.append(child)
            self.piece.append(0)
        low, high = cell[axis]
        halves = [(*cell[:axis], ends, *cell[axis + 1 :]) for ends in ((low, place), (place, high))]
        return [(left, halves[0]), (left + 1, halves[1])]

    def tree(self) -> _Tree:
        """Return the finished tree."""
        cut = torch.tensor(self.cut, dtype=torch.float64)
        axis, child, piece = (torch.tensor(t) for t in (self.axis, self.child, self.piece))
        return _Tree(axis, cut, child, piece)


def _known_cut(cell: Box, breaks: Sequence[Sequence[float]]) -> tuple[int, float] | None:
    """Return the axis and place of the middle one of the breaks inside a cell, if any."""
    for axis, ((low, high), places) in enumerate(zip(cell, breaks, strict=True)):
        inside = [place for place in places if low < place < high]
        if inside:
            return axis, inside[len(inside) // 2]
    return None


def _halving(shortfall: Shortfall, *, full: bool) -> tuple[int, float]:
    """Return where to halve a cell, or raise if that is no use or not allowed."""
    axis = shortfall.axis
    low, high = shortfall.box[axis]
    if shortfall.cause == "rounding":
        raise AccuracyError(shortfall.message)
    place = (low + high) / 2
    resolution = 64 * torch.finfo(torch.float64).eps * max(abs(low), abs(high))
    if full or high - low <= resolution:
        why = "max_pieces are used up" if full else "the cell cannot be halved again"
        centre = tuple((low + high) / 2 for low, high in shortfall.box)
        raise AccuracyError(
            f"{why} near {centre}, where the error is still {shortfall.error:.2g}, above the "
            f"tolerance {shortfall.tolerance:.2g}; name kinks, jumps and singularities there in "
            f"breaks, raise max_pieces, or ask for a larger tolerance"
        )
    return axis, place


def _one_sided(function: Function, cell: Box, box: Box) -> Function:
    """Return the function with nodes on a cut moved inside by one unit in the last place."""
    ends = [
        (
            low if low == bottom else math.nextafter(low, math.inf),
            high if high == top else math.nextafter(high, -math.inf),
        )
        for (low, high), (bottom, top) in zip(cell, box, strict=True)
    ]

    def inside(*nodes: Tensor) -> Tensor:
        return function(*(x.clamp(*pair) for x, pair in zip(nodes, ends, strict=True)))

    return inside


def _checked_breaks(
    breaks: Sequence[Sequence[float]] | None, box: Box
) -> tuple[tuple[float, ...], ...]:
    """Return the breaks per axis, ascending, or say which is not inside the box."""
    if breaks is None:
        return ((),) * len(box)
    breaks = [checks.items("breaks", places) for places in checks.items("breaks", breaks)]
    if len(breaks) != len(box):
        raise ValueError(f"breaks must be given for {len(box)} axes, got {len(breaks)}")
    return tuple(
        tuple(
            sorted(
                checks.real(f"breaks[{axis}][{i}]", place, above=low, below=high)
                for i, place in enumerate(places)
            )
        )
        for axis, (places, (low, high)) in enumerate(zip(breaks, box, strict=True))
    )
