r"""Products of half-precision numbers on a GPU: exact cosines, and products with kernel matrices.

Where all inputs have one norm, or norms are but factors, a kernel divided by the roots of its
diagonal is an analytic function of the angle, and up to angles near $\pi$ of $\sin\tfrac\theta2$,
the root of $(1 - \cos\theta)/2$. A polynomial of that, a dozen multiplications, gives entries with
an error of about 1e-7, and blocks of them are multiplied from both sides and forgotten: only the
cosines of a block are ever in memory. On an H200 a block of 32,768² entries with 784 features takes
2.7 ms for inner products of whole numbers (6.1 ms for sums of two halves) and 4.0 ms for the pass.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from shoal.kernels.blocks import assign_strips, strips
from shoal.kernels.surface import Surface
from shoal.numerics import chebyshev_nodes, coefficients_from_values

if TYPE_CHECKING:
    from shoal.kernels.plan import Plan

_BLOCK = (8192, 65536)  # rows and columns
_VECTORS = 16  # columns that are multiplied together
_TILE = 64  # rows and columns
_SPAN = 16  # tiles of a program, side by side
_CHUNK = 2**16  # rows that are rounded together
_WHOLE = 4000.0  # norm of a direction as whole numbers: with up to 36,000 features below 2¹²
_UNIT = 256.0  # norm of a direction as two halves, so that the smaller is an ordinary number


@dataclass(frozen=True, eq=False)
class SplitDirections:
    r"""Directions in single precision as sums of two numbers of half precision.

    A multiple of a direction is a vector $h$ of whole numbers (even ones from 2048 on) and a rest
    $l$. With up to 36,000 features, inner products of whole numbers stay below $2^{24}$, where
    float32 has all of them: tensor cores, which do not round sums but cut them off, sum them
    exactly. The others, of $(l, h, l)$ and $(h, l, l)$, are so small that only the rounding of $l$
    matters: cosines are off by 2e-8 in the mean and 1e-7 at most where many different numbers meet,
    up to 4e-7 with two or three features, and up to $5\cdot10^{-8}\sqrt p$ where all $p$ numbers of
    a direction are equal.

    Attributes:
        count: How many there are; rows of zeros may follow them.
        numbers: $l$, $h$, $l$ and $l$ side by side. shape: (n, 4, p)
    """

    count: int
    numbers: Tensor

    @classmethod
    def from_units(cls, unit: Tensor) -> "SplitDirections":
        """Both parts of directions. shape: (n, p)."""
        rows, features = (extent + -extent % 16 for extent in unit.shape)  # for fast products
        numbers = unit.new_zeros(rows, 4, features, dtype=torch.float16)
        parts = zip(unit.split(_CHUNK), numbers[: len(unit)].split(_CHUNK), strict=True)
        for block, (remainder, whole, *copies) in (
            (u, n[..., : u.shape[1]].unbind(1)) for u, n in parts
        ):
            multiple = _WHOLE * block
            whole.copy_(multiple.round())
            remainder.copy_(multiple - whole)
            for copy in copies:
                copy.copy_(remainder)
        return cls(len(unit), numbers)

    def __getitem__(self, part: slice) -> "SplitDirections":
        more = slice(part.start, None) if part.stop == self.count else part  # with the zeros
        return SplitDirections(part.stop - part.start, self.numbers[more])

    def products(self, other: "SplitDirections") -> Tensor:
        """Cosines of the angles with others, in float32. shape: (n, m)."""
        rows, columns = self.numbers[: self.count], other.numbers
        unit, dtype = _WHOLE**-2, torch.float32
        cosine = torch.mm(rows[:, 1], columns[:, 1].T, out_dtype=dtype)
        sides = rows[:, :3].flatten(1), columns[:, 1:].flatten(1).T
        torch.addmm(cosine, *sides, out_dtype=dtype, beta=unit, alpha=unit, out=cosine)
        return cosine[:, : other.count]


class Polynomial(NamedTuple):
    r"""A kernel of unit diagonal as a polynomial of $u = st - 1$.

    Attributes:
        numbers: $s$, and then the coefficients, the highest powers first, in float32.
        of_angle: Whether $t$ is the angle $\theta$; otherwise it is $\sin\tfrac\theta2$.
    """

    numbers: Tensor
    of_angle: bool


@dataclass(frozen=True, eq=False)
class Rounded:
    """Directions in reduced precision: as rows and as columns of a symmetric matrix.

    Attributes:
        rows: Multiples of the directions; rows of zeros may follow them. shape: (n, k)
        columns: Numbers whose products with these are multiples of cosines. shape: (n, k)
        scale: Factors of rows and columns that turn products into cosines. shape: (n,)
    """

    rows: Tensor
    columns: Tensor
    scale: Tensor

    def __getitem__(self, part: slice) -> "Rounded":
        return Rounded(self.rows[part], self.columns[part], self.scale[part])


def _halves(unit: Tensor) -> Rounded:
    r"""Directions as numbers of half precision.

    Multiples of whole numbers up to 255, which the pixels of images are, are exact, and so is every
    term of their inner products. All others are sums of two halves, $x \approx h + l$, and inner
    products are those of $(h, h, l)$ and $(h, l, h)$, with an error of $2^{-22}$. Sums in float32
    have their own error in both cases.

    Args:
        unit: Directions. shape: (n, p)
    """
    pixels = _pixels(unit)
    if pixels is not None:
        norm = torch.linalg.vector_norm(pixels, dim=1, dtype=torch.float32)
        rows = _padded(pixels)
        scale = torch.where(norm > 0, 1 / norm, 0.0)
        return Rounded(rows, rows, torch.nn.functional.pad(scale, (0, len(rows) - len(scale))))
    large = (_UNIT * unit).half()
    small = torch.cat(
        [
            (_UNIT * some - rounded).half()
            for some, rounded in zip(unit.split(_CHUNK), large.split(_CHUNK), strict=True)
        ]
    )
    rows = _padded(torch.cat([large, large, small], 1))
    scale = torch.full_like(rows[:, 0], 1 / _UNIT, dtype=torch.float32)
    return Rounded(rows, _padded(torch.cat([large, small, large], 1)), scale)


def _pixels(unit: Tensor) -> Tensor | None:
    """Whole numbers up to 255 in the directions of the rows, in float16; or ``None``."""
    parts = []
    for block in (unit[:1], *unit[1:].split(_CHUNK)):  # the first tells nearly all
        ratio = block / block.abs().amax(1, keepdim=True).clamp(min=torch.finfo(block.dtype).tiny)
        part, remaining = (
            torch.zeros_like(block, dtype=torch.float16),
            torch.arange(len(block), device=block.device),
        )
        for largest in range(255, 0, -1):
            numbers = ratio[remaining] * largest
            rounded = numbers.round()
            exact = (numbers - rounded).abs().amax(1) < 1e-4
            part[remaining[exact]] = rounded[exact].half()
            remaining = remaining[~exact]
            if not len(remaining):
                break
        else:
            return None
        parts.append(part)
    return torch.cat(parts)


def _padded(numbers: Tensor) -> Tensor:
    """The same with zeros, so that tiles are whole."""
    size, width = numbers.shape
    return torch.nn.functional.pad(numbers, (0, -width % 64, 0, -size % _TILE))


@dataclass(frozen=True, eq=False)
class RoundedProducts:
    """A symmetric kernel matrix, for products in float32.

    Attributes:
        plan: The matrix.
        surface: Its kernels as functions of the angle.
        kernel: Which of them: 0 for the CK, 1 for the NTK.
    """

    plan: "Plan"
    surface: Surface
    kernel: int

    def product(self, vectors: Tensor, rank: int, num_processes: int) -> Tensor:
        """The part of the product with columns of one process, in float64."""
        inputs, scale = self._inputs, self.plan.rows.scale[self.kernel].double()[:, None]
        size = len(inputs.rows)
        scaled = vectors.new_zeros(size, vectors.shape[1], dtype=torch.float32)
        scaled[: len(vectors)] = scale * vectors
        result = torch.zeros_like(scaled, dtype=torch.float64)
        polynomial = self._polynomial
        parts = list(strips((size, size), _BLOCK[0], symmetric=True))
        for (rows, across), owner in zip(parts, assign_strips(parts, num_processes), strict=True):
            if owner == rank:
                row_block = inputs[rows], scaled[rows]
                result[rows] += _multiply_blocks(polynomial, row_block, row_block, diagonal=True)[0]
                for columns in _blocks(rows.stop, across.stop, _BLOCK[1]):
                    column_block = inputs[columns], scaled[columns]
                    down, along = _multiply_blocks(
                        polynomial, row_block, column_block, diagonal=False
                    )
                    result[rows] += down
                    result[columns] += along
        return scale * result[: len(vectors)]

    @cached_property
    def _inputs(self) -> Rounded:
        return _halves(self.plan.row_inputs.unit)

    @cached_property
    def _polynomial(self) -> Polynomial:
        polynomial = _fitted(self.surface, self.kernel, self._least_cosine())
        return polynomial._replace(numbers=polynomial.numbers.to(self._inputs.scale))

    def _least_cosine(self) -> float:
        """A bound of all cosines from below; none is negative if no input has a negative number."""
        if bool((self.plan.row_inputs.points >= 0).all()):
            return -1e-4
        inputs, least = self._inputs, 0.0
        for rows in _blocks(0, len(inputs.rows), _BLOCK[0]):
            for columns in _blocks(rows.start, len(inputs.rows), _BLOCK[1]):
                products = inputs.rows[rows] @ inputs.columns[columns].T
                cosine = products.float() * inputs.scale[rows, None] * inputs.scale[columns]
                least = min(least, float(cosine.min()))
        return max(least - 0.01, -1.0)  # an error of half precision


def rounded_products(plan: "Plan", kernel: int) -> RoundedProducts | None:
    """Products in reduced precision, where the kernel is a function of the angle alone."""
    if not plan.symmetric or plan.wide is None:
        return None
    angular = plan.function.architecture.positively_homogeneous or bool(
        (plan.row_inputs.norm > 0).all()
    )
    return RoundedProducts(plan, plan.wide, kernel) if angular else None


def _blocks(start: int, stop: int, step: int) -> Iterator[slice]:
    return (slice(begin, min(begin + step, stop)) for begin in range(start, stop, step))


def _fitted(surface: Surface, kernel: int, least: float) -> Polynomial:
    """The kernel as a polynomial, for cosines from the least one on."""
    of_angle = least < -0.7  # where the half sine is stationary, and angles are not analytic in it
    end = math.acos(least) if of_angle else math.sqrt((1 - least) / 2)
    for degree in range(8, 33, 2):
        nodes = chebyshev_nodes(degree, 0.0, end)
        one = nodes.new_ones(degree + 1, 1)
        values = surface.pairs(one, one, nodes if of_angle else 2 * nodes.asin())[kernel]
        series = coefficients_from_values(values)
        if float(series[-2:].abs().max()) < 3e-8:  # as in float32
            break
    powers = np.polynomial.chebyshev.cheb2poly(series.numpy())
    numbers = torch.from_numpy(np.concatenate([[2 / end], powers[::-1]])).float()
    return Polynomial(numbers, of_angle)


def _multiply_blocks(
    polynomial: Polynomial,
    rows: tuple[Rounded, Tensor],
    columns: tuple[Rounded, Tensor],
    *,
    diagonal: bool,
) -> tuple[Tensor, Tensor]:
    r"""Products of a block of a kernel matrix with vectors of both sides, in float64.

    Args:
        polynomial: The normalized kernel.
        rows: Directions of the rows, and vectors $l$. shape: (n, q), n a multiple of 64
        columns: Directions of the columns, and vectors $r$. shape: (m, q), m a multiple of 64
        diagonal: Whether the block is on the diagonal of the matrix, where cosines are one.

    Returns:
        $Kr$ and $K^T l$; on the diagonal twice the same.
    """
    (first, row_vectors), (second, column_vectors) = rows, columns
    (count, width), size = row_vectors.shape, len(column_vectors)
    cosine = torch.mm(first.rows, second.columns.T, out_dtype=torch.float32)
    spans = triton.cdiv(size, _TILE * _SPAN)
    downs, alongs = [], []
    for start in range(0, width, _VECTORS):
        row_slice, column_slice = (
            _vectors(vectors[:, start : start + _VECTORS])
            for vectors in (row_vectors, column_vectors)
        )
        down = row_vectors.new_empty(spans, count, _VECTORS)
        along = down if diagonal else row_vectors.new_empty(count // _TILE, size, _VECTORS)
        with torch.cuda.device_of(row_vectors):
            _multiply[(count // _TILE, spans)](
                cosine,
                polynomial.numbers,
                first.scale,
                second.scale,
                row_slice,
                column_slice,
                down,
                along,
                count,
                size,
                len(polynomial.numbers) - 1,
                of_angle=polynomial.of_angle,
                on_diagonal=diagonal,
                tile=_TILE,
                span=_SPAN,
                vectors=_VECTORS,
                num_warps=4,
            )
        downs.append(down.sum(0, dtype=torch.float64))
        alongs.append(downs[-1] if diagonal else along.sum(0, dtype=torch.float64))
    return torch.cat(downs, 1)[:, :width], torch.cat(alongs, 1)[:, :width]


def _vectors(vectors: Tensor) -> Tensor:
    """Vectors with zeros, up to as many as are multiplied together."""
    return torch.nn.functional.pad(vectors, (0, _VECTORS - vectors.shape[1])).contiguous()


@triton.jit(do_not_specialize=["count", "size", "terms"])
def _multiply(
    cosines,
    polynomial,
    row_scale,
    column_scale,
    left,
    right,
    down,
    along,
    count,
    size,
    terms,
    of_angle: tl.constexpr,
    on_diagonal: tl.constexpr,
    tile: tl.constexpr,
    span: tl.constexpr,
    vectors: tl.constexpr,
):
    strip, part = tl.program_id(0), tl.program_id(1)
    i = strip * tile + tl.arange(0, tile)
    q = tl.arange(0, vectors)
    scale = tl.load(row_scale + i)
    own = tl.load(left + i[:, None] * vectors + q[None, :])
    total = tl.zeros((tile, vectors), dtype=tl.float32)
    slope = tl.load(polynomial)
    begin = part * span * tile
    for start in range(begin, tl.minimum(begin + span * tile, size), tile):
        j = start + tl.arange(0, tile)
        cosine = tl.load(cosines + tl.cast(i, tl.int64)[:, None] * size + j[None, :])
        cosine = cosine * scale[:, None] * tl.load(column_scale + j)[None, :]
        if of_angle:
            place = libdevice.acos(tl.minimum(tl.maximum(cosine, -1.0), 1.0))
        else:
            place = tl.sqrt(tl.maximum(0.5 - 0.5 * cosine, 0.0))
        u = slope * place - 1.0
        value = tl.zeros((tile, tile), dtype=tl.float32) + tl.load(polynomial + 1)
        for term in range(2, terms + 1):
            value = value * u + tl.load(polynomial + term)
        if on_diagonal:
            value = tl.where(i[:, None] == j[None, :], 1.0, value)
        other = tl.load(right + j[:, None] * vectors + q[None, :])
        total = tl.dot(value, other, total, input_precision="tf32x3")
        if not on_diagonal:
            image = tl.dot(tl.trans(value), own, input_precision="tf32x3")
            entry = (tl.cast(strip, tl.int64) * size + j)[:, None] * vectors + q[None, :]
            tl.store(along + entry, image)
    entry = (tl.cast(part, tl.int64) * count + i)[:, None] * vectors + q[None, :]
    tl.store(down + entry, total)
