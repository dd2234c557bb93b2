"""The loops over entries of a kernel matrix, which Numba compiles.

The first call on a machine compiles for a few seconds; what comes out is kept on disk.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import boolean, float64, int64, uint32, void
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray

Array = NDArray[Any]
Loop = Callable[..., None]

MATH = {"contract", "nsz"}  # a*b + c in one rounding; nothing else is rearranged
WIDTH = 256  # columns that are taken together, in the nearest cache
_SIDE = 32  # rows and columns that are transposed at once


class CompiledLoops(NamedTuple):
    """The loops for matrices of one dtype."""

    evaluate_series: Loop
    evaluate_tiles: Loop
    adjoint_series: Loop
    adjoint_rows: Loop
    mirror_columns: Loop


@lru_cache(maxsize=2)
def compiled_loops(dtype: np.dtype[Any]) -> CompiledLoops:
    """Compile the loops for matrices of a dtype, or load them."""
    scalar = numba.from_dtype(dtype)
    matrix, indices, numbers = scalar[:, :], int64[::1], float64[:, ::1]
    points = (scalar[:, ::1], boolean, float64, float64)
    scales = (numbers, numbers, scalar[::1], scalar[::1], int64, int64)
    series = void(*points, numbers, *scales)
    tiles = (uint32[::1], float64[:, :, :, ::1], int64[:, ::1], numbers)
    adjoint = void(
        matrix, matrix, float64, float64, float64[:, :, ::1], indices, numbers, numbers, matrix,
        matrix, matrix, float64[::1], float64[::1],
    )  # fmt: skip
    sums = (matrix, float64[::1], float64[::1])
    columns = void(matrix, int64, int64, int64, int64)
    return CompiledLoops(
        compiled(series, _evaluate_series),
        compiled(void(*points, *tiles, *scales), _evaluate_tiles),
        compiled(void(matrix, matrix, matrix, *points[1:], *[numbers] * 3, *sums), _adjoint_series),
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


@numba.njit(inline="always", fastmath=MATH)
def _places(cosine: Array, of_angle: bool, middle: float, inverse_half: float, x: Array) -> None:
    """Twice the places in [-1, 1] of cosines, or of their angles, on a range of these."""
    if of_angle:
        for j in range(len(cosine)):
            t = (arc_cosine(cosine[j]) - middle) * inverse_half
            x[j] = 2.0 * min(max(t, -1.0), 1.0)
    else:
        for j in range(len(cosine)):
            x[j] = 2.0 * min(max((cosine[j] - middle) * inverse_half, -1.0), 1.0)


@numba.njit(inline="always", fastmath=MATH)
def _two_series(x: Array, series: Array, count: int, work: Array) -> None:
    """Chebyshev series of both kernels at places x/2, by Clenshaw's recursion, four terms at once.

    Args:
        x: Twice the places. shape: (width,)
        series: The coefficients, of which ``count`` count, a multiple of four. shape: (terms, 2)
        count: How many there are.
        work: Where the values go, and what the recursion remembers. shape: (4, width)
    """
    ck, ck_before, ntk, ntk_before = work[0], work[1], work[2], work[3]
    for j in range(len(x)):
        ck[j], ck_before[j], ntk[j], ntk_before[j] = 0.0, 0.0, 0.0, 0.0
    for k in range(count - 4, -1, -4):
        p0, p1, p2, p3 = series[k, 0], series[k + 1, 0], series[k + 2, 0], series[k + 3, 0]
        q0, q1, q2, q3 = series[k, 1], series[k + 1, 1], series[k + 2, 1], series[k + 3, 1]
        for j in range(len(x)):
            y, u, v = x[j], ck[j], ck_before[j]
            v = (p3 - v) + y * u
            u = (p2 - u) + y * v
            v = (p1 - v) + y * u
            ck[j], ck_before[j] = (p0 - u) + y * v, v
            u, v = ntk[j], ntk_before[j]
            v = (q3 - v) + y * u
            u = (q2 - u) + y * v
            v = (q1 - v) + y * u
            ntk[j], ntk_before[j] = (q0 - u) + y * v, v
    for j in range(len(x)):
        ck[j] -= 0.5 * x[j] * ck_before[j]
        ntk[j] -= 0.5 * x[j] * ntk_before[j]


@numba.njit(inline="always", fastmath=MATH)
def _four_terms(x: Array, work: Array) -> None:
    """The next four Chebyshev polynomials at places x/2, before them the last one and the next."""
    for j in range(len(x)):
        before, t0 = work[3 * WIDTH + j], work[4 * WIDTH + j]
        t1 = x[j] * t0 - before
        t2 = x[j] * t1 - t0
        t3 = x[j] * t2 - t1
        work[j], work[WIDTH + j], work[2 * WIDTH + j] = t0, t1, t2
        work[3 * WIDTH + j], work[4 * WIDTH + j] = t3, x[j] * t3 - t2


@numba.njit(inline="always", fastmath=MATH)
def _first_terms(x: Array, work: Array, sums: int) -> None:
    """What :func:`_four_terms` begins with, the polynomials of degrees -1 and 0; sums are zero."""
    for j in range(len(x)):
        work[3 * WIDTH + j], work[4 * WIDTH + j] = 0.5 * x[j], 1.0
    for j in range(5 * WIDTH, (5 + sums) * WIDTH):
        work[j] = 0.0


def _evaluate_series(
    cosine: Array,
    of_angle: bool,
    middle: float,
    inverse_half: float,
    series: Array,
    row_scale: Array,
    column_scale: Array,
    ck: Array,
    ntk: Array,
    ck_stride: int,
    ntk_stride: int,
) -> None:
    """Write both kernels of some rows, each one series; rows of a result are a stride apart."""
    x, work = np.empty(WIDTH), np.empty((4, WIDTH))
    size = cosine.shape[1]
    for i in range(cosine.shape[0]):
        left, right = row_scale[0, i], row_scale[1, i]
        for start in range(0, size, WIDTH):
            width = min(WIDTH, size - start)
            place, there = i * ck_stride + start, i * ntk_stride + start
            _places(cosine[i, start : start + width], of_angle, middle, inverse_half, x)
            _two_series(x[:width], series, len(series), work)
            own, other = ck[place : place + width], ntk[there : there + width]
            for j in range(width):
                own[j] = work[0, j] * (left * column_scale[0, start + j])
                other[j] = work[2, j] * (right * column_scale[1, start + j])


def _evaluate_tiles(
    cosine: Array,
    of_angle: bool,
    middle: float,
    inverse_half: float,
    order: Array,
    series: Array,
    terms: Array,
    weights: Array,
    row_scale: Array,
    column_scale: Array,
    ck: Array,
    ntk: Array,
    ck_stride: int,
    ntk_stride: int,
) -> None:
    """Both kernels for tiles of columns of nearly one norm, which share a few series."""
    found, x = np.empty(WIDTH), np.empty(WIDTH)
    # in one array, at constant distances, so that the compiler sees that none is another: four
    # terms, the next one, and both sums
    work = np.empty(7 * WIDTH)
    size, (tiles, most) = cosine.shape[1], terms.shape
    for i in range(cosine.shape[0]):
        row, left, right = cosine[i], row_scale[0, i], row_scale[1, i]
        place, there = i * ck_stride, i * ntk_stride
        own, other = ck[place : place + size], ntk[there : there + size]
        for tile in range(tiles):
            start = tile * WIDTH
            width = min(WIDTH, size - start)
            columns = order[start : start + width]
            for j in range(width):
                found[j] = row[columns[j]]
            _places(found[:width], of_angle, middle, inverse_half, x)
            _first_terms(x[:width], work, 2)
            for k in range(0, terms[tile].max(), 4):
                _four_terms(x[:width], work)
                for combination in range(most):
                    if k >= terms[tile, combination]:
                        continue
                    p = series[i, tile, combination, 2 * k : 2 * k + 8]
                    p0, p1, p2, p3 = p[0], p[2], p[4], p[6]
                    q0, q1, q2, q3 = p[1], p[3], p[5], p[7]
                    weight = weights[combination, start : start + width]
                    for j in range(width):
                        t0, t1 = work[j], work[WIDTH + j]
                        t2, t3 = work[2 * WIDTH + j], work[3 * WIDTH + j]
                        work[5 * WIDTH + j] += weight[j] * (p0 * t0 + p1 * t1 + p2 * t2 + p3 * t3)
                        work[6 * WIDTH + j] += weight[j] * (q0 * t0 + q1 * t1 + q2 * t2 + q3 * t3)
            for j in range(width):
                work[5 * WIDTH + j] *= left * column_scale[0, start + j]
                work[6 * WIDTH + j] *= right * column_scale[1, start + j]
            for j in range(width):
                own[columns[j]], other[columns[j]] = work[5 * WIDTH + j], work[6 * WIDTH + j]


def _adjoint_series(
    cosine: Array,
    ck: Array,
    ntk: Array,
    of_angle: bool,
    middle: float,
    inverse_half: float,
    series: Array,
    row_scale: Array,
    column_scale: Array,
    turning: Array,
    in_left: Array,
    in_right: Array,
) -> None:
    """Gradients of cosines and norms at inputs of one norm, given those of both kernels.

    Args:
        cosine: The cosines. shape: (n, m)
        ck: The gradients of the conjugate kernel. shape: (n, m)
        ntk: Those of the neural tangent kernel. shape: (n, m)
        of_angle: Whether series are in the angle.
        middle: The middle of the range of that, or of the cosines.
        inverse_half: One over half of its width.
        series: Derivatives of both kernels in the logarithm of a norm and in the angle, or in the
            cosine, a multiple of four terms. shape: (terms, 4)
        row_scale: Roots of the diagonals of both kernels. shape: (2, n)
        column_scale: Those of the columns. shape: (2, m)
        turning: To which the gradients of the cosines are added. shape: (n, m)
        in_left: To which the gradients of the rows' norms are added. shape: (n,)
        in_right: To which those of the columns' norms are added. shape: (m,)
    """
    x = np.empty(WIDTH)
    work = np.empty(9 * WIDTH)  # as in ``_adjoint_rows``
    size = cosine.shape[1]
    for i in range(cosine.shape[0]):
        own, left, right = 0.0, row_scale[0, i], row_scale[1, i]
        for start in range(0, size, WIDTH):
            width = min(WIDTH, size - start)
            _places(cosine[i, start : start + width], of_angle, middle, inverse_half, x)
            _first_terms(x[:width], work, 4)
            for k in range(0, len(series), 4):
                _four_terms(x[:width], work)
                p0, q0, r0, s0 = series[k, 0], series[k, 1], series[k, 2], series[k, 3]
                p1, q1, r1, s1 = (
                    series[k + 1, 0],
                    series[k + 1, 1],
                    series[k + 1, 2],
                    series[k + 1, 3],
                )
                p2, q2, r2, s2 = (
                    series[k + 2, 0],
                    series[k + 2, 1],
                    series[k + 2, 2],
                    series[k + 2, 3],
                )
                p3, q3, r3, s3 = (
                    series[k + 3, 0],
                    series[k + 3, 1],
                    series[k + 3, 2],
                    series[k + 3, 3],
                )
                for j in range(width):
                    t0, t1 = work[j], work[WIDTH + j]
                    t2, t3 = work[2 * WIDTH + j], work[3 * WIDTH + j]
                    work[5 * WIDTH + j] += p0 * t0 + p1 * t1 + p2 * t2 + p3 * t3
                    work[6 * WIDTH + j] += q0 * t0 + q1 * t1 + q2 * t2 + q3 * t3
                    work[7 * WIDTH + j] += r0 * t0 + r1 * t1 + r2 * t2 + r3 * t3
                    work[8 * WIDTH + j] += s0 * t0 + s1 * t1 + s2 * t2 + s3 * t3
            for j in range(width):
                first = ck[i, start + j] * (left * column_scale[0, start + j])
                second = ntk[i, start + j] * (right * column_scale[1, start + j])
                along = first * work[5 * WIDTH + j] + second * work[6 * WIDTH + j]
                work[j] = first * work[7 * WIDTH + j] + second * work[8 * WIDTH + j]
                in_right[start + j] += along
                own += along
            if of_angle:
                for j in range(width):
                    c = cosine[i, start + j]
                    work[j] /= -math.sqrt(1.0 - c * c)
            for j in range(width):
                turning[i, start + j] += work[j]
        in_left[i] += own


def _adjoint_rows(
    cosine: Array,
    upstream: Array,
    middle: float,
    inverse_half: float,
    series: Array,
    terms: Array,
    values: Array,
    slopes: Array,
    turning: Array,
    entries: Array,
    in_cosine: Array,
    in_left: Array,
    in_right: Array,
) -> None:
    """Gradients of cosines and norms, given those of one kernel at some rows.

    Args:
        cosine: The cosines. shape: (n, m)
        upstream: The gradients of the kernel. shape: (n, m)
        middle: The middle of the range of angles.
        inverse_half: One over half of its width.
        series: Of the rows, for the columns' slopes, the rows' slopes and the derivative in the
            angle, four terms of each in turn. shape: (n, rank, 3 * terms)
        terms: How many of them matter, multiples of four. shape: (rank,)
        values: What the columns contribute. shape: (rank, m)
        slopes: Its derivative in the logarithms of the norms. shape: (rank, m)
        turning: To which the gradients of the cosines are added. shape: (n, m)
        entries: Where the kernel goes, the sums of the first series and the values. shape: (n, m)
        in_cosine: Where its derivative in the cosines goes. shape: (n, m)
        in_left: To which the gradients of the rows' norms are added. shape: (n,)
        in_right: To which those of the columns' norms are added. shape: (m,)
    """
    x = np.empty(WIDTH)
    # in one array, as in ``_evaluate_tiles``: four terms, the next one, and four sums
    work = np.empty(9 * WIDTH)
    size, most = cosine.shape[1], terms.max()
    for i in range(cosine.shape[0]):
        own = 0.0
        for start in range(0, size, WIDTH):
            width = min(WIDTH, size - start)
            _places(cosine[i, start : start + width], True, middle, inverse_half, x)
            _first_terms(x[:width], work, 4)
            for k in range(0, most, 4):
                _four_terms(x[:width], work)
                for s in range(len(terms)):
                    if k >= terms[s]:
                        continue
                    p = series[i, s, 3 * k : 3 * k + 12]
                    p0, p1, p2, p3, q0, q1 = p[0], p[1], p[2], p[3], p[4], p[5]
                    q2, q3, r0, r1, r2, r3 = p[6], p[7], p[8], p[9], p[10], p[11]
                    value, moved = (
                        values[s, start : start + width],
                        slopes[s, start : start + width],
                    )
                    for j in range(width):
                        t0, t1 = work[j], work[WIDTH + j]
                        t2, t3 = work[2 * WIDTH + j], work[3 * WIDTH + j]
                        first = p0 * t0 + p1 * t1 + p2 * t2 + p3 * t3
                        work[5 * WIDTH + j] += value[j] * first
                        work[6 * WIDTH + j] += moved[j] * first
                        work[7 * WIDTH + j] += value[j] * (q0 * t0 + q1 * t1 + q2 * t2 + q3 * t3)
                        work[8 * WIDTH + j] += value[j] * (r0 * t0 + r1 * t1 + r2 * t2 + r3 * t3)
            for j in range(width):
                c, above = cosine[i, start + j], upstream[i, start + j]
                slope = -work[8 * WIDTH + j] / math.sqrt(1.0 - c * c)
                turning[i, start + j] += above * slope
                in_cosine[i, start + j] = slope
                entries[i, start + j] = work[5 * WIDTH + j]
                in_right[start + j] += above * work[6 * WIDTH + j]
                own += above * work[7 * WIDTH + j]
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
