r"""Blocks of a kernel matrix by compiled loops on the threads of a CPU, with Numba.

Every entry is a series in the cosine, or in the angle where that is much shorter, in the nearest
cache. Of different norms, columns are taken in the order of these: those of a tile have nearly the
same norm, so that a few combinations of the functions $f_s$ tell them apart, each of which needs a
short series. What is left out of both is bounded for every entry, by ``CUT`` of the diagonal in
all.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.caches import cached
from shoal.kernels.approximations.surface import Span, Surface
from shoal.kernels.approximations.typical_angles import GRID
from shoal.kernels.backends.block import (
    Adjoint,
    Block,
    DifferentiableBlock,
    DifferentiableFactors,
    EvaluatedBlock,
    Factors,
)
from shoal.kernels.backends.blocks import CUT, Blocks, Pair, evaluated, extremes, first_order
from shoal.kernels.backends.compiled_loops import WIDTH, compiled_loops

Array = NDArray[Any]

_UNROLLED = 4  # terms of a series that are added at once
_SAMPLED = 8  # of so many columns of a tile one says which combinations matter
_NUMBERS = 1 << 17  # coefficients that stay in the cache
_ROWS = 8  # least rows of a thread
_LARGE = 1 << 16  # entries of a block that pay for series of their own angles


class Loops(Blocks):
    """The back end of CPUs that have Numba; derivatives are those of blocks."""

    takes_threads = True

    def evaluate(self, block: Block, out: Pair, mirrored: Pair | None = None) -> EvaluatedBlock:  # noqa: ARG002
        """Write both kernels of a block into ``out``, whose rows are contiguous."""
        surface, rows, columns, cosine = block
        cut, seen = CUT[cosine.dtype], extremes(cosine)
        if cosine.numel() >= _LARGE:
            surface = surface.restricted(_occurring(surface, seen), cut)
        variable, core = _variable(surface, cut)
        loops, strides = compiled_loops(cosine.numpy().dtype), [matrix.stride(0) for matrix in out]
        row_scale, scale = (f.scale.double().contiguous().numpy() for f in (rows, columns))
        if surface.rank == 1:
            loop, series = loops.evaluate_series, np.ascontiguousarray(core[:, 0, 0].T)
        else:
            loop, tiles = loops.evaluate_tiles, _Tiles.of(core, rows, columns, cut)
            scale = tiles.scale
        step = len(cosine) if surface.rank == 1 else tiles.rows_at_once

        def some(start: int, stop: int) -> None:
            for begin in range(start, stop, step):
                part = slice(begin, min(begin + step, stop))
                form = (series,) if surface.rank == 1 else tiles.of_rows(part)
                scales = np.ascontiguousarray(row_scale[:, part]), scale
                results = (_span(matrix[part]) for matrix in out)
                loop(cosine[part].numpy(), *variable, *form, *scales, *results, *strides)

        in_threads(some, len(cosine))
        return evaluated(block.surface, seen)

    def adjoint(self, block: DifferentiableBlock, upstream: Tensor) -> Adjoint:
        """Gradients of cosines and norms of a block, given those of both kernels, (2, n, m)."""
        turning, ck = torch.zeros_like(block.cosine), None
        left, rights = np.zeros(len(turning)), {}
        if block.surface.radial is None:
            ck = turning.new_empty(2, *turning.shape)
            gradients = _row_gradients(block, upstream, ck.numpy())
        else:
            gradients = _series_gradients(block, upstream)

        def some(start: int, stop: int) -> None:
            part, right = slice(start, stop), np.zeros(turning.shape[1])
            gradients(part, turning.numpy()[part], left[part], right)
            rights[start] = right

        in_threads(some, len(turning))
        right = sum(part for _, part in sorted(rights.items()))  # whichever thread was first
        return Adjoint(turning, torch.from_numpy(left), torch.from_numpy(right), ck)

    def mirror(self, matrix: Tensor, rows: slice) -> None:
        """Copy what a strip of rows of a square matrix has above the diagonal to below it."""
        array, first = matrix.numpy(), rows.start
        mirror = compiled_loops(array.dtype).mirror_columns

        def some(start: int, stop: int) -> None:
            mirror(array, first, rows.stop, first + start, first + stop)

        in_threads(some, len(array) - first)


_Gradients = Callable[[slice, Array, Array, Array], None]  # of rows, added to three sums


def _series_gradients(block: DifferentiableBlock, upstream: Tensor) -> _Gradients:
    """Gradients at inputs of one norm, in one pass over both kernels."""
    surface, rows, columns, cosine = block
    variable, series = _slopes(surface, CUT[cosine.dtype])
    loop = compiled_loops(cosine.numpy().dtype).adjoint_series
    left, right = (f.values[..., 0].double().contiguous().numpy() for f in (rows, columns))

    def gradients(part: slice, *sums: Array) -> None:
        given = (t.numpy()[part] for t in (cosine, *upstream))
        loop(*given, *variable, series, np.ascontiguousarray(left[:, part]), right, *sums)

    return gradients


def _row_gradients(block: DifferentiableBlock, upstream: Tensor, ck: Array) -> _Gradients:
    """Gradients at inputs of different norms, kernel by kernel; the CK comes last, and remains."""
    surface, rows, columns, cosine = block
    low, high = surface.angles
    cosines = cosine.numpy()
    loop = compiled_loops(cosines.dtype).adjoint_rows
    kernels = (1, 0) if bool(upstream[1].any()) else (0,)
    forms = [_in_fours(surface, rows, q, CUT[cosine.dtype]) for q in kernels]
    factors = [
        [np.ascontiguousarray(t[q].double().numpy().T) for t in (columns.values, columns.slopes)]
        for q in kernels
    ]

    def gradients(part: slice, turning: Array, left: Array, right: Array) -> None:
        for q, (series, terms), both in zip(kernels, forms, factors, strict=True):
            loop(
                cosines[part], upstream[q].numpy()[part], (low + high) / 2, 2 / (high - low),
                series[part], terms, *both, turning, *ck[:, part], left, right,
            )  # fmt: skip

    return gradients


def in_threads(work: Callable[[int, int], None], count: int) -> None:
    """Do work on so many rows, some of them in each of torch's threads."""
    threads = max(1, min(torch.get_num_threads(), count // _ROWS))
    ends = [count * k // threads for k in range(threads + 1)]
    if threads == 1:
        work(0, count)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, *pair) for pair in pairwise(ends)]:
            done.result()


@cached
def _variable(surface: Surface, cut: float) -> tuple[tuple[bool, float, float], Array]:
    """Whether series are in the angle, the middle and 2 / width of its range, and their core."""
    return _range(surface, surface.in_cosines(cut), surface.coefficients)


@cached
def _slopes(surface: Surface, cut: float) -> tuple[tuple[bool, float, float], Array]:
    """The same of derivatives at one norm: in the norm, and in the variable. shape: (terms, 4)."""
    _, radial, around = first_order(surface)[:, :, 0, 0]
    found, series = _range(surface, surface.slopes_in_cosines(cut), torch.cat([radial, around]))
    return found, np.ascontiguousarray(series.T)


def _range(
    surface: Surface, in_cosines: Tensor | None, in_angles: Tensor
) -> tuple[tuple[bool, float, float], Array]:
    """Which of two series is taken, and where it is."""
    low, high = surface.angles
    if in_cosines is not None:
        low, high = math.cos(high), math.cos(low)
    chosen = in_angles if in_cosines is None else in_cosines
    place = in_cosines is None, (low + high) / 2, 2 / (high - low)
    return place, _padded_terms(chosen.numpy())


def _occurring(surface: Surface, cosines: Span) -> Span:
    """Those of the angles that a surface knows which occur, rounded outwards."""
    least, most = (min(max(end, -1.0), 1.0) for end in cosines)
    low, high = math.floor(math.acos(most) * GRID) / GRID, math.ceil(math.acos(least) * GRID) / GRID
    low, high = max(low, surface.angles[0]), min(high, surface.angles[1])
    return (low, high) if low < high else surface.angles


def _span(matrix: Tensor) -> Array:
    """The numbers of a matrix with contiguous rows, and what lies between these. shape: (k,)."""
    rows, columns = matrix.shape
    return matrix.as_strided(((rows - 1) * matrix.stride(0) + columns,), (1,)).numpy()


class _Tiles(NamedTuple):
    """Columns in the order of their norms, in tiles, and what tells those of a tile apart.

    Attributes:
        order: The columns. shape: (m,)
        features: Functions of the norms of the rows. shape: (n, rank)
        series: What each of these adds to the coefficients of a few combinations of functions of
            the columns' norms, for both kernels in turn. shape: (rank, tiles * few * terms * 2)
        terms: How many coefficients each combination needs, zero for none. shape: (tiles, few)
        weights: The combinations at each column, in order. shape: (few, m)
        scale: Roots of the diagonals, in order. shape: (2, m)
    """

    order: Array
    features: Tensor
    series: Tensor
    terms: Array
    weights: Array
    scale: Array

    @classmethod
    def of(cls, core: Array, rows: Factors, columns: Factors, cut: float) -> "_Tiles":
        """The tiles of a block.

        Args:
            core: The coefficients of a surface. shape: (2, rank, rank, terms)
            rows: What the rows contribute.
            columns: What the columns contribute.
            cut: What may be left out of an entry in all: a half by combinations that are left out,
                a half by short series.
        """
        left, right = rows.features.double().numpy(), columns.features.double().numpy()
        scale = columns.scale.double().numpy()
        count, rank = right.shape
        order = np.argsort(scale[0])
        filled = np.append(order, np.repeat(order[-1:], -count % WIDTH)).reshape(-1, WIDTH)
        bound = np.einsum("r,qrsk->qs", np.abs(left).max(0), np.abs(core)).max(0)
        bound = np.where(bound > 0, bound, 1.0)
        features = right[filled] * bound  # shape: (tiles, width, rank)
        basis = np.linalg.svd(features[:, ::_SAMPLED])[2]
        weights = features @ basis.transpose(0, 2, 1)
        rest = np.sqrt(np.square(weights)[..., ::-1].cumsum(-1)[..., ::-1].max(1) * rank)
        needed = np.maximum((rest > cut / 2).sum(1), 1)[:, None]
        few = needed.max()
        series = np.tensordot(basis[:, :few] / bound, core, (2, 2))  # (tiles, few, 2, rank, terms)
        most = np.einsum("r,tlqrk->tlqk", np.abs(left).max(0), np.abs(series)).max(2)
        most *= np.abs(weights).max(1)[:, :few, None]
        terms = _even((most[..., ::-1].cumsum(-1)[..., ::-1] > cut / 2 / needed[..., None]).sum(-1))
        terms = np.where(np.arange(few) < needed, terms, 0)
        series = series[..., : terms.max()].transpose(3, 0, 1, 4, 2).reshape(rank, -1)
        weights = weights.transpose(2, 0, 1).reshape(rank, -1)[:few, :count]
        products = torch.from_numpy(left), torch.from_numpy(series)
        others = (np.ascontiguousarray(part) for part in (terms, weights, scale[:, order]))
        return cls(order.astype(np.uint32), *products, *others)

    @property
    def rows_at_once(self) -> int:
        """How many rows have their series formed together."""
        return max(1, _NUMBERS // self.series.shape[1])

    def of_rows(self, part: slice) -> tuple[Array, ...]:
        """What loops over some rows take, with the series of these."""
        series = (self.features[part] @ self.series).view(-1, *self.terms.shape, 2 * self.length)
        return self.order, series.numpy(), self.terms, self.weights

    @property
    def length(self) -> int:
        """The number of terms of the longest series."""
        return self.series.shape[1] // self.terms.size // 2


def _in_fours(
    surface: Surface, rows: DifferentiableFactors, kernel: int, cut: float
) -> tuple[Array, Array]:
    """The series of rows that one kernel's gradients need, and how many terms of them matter.

    Args:
        surface: Both kernels.
        rows: What the rows contribute.
        kernel: Which of the kernels.
        cut: What may be left out, relative to the largest coefficient.

    Returns:
        Three series, four terms of each in turn, of shape (n, rank, 3 * terms), and numbers of
        terms, of shape (rank,).
    """
    core = _fours(surface)[kernel]
    left = torch.cat([rows.values[kernel], rows.slopes[kernel]], 1).double()
    most = (left.abs().amax(0) @ core.abs()).view(surface.rank, -1, 3, _UNROLLED)
    size = most.amax(2).flatten(1).numpy()  # shape: (rank, terms)
    terms = _even((size[:, ::-1].cumsum(1)[:, ::-1] > cut * size.max()).sum(1))
    return (left @ core).view(len(left), surface.rank, -1).numpy(), terms


@cached
def _fours(surface: Surface) -> Tensor:
    """What values and slopes of rows contribute to three series, four terms of each in turn.

    The series are those against the columns' slopes, against their values, and in the angle. shape:
    (2, 2 * rank, rank * 3 * terms)
    """
    values, in_norm, around = torch.from_numpy(_padded_terms(first_order(surface).numpy()))
    nothing = torch.zeros_like(values)
    sides = torch.stack([values, nothing, around, nothing, in_norm, nothing])
    # by side, series, kernel, function of the row's norm, of the column's, four terms, term
    fours = sides.unflatten(0, (2, 3)).unflatten(-1, (-1, _UNROLLED))
    found: Tensor = fours.permute(2, 0, 3, 4, 5, 1, 6).flatten(3).flatten(1, 2).contiguous()
    return found


def _padded_terms(coefficients: Array) -> Array:
    """A series with zeros added, up to a number of terms that can be unrolled."""
    terms = coefficients.shape[-1]
    more = int(_even(np.array(terms))) - terms
    return np.pad(coefficients, [(0, 0)] * (coefficients.ndim - 1) + [(0, more)])


def _even(terms: Array) -> Array:
    """Numbers of terms that can be unrolled."""
    found: Array = -(-terms // _UNROLLED) * _UNROLLED
    return found
