r"""Blocks of a kernel matrix by compiled loops on the threads of a CPU, with Numba.

Every entry is one gather, one arc cosine and a few products, all in the nearest cache. Columns are
taken in the order of their norms: those of a tile have nearly the same norm, so that a few
combinations of the functions $f_s$ tell them apart, each of which needs a short series in the
angle. What is left out of both is bounded for every entry, by ``_CUT`` of the diagonal in all.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.kernels.backends.block import Adjoint, Block, DifferentiableBlock, Factors
from shoal.kernels.backends.blocks import Blocks, Pair, adjoint_series
from shoal.kernels.backends.compiled_loops import compiled_loops
from shoal.kernels.surface import Surface

__all__ = ["Loops", "in_threads"]

Array = NDArray[Any]

_TILE = 256  # columns whose basis stays in the nearest cache
_CUT = {torch.float64: 2e-12, torch.float32: 1e-9}  # what tiles may leave out, of the diagonal
_UNROLLED = 4  # terms of a series that are added at once
_ROWS = 8  # least rows of a thread


class Loops(Blocks):
    """The back end of CPUs that have Numba; derivatives are those of blocks."""

    takes_threads = True

    def evaluate(self, block: Block, out: Pair) -> None:
        """Write both kernels of a block into ``out``."""
        surface, rows, columns, cosine = block
        tiles = _Tiles.of(surface, rows, columns)
        low, high = surface.angles
        row_scale, cosines = rows.scale.double().numpy(), cosine.numpy()
        ck, ntk = (matrix.numpy() for matrix in out)
        evaluate = compiled_loops(cosines.dtype).evaluate_rows

        def some(start: int, stop: int) -> None:
            part = slice(start, stop)
            series = tiles.series if len(tiles.series) == 1 else tiles.series[part]
            scale = np.ascontiguousarray(row_scale[:, part])
            evaluate(
                cosines[part], (low + high) / 2, 2 / (high - low), tiles.order, tiles.starts,
                series, tiles.mixing, tiles.terms, tiles.weights, scale, tiles.scale, ck[part],
                ntk[part],
            )  # fmt: skip

        in_threads(some, len(cosines))

    def adjoint(self, block: DifferentiableBlock, upstream: Tensor) -> Adjoint:
        """Gradients of cosines and norms of a block, given those of both kernels, (2, n, m)."""
        surface, rows, columns, cosine = block
        low, high = surface.angles
        series = _padded_terms(adjoint_series(surface, rows).double().numpy())
        size = np.abs(series).max((0, 1, 2))  # shape: (rank, terms)
        few = _CUT[cosine.dtype] / 10 * size.max()
        terms = _even((size[:, ::-1].cumsum(1)[:, ::-1] > few).sum(1))
        series = series.transpose(2, 3, 4, 0, 1).reshape(len(cosine), *size.shape, 6)
        series = np.ascontiguousarray(series)  # of one row, rank or term, it is a view
        factors = [
            np.ascontiguousarray(t.double().numpy().transpose(0, 2, 1))
            for t in (columns.values, columns.slopes)
        ]
        cosines, gradients = cosine.numpy(), upstream.numpy()
        turning, left = torch.empty_like(cosine), np.zeros(len(cosine))
        rights: list[Array] = []
        adjoint = compiled_loops(cosines.dtype).adjoint_rows

        def some(start: int, stop: int) -> None:
            part, right = slice(start, stop), np.zeros(cosines.shape[1])
            adjoint(
                cosines[part], gradients[:, part], (low + high) / 2, 2 / (high - low),
                series[part], terms, *factors, turning.numpy()[part], left[part], right,
            )  # fmt: skip
            rights.append(right)

        in_threads(some, len(cosines))
        return Adjoint(turning, torch.from_numpy(left), torch.from_numpy(sum(rights)))

    def mirror(self, matrix: Tensor, rows: slice) -> None:
        """Copy what a strip of rows of a square matrix has above the diagonal to below it."""
        array, first = matrix.numpy(), rows.start
        mirror = compiled_loops(array.dtype).mirror_columns

        def some(start: int, stop: int) -> None:
            mirror(array, first, rows.stop, first + start, first + stop)

        in_threads(some, len(array) - first)


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


class _Tiles(NamedTuple):
    """Columns in the order of their norms, in tiles, and what tells those of a tile apart.

    Attributes:
        order: The columns. shape: (m,)
        starts: Where tiles begin, and the end. shape: (tiles + 1,)
        series: Coefficients in the angle; one row if all are the same. shape: (n, rank, terms, 2)
        mixing: Combinations of the functions of a norm. shape: (tiles, most, rank)
        terms: How many coefficients each combination needs, zero for none. shape: (tiles, most)
        weights: The combinations at each column, in order. shape: (most, m)
        scale: Roots of the diagonals, in order. shape: (2, m)
    """

    order: Array
    starts: Array
    series: Array
    mixing: Array
    terms: Array
    weights: Array
    scale: Array

    @classmethod
    def of(cls, surface: Surface, rows: Factors, columns: Factors) -> "_Tiles":
        """Those of a block, for which no column matters where there is one function of a norm."""
        features, scale = columns.features.double().numpy(), columns.scale.double().numpy()
        count, rank = features.shape
        left = rows.features.double().numpy() if rank > 1 else np.ones((1, 1))
        core = _padded_terms(surface.coefficients.numpy())
        order = np.argsort(scale[0]) if rank > 1 else np.arange(count)
        starts = np.arange(0, count, _TILE)
        ends = np.append(starts[1:], count)
        cutter = _Cutter(core, np.abs(left).max(0), _CUT[rows.scale.dtype])
        mixing = np.zeros((len(starts), rank, rank))
        terms = np.zeros((len(starts), rank), np.int64)
        weights = np.zeros((rank, count))
        for tile, (start, end) in enumerate(zip(starts, ends, strict=True)):
            few, size = cutter.combinations(features[order[start:end]])
            mixing[tile, : len(few)] = few
            terms[tile, : len(few)] = cutter.terms(few, np.abs(size).max(1))
            weights[: len(few), start:end] = size
        series = np.einsum("nr,qrsk->nskq", left, core, optimize=True)
        series, scale = np.ascontiguousarray(series), np.ascontiguousarray(scale[:, order])
        return cls(order, np.append(starts, count), series, mixing, terms, weights, scale)


class _Cutter(NamedTuple):
    """What may be left out of a surface.

    Attributes:
        core: Its coefficients. shape: (2, rank, rank, terms)
        largest: The largest value of each function at the norms of the rows. shape: (rank,)
        cut: What may be left out of an entry in all: a half by either function.
    """

    core: Array
    largest: Array
    cut: float

    def combinations(self, features: Array) -> tuple[Array, Array]:
        """Few combinations of the functions, and their values at columns, which tell these apart.

        Args:
            features: The functions at the columns. shape: (m, rank)

        Returns:
            Tensors of shapes (few, rank) and (few, m).
        """
        if features.shape[1] == 1:
            return np.ones((1, 1)), features.T
        bound = np.einsum("r,qrsk->qs", self.largest, np.abs(self.core)).max(0)
        columns, singular, basis = np.linalg.svd(features, full_matrices=False)
        rest = np.sqrt(np.square(singular[::-1]).cumsum())[::-1]
        few = max(1, int((rest * np.linalg.norm(bound) > self.cut / 2).sum()))
        return basis[:few], (columns[:, :few] * singular[:few]).T

    def terms(self, combinations: Array, size: Array) -> Array:
        """How many terms each combination needs, given its largest value at columns."""
        series = np.einsum("ls,qrsk->qrlk", combinations, self.core)
        bound = np.einsum("r,qrlk->lk", self.largest, np.abs(series)) * size[:, None]
        rest = bound[:, ::-1].cumsum(1)[:, ::-1]
        return _even((rest > self.cut / 2 / len(combinations)).sum(1))


def _padded_terms(coefficients: Array) -> Array:
    """The same series with a number of terms that can be unrolled."""
    terms = coefficients.shape[-1]
    more = int(_even(np.array(terms))) - terms
    return np.pad(coefficients, [(0, 0)] * (coefficients.ndim - 1) + [(0, more)])


def _even(terms: Array) -> Array:
    """Numbers of terms that can be unrolled."""
    found: Array = -(-terms // _UNROLLED) * _UNROLLED
    return found
