"""The loops over entries of a kernel matrix, which Numba compiles.

The first call on a machine compiles for a few seconds; what comes out is kept on disk.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import float64, int64, void
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray

__all__ = ["MATH", "CompiledLoops", "Loop", "arc_cosine", "compiled", "compiled_loops"]

Array = NDArray[Any]
Loop = Callable[..., None]

MATH = {"contract", "nsz"}  # a*b + c in one rounding; nothing else is rearranged
_WIDTH = 256  # columns whose basis stays in the nearest cache
_SIDE = 32  # rows and columns that are transposed at once


class CompiledLoops(NamedTuple):
    """The loops for matrices of one dtype, of any strides."""

    evaluate_rows: Loop
    adjoint_rows: Loop
    mirror_columns: Loop


@lru_cache(maxsize=2)
def compiled_loops(dtype: np.dtype[Any]) -> CompiledLoops:
    """Compile the loops for matrices of a dtype, or load them."""
    matrix = numba.from_dtype(dtype)[:, :]
    indices, numbers = int64[::1], float64[:, ::1]
    ends, tiles = (float64, float64), (indices, indices, float64[:, :, :, ::1])
    mixed = (float64[:, :, ::1], int64[:, ::1], numbers)
    rows = void(matrix, *ends, *tiles, *mixed, numbers, numbers, matrix, matrix)
    factors = float64[:, :, ::1]
    adjoint = void(
        matrix, numba.from_dtype(dtype)[:, :, :], *ends, float64[:, :, :, ::1], indices,
        factors, factors, matrix, float64[::1], float64[::1],
    )  # fmt: skip
    columns = void(matrix, int64, int64, int64, int64)
    return CompiledLoops(
        compiled(rows, _evaluate_rows),
        compiled(adjoint, _adjoint_rows),
        compiled(columns, _mirror_columns),
    )


def compiled(signature: Any, function: Loop) -> Loop:
    """Compile, with the result kept on disk, or in memory where no folder can be written to."""
    for cache in (True, False):
        try:
            found: Loop = numba.njit(signature, nogil=True, fastmath=MATH, cache=cache)(function)
        except RuntimeError:
            if not cache:
                raise
        else:
            return found
    raise AssertionError


def _excess(z: Array) -> Array:
    r"""$(\arcsin(s)/s - 1)/z$ for $z = s^2 \le 1/4$, by its power series."""
    total = np.zeros_like(z)
    for n in range(60, 0, -1):
        total = total * z + math.comb(2 * n, n) / 4**n / (2 * n + 1)
    return total


_EXCESS = tuple(
    Chebyshev.interpolate(_excess, 13, domain=[0, 0.25]).convert(kind=Polynomial).coef.tolist()
)


@numba.njit(inline="always", fastmath=MATH)
def arc_cosine(c: float) -> float:
    """The arc cosine to two units in the last place, without branches: loops vectorize."""
    a = min(abs(c), 1.0)
    far = a > 0.5
    z = (1.0 - a) * 0.5 if far else a * a
    s = math.sqrt(z)
    p: float = _EXCESS[13]
    for k in range(12, -1, -1):
        p = p * z + _EXCESS[k]
    w = s + s * z * p
    angle = 2.0 * w if far else math.pi / 2 - w
    return angle if c >= 0 else math.pi - angle


def _evaluate_rows(
    cosine: Array,
    middle: float,
    inverse_half_width: float,
    order: Array,
    starts: Array,
    series: Array,
    mixing: Array,
    terms: Array,
    weights: Array,
    row_scale: Array,
    column_scale: Array,
    ck: Array,
    ntk: Array,
) -> None:
    """Write both kernels of some rows; arguments are those of tiles of columns."""
    _, most, rank = mixing.shape
    length = series.shape[2]
    widest = 0
    for tile in range(len(starts) - 1):
        widest = max(widest, starts[tile + 1] - starts[tile])
    basis, local = np.empty((length, widest)), np.empty((length, 2))
    a, b = np.empty(widest), np.empty(widest)
    first, second = np.empty(widest), np.empty(widest)
    for i in range(cosine.shape[0]):
        own = series[i % series.shape[0]]
        for tile in range(len(starts) - 1):
            start, width = starts[tile], starts[tile + 1] - starts[tile]
            columns = order[start : start + width]
            for j in range(width):
                first[j] = cosine[i, columns[j]]
            longest = terms[tile].max()
            for j in range(width):
                t = (arc_cosine(first[j]) - middle) * inverse_half_width
                basis[0, j] = 1.0
                basis[1, j] = min(max(t, -1.0), 1.0)
                first[j] = 0.0
                second[j] = 0.0
            for k in range(2, longest):
                for j in range(width):
                    basis[k, j] = 2 * basis[1, j] * basis[k - 1, j] - basis[k - 2, j]
            for combination in range(most):
                count = terms[tile, combination]
                if count == 0:
                    continue
                for k in range(count):
                    local[k, 0] = 0.0
                    local[k, 1] = 0.0
                for s in range(rank):
                    factor = mixing[tile, combination, s]
                    for k in range(count):
                        local[k, 0] += factor * own[s, k, 0]
                        local[k, 1] += factor * own[s, k, 1]
                for j in range(width):
                    a[j] = 0.0
                    b[j] = 0.0
                for k in range(0, count, 4):
                    p0, p1, p2, p3 = local[k, 0], local[k + 1, 0], local[k + 2, 0], local[k + 3, 0]
                    q0, q1, q2, q3 = local[k, 1], local[k + 1, 1], local[k + 2, 1], local[k + 3, 1]
                    for j in range(width):
                        t0, t1 = basis[k, j], basis[k + 1, j]
                        t2, t3 = basis[k + 2, j], basis[k + 3, j]
                        a[j] += p0 * t0 + p1 * t1 + p2 * t2 + p3 * t3
                        b[j] += q0 * t0 + q1 * t1 + q2 * t2 + q3 * t3
                for j in range(width):
                    weight = weights[combination, start + j]
                    first[j] += a[j] * weight
                    second[j] += b[j] * weight
            left, right = row_scale[0, i], row_scale[1, i]
            for j in range(width):
                ck[i, columns[j]] = first[j] * (left * column_scale[0, start + j])
                ntk[i, columns[j]] = second[j] * (right * column_scale[1, start + j])


def _adjoint_rows(
    cosine: Array,
    upstream: Array,
    middle: float,
    inverse_half_width: float,
    series: Array,
    terms: Array,
    values: Array,
    slopes: Array,
    turning: Array,
    in_left: Array,
    in_right: Array,
) -> None:
    """Gradients of cosines and norms, given those of both kernels of some rows.

    Args:
        cosine: The cosines. shape: (n, m)
        upstream: The gradients of both kernels. shape: (2, n, m)
        middle: The middle of the range of angles.
        inverse_half_width: One over half of its width.
        series: Of the rows, for the columns' slopes, the rows' slopes and the derivative in the
            angle, of both kernels each. shape: (n, rank, terms, 6)
        terms: How many of them matter. shape: (rank,)
        values: What the columns contribute. shape: (2, rank, m)
        slopes: Its derivative in the logarithms of the norms. shape: (2, rank, m)
        turning: Where the gradients of the cosines go. shape: (n, m)
        in_left: To which those of the rows' norms are added. shape: (n,)
        in_right: To which those of the columns' norms are added. shape: (m,)
    """
    length, size = series.shape[2], cosine.shape[1]
    basis, sums = np.empty((length, _WIDTH)), np.empty((6, _WIDTH))
    first, second, total = np.empty(_WIDTH), np.empty(_WIDTH), np.empty(_WIDTH)
    for i in range(cosine.shape[0]):
        own = 0.0
        for start in range(0, size, _WIDTH):
            width = min(_WIDTH, size - start)
            for j in range(width):
                t = (arc_cosine(cosine[i, start + j]) - middle) * inverse_half_width
                basis[0, j] = 1.0
                basis[1, j] = min(max(t, -1.0), 1.0)
                total[j] = 0.0
                first[j] = 0.0
                second[j] = 0.0
            for k in range(2, length):
                for j in range(width):
                    basis[k, j] = 2 * basis[1, j] * basis[k - 1, j] - basis[k - 2, j]
            for s in range(values.shape[1]):
                for j in range(width):
                    for d in range(6):
                        sums[d, j] = 0.0
                for k in range(0, terms[s], 2):
                    for d in range(0, 6, 2):
                        p0, p1 = series[i, s, k, d], series[i, s, k + 1, d]
                        q0, q1 = series[i, s, k, d + 1], series[i, s, k + 1, d + 1]
                        for j in range(width):
                            t0, t1 = basis[k, j], basis[k + 1, j]
                            sums[d, j] += p0 * t0 + p1 * t1
                            sums[d + 1, j] += q0 * t0 + q1 * t1
                for j in range(width):
                    ck, ntk = upstream[0, i, start + j], upstream[1, i, start + j]
                    v, w = ck * values[0, s, start + j], ntk * values[1, s, start + j]
                    first[j] += sums[4, j] * v + sums[5, j] * w
                    total[j] += sums[2, j] * v + sums[3, j] * w
                    second[j] += sums[0, j] * ck * slopes[0, s, start + j]
                    second[j] += sums[1, j] * ntk * slopes[1, s, start + j]
            for j in range(width):
                c = cosine[i, start + j]
                turning[i, start + j] = -first[j] / math.sqrt(1.0 - c * c)
                in_right[start + j] += second[j]
                own += total[j]
        in_left[i] += own


def _mirror_columns(matrix: Array, start: int, stop: int, begin: int, end: int) -> None:
    """Copy rows ``start`` to ``stop`` of a square matrix, right of the diagonal, to some columns.

    That is, from columns ``begin`` to ``end`` above the diagonal to the rows of these below it.
    """
    for j0 in range(begin, end, _SIDE):
        j1 = min(j0 + _SIDE, end)
        for i0 in range(start, min(stop, j1), _SIDE):
            i1 = min(i0 + _SIDE, stop)
            for j in range(j0, j1):
                for i in range(i0, min(i1, j)):
                    matrix[j, i] = matrix[i, j]
