r"""The kernels of convolutional ReLU equilibria on the threads of a CPU, with Numba.

For readouts of all pixels: the field of pairs of equal pixels of two images stays in the nearest
cache from the first product to the last sum, in float64. The iterations are those of
:mod:`shoal.kernels.gpu.pixels`. Fields have a border as wide as the reach of a patch,
which is zero, or filled with the opposite side: a sum over patches is then one of shifted rows.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from numba import float64, int64, void
from numba.core.types import UniTuple
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray
from torch import Tensor

from shoal.kernels.images.fused_passes import MOST_STEPS, EquilibriumConstants

Array = NDArray[Any]
CompiledLoop = Callable[..., None]
Patch = tuple[int, int, int, int, int]
"""The reach of a patch down and across, the sides of images, and whether they are circular."""
Work = tuple[Array, Array, Array, Array, Array, Array]
"""Work space of an iteration: iterate, move, field to average, sums, means, maxima."""

_TOLERANCE = 1e-13  # of the error of a field, relative to its largest number
_STALLED = 2e-14  # relative residual up to which rounding may have stopped the progress
_MATH = {"contract", "nsz"}  # a*b + c in one rounding; nothing else is rearranged


def pixel_loops(
    images: Tensor,
    variances: Tensor,
    index: tuple[Tensor, Tensor],
    network: EquilibriumConstants,
    *,
    reach: tuple[int, int],
    circular: bool,
) -> Tensor:
    """Sums of both kernels over all pairs of equal pixels, in float64.

    Args:
        images: The images. shape: (n, channels, height, width)
        variances: Variances of their pre-activations. shape: (n, height, width)
        index: The numbers of the images of each pair. shapes: (pairs,)
        network: The equilibrium.
        reach: Reach of a patch down and across, in pixels.
        circular: Whether the opposite side lies beyond the border, or zeros.

    Returns:
        Sums of CK and NTK. shape: (2, pairs)

    Raises:
        ArithmeticError: If an iteration did not end.
    """
    points, squares = (t.double().contiguous().numpy() for t in (images, variances))
    first, second = (numbers.contiguous().numpy() for numbers in index)
    out = np.empty((3, len(first)))
    patch = (*reach, *points.shape[2:], int(circular))
    equilibrium = np.array([network.recurrent, network.injected, network.bias, *network.shares])
    tolerance = max(_TOLERANCE * (1 - network.gain), 4 * np.finfo(np.float64).eps)
    rule = np.array([*network.chebyshev(), tolerance, _STALLED])
    loop = _compiled_pairs()

    def run_part(start: int, stop: int) -> None:
        part = slice(start, stop)
        loop(points, squares, first[part], second[part], patch, equilibrium, rule, out[:, part])

    _in_threads(run_part, len(first))
    if not bool((out[2] <= max(tolerance, _STALLED)).all()):
        raise ArithmeticError("the equilibrium of a pair of images was not reached")
    return torch.from_numpy(out[:2])


def _in_threads(work: Callable[[int, int], None], count: int) -> None:
    """Share work on ``count`` pairs among torch's threads."""
    threads = max(1, min(torch.get_num_threads(), count // 8))  # at least eight pairs each
    ends = [count * k // threads for k in range(threads + 1)]
    if threads == 1:
        work(0, count)
        return
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(work, *pair) for pair in pairwise(ends)]:
            future.result()


@lru_cache(maxsize=1)
def _compiled_pairs() -> CompiledLoop:
    numbers, scalars, patch = int64[::1], float64[::1], UniTuple(int64, 5)  # type: ignore[no-untyped-call]
    images, fields = float64[:, :, :, ::1], float64[:, :, ::1]
    signature = void(images, fields, numbers, numbers, patch, scalars, scalars, float64[:, :])
    return _compiled(signature, _pairs)


def _compiled(signature: Any, function: CompiledLoop) -> CompiledLoop:
    """Compile, with the result cached on disk, or in memory where no folder is writable."""
    for cache in (True, False):
        try:
            loop: CompiledLoop = numba.njit(signature, nogil=True, fastmath=_MATH, cache=cache)(
                function
            )
        except RuntimeError:
            if not cache:
                raise
        else:
            return loop
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


@numba.njit(inline="always", fastmath=_MATH)
def _arc_cosine(c: float) -> float:
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


@numba.njit(inline="always", fastmath=_MATH)
def _cosine(covariance: float, root: float) -> float:
    """The cosine of a pair of pixels, zero if one is empty."""
    c = covariance / (root if root > 0 else 1.0)
    c = c if c < 1.0 else 1.0
    return c if c > -1.0 else -1.0


# Loops are written out: Numba takes seconds to compile an expression of whole arrays.
@numba.njit(fastmath=_MATH)
def _copy(source: Array, out: Array, down: int, across: int) -> None:
    """Copy a field into another one, shifted down and across."""
    for p in range(source.shape[0]):
        for q in range(source.shape[1]):
            out[down + p, across + q] = source[p, q]


@numba.njit(fastmath=_MATH)
def _clear(out: Array) -> None:
    """Fill a field with zeros."""
    for p in range(out.shape[0]):
        for q in range(out.shape[1]):
            out[p, q] = 0.0


@numba.njit(fastmath=_MATH)
def _total(field: Array, down: int, across: int, height: int, width: int) -> float:
    """The sum of a rectangle of a field."""
    total = 0.0
    for p in range(down, down + height):
        for q in range(across, across + width):
            total += field[p, q]
    return total


@numba.njit(fastmath=_MATH)
def _wrap(field: Array, patch: Patch) -> None:
    """Fill the border of a field with the opposite side."""
    down, across, height, width = patch[0], patch[1], patch[2], patch[3]
    for p in range(down, down + height):
        for t in range(across):
            field[p, t] = field[p, t + width]
            field[p, across + width + t] = field[p, across + t]
    for t in range(down):
        for q in range(field.shape[1]):
            field[t, q] = field[t + height, q]
            field[down + height + t, q] = field[down + t, q]


@numba.njit(fastmath=_MATH)
def _means(field: Array, rows: Array, out: Array, patch: Patch) -> None:
    """Write averages over patches, which have no meaning on the border, and sums along rows."""
    down, across = patch[0], patch[1]
    if patch[4] > 0:
        _wrap(field, patch)
    sums = rows.reshape(-1)
    _add_shifted(field.reshape(-1), sums, across, 1, 1.0)
    share = 1.0 / ((2 * down + 1) * (2 * across + 1))
    _add_shifted(sums, out.reshape(-1), down, field.shape[1], share)


@numba.njit(fastmath=_MATH)
def _add_shifted(field: Array, out: Array, reach: int, step: int, share: float) -> None:
    """Write a share of the sum of numbers up to ``reach`` steps away, away from the ends."""
    first, last = reach * step, len(field) - reach * step
    total, here = out[first:last], field[first:last]
    for i in range(len(total)):
        total[i] = share * here[i]
    for k in range(step, first + 1, step):  # views from zero on: other indices do not vectorize
        before, after = field[first - k : last - k], field[first + k : last + k]
        for i in range(len(total)):
            total[i] += share * (before[i] + after[i])


@numba.njit(fastmath=_MATH)
def _largest(lanes: Array) -> float:
    """The largest of some positive numbers, which are set to zero."""
    most = 0.0
    for q in range(len(lanes)):
        most = max(most, lanes[q])
        lanes[q] = 0.0
    return most


@numba.njit(fastmath=_MATH)
def _weight(count: int, weight: float, spread: float) -> float:
    """The next weight of Chebyshev's semi-iteration."""
    if count == 0:
        return 1.0
    return 1.0 / (1.0 - spread * (0.5 if count == 1 else 0.25 * weight))


@numba.njit(fastmath=_MATH)
def _duals(covariance: Array, root: Array, out: Array) -> None:
    """E[φ(u) φ(v)] of the ReLU at all pixels."""
    for p in range(root.shape[0]):
        for q in range(root.shape[1]):
            c = _cosine(covariance[p, q], root[p, q])
            opposite = math.pi - _arc_cosine(c)
            value = math.sqrt(1.0 - c * c) + opposite * c
            out[p, q] = root[p, q] * value * (0.5 / math.pi)


@numba.njit(fastmath=_MATH)
def _covariances(
    work: Work, entering: Array, root: Array, patch: Patch, recurrent: float, rule: Array
) -> float:
    """Iterate from ``entering``; return the last residual, relative to the largest variance.

    At the end ``work`` has covariances, the last move, duals, sums, and means of duals.
    """
    now, move, value, sums, means = work[:5]
    lanes = work[5][0]
    relaxation, spread, tolerance, stalled = rule[0], rule[1], rule[2], rule[3]
    scale = max(root.max(), 1e-300)
    weight, change, last, count = 1.0, 1.0, 2.0, 0
    while change > tolerance and count < MOST_STEPS and (change < last or change > stalled):
        last = change
        _duals(now, root, value)
        _means(value, sums, means, patch)
        weight = _weight(count, weight, spread)
        for p in range(root.shape[0]):
            for q in range(root.shape[1]):
                bound = root[p, q]
                step = recurrent * means[p, q] + entering[p, q] - now[p, q]
                new = now[p, q] + weight * relaxation * step + (weight - 1.0) * move[p, q]
                new = new if new < bound else bound
                new = new if new > -bound else -bound
                aim = now[p, q] + step  # within bounds: they are rounded, too
                aim = aim if aim < bound else bound
                aim = aim if aim > -bound else -bound
                size = abs(aim - now[p, q])
                lanes[q] = size if size > lanes[q] else lanes[q]
                move[p, q] = new - now[p, q]
                now[p, q] = new
        change = _largest(lanes) / scale
        count += 1
    return change


@numba.njit(fastmath=_MATH)
def _tangents(work: Work, source: Array, ratio: Array, patch: Patch, rule: Array) -> float:
    """Solve $T = F + r P(T)$, from $T = F$; return the last residual, relative to $T$."""
    now, move, value, sums, means = work[:5]
    lanes, sizes = work[5][0], work[5][1]
    relaxation, spread, tolerance, stalled = rule[0], rule[1], rule[2], rule[3]
    _copy(source, now, 0, 0)
    _clear(move)
    weight, change, last, count = 1.0, 1.0, 2.0, 0
    while change > tolerance and count < MOST_STEPS and (change < last or change > stalled):
        last = change
        _copy(now, value, 0, 0)
        _means(value, sums, means, patch)
        weight = _weight(count, weight, spread)
        for p in range(source.shape[0]):
            for q in range(source.shape[1]):
                step = source[p, q] + ratio[p, q] * means[p, q] - now[p, q]
                move[p, q] = weight * relaxation * step + (weight - 1.0) * move[p, q]
                now[p, q] += move[p, q]
                size, most = abs(step), abs(now[p, q])
                lanes[q] = size if size > lanes[q] else lanes[q]
                sizes[q] = most if most > sizes[q] else sizes[q]
        change = _largest(lanes) / max(_largest(sizes), 1e-300)
        count += 1
    return change


@numba.njit(fastmath=_MATH)
def _products(first: Array, second: Array, patch: Patch, out: Array) -> bool:
    """Inner products of equal pixels over channels, and whether the images are the same."""
    same, down, across = True, patch[0], patch[1]
    _clear(out)
    for channel in range(first.shape[0]):
        for p in range(first.shape[1]):
            for q in range(first.shape[2]):
                mine, theirs = first[channel, p, q], second[channel, p, q]
                out[down + p, across + q] += mine * theirs
                same &= mine == theirs
    return same


@numba.njit(fastmath=_MATH)
def _roots(a: Array, b: Array, patch: Patch, out: Array) -> None:
    """Roots of products of variances, bounds of covariances; zero at the border."""
    for p in range(a.shape[0]):
        for q in range(a.shape[1]):
            out[patch[0] + p, patch[1] + q] = math.sqrt(a[p, q]) * math.sqrt(b[p, q])


def _pairs(
    images: Array,
    variances: Array,
    first: Array,
    second: Array,
    patch: Patch,
    network: Array,
    rule: Array,
    out: Array,
) -> None:
    """Write the sums of both kernels, and the largest residual, of some pairs of images."""
    down, across, height, width = patch[0], patch[1], patch[2], patch[3]
    recurrent, injected, bias = network[0], network[1], network[2]
    columns = (width + 2 * across + 7) // 8 * 8  # lanes of a processor
    shape = (height + 2 * down, columns)
    now, move, value, sums = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
    means, input_means, entering = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    root, source, ratio = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    work = (now, move, value, sums, means, np.zeros((2, columns)))
    for pair in range(len(first)):
        i, j = first[pair], second[pair]
        same = _products(images[i], images[j], patch, value)
        _means(value, sums, input_means, patch)
        worst = 0.0
        if same:  # rounding would lose the angle: covariances are the variances
            _copy(variances[i], root, down, across)
            _copy(root, now, 0, 0)
            _duals(now, root, value)
            _means(value, sums, means, patch)
        else:
            _roots(variances[i], variances[j], patch, root)
            for p in range(shape[0]):
                for q in range(columns):
                    entering[p, q] = injected * input_means[p, q] + bias
                    now[p, q] = min(max(entering[p, q], -root[p, q]), root[p, q])
            _clear(move)
            worst = _covariances(work, entering, root, patch, recurrent, rule)
        ck = _total(value, down, across, height, width)
        for p in range(shape[0]):
            for q in range(columns):
                opposite = math.pi - _arc_cosine(_cosine(now[p, q], root[p, q]))
                slope = opposite * (0.5 / math.pi) if root[p, q] > 0 else 0.0
                source[p, q] = slope * (
                    network[4] * means[p, q] + network[5] * input_means[p, q] + network[6]
                )
                ratio[p, q] = recurrent * slope
        out[2, pair] = max(worst, _tangents(work, source, ratio, patch, rule))
        out[0, pair] = ck
        out[1, pair] = network[3] * ck + _total(now, 0, 0, *shape)
