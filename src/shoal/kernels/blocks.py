r"""Blocks of kernel matrices: how a surface is evaluated on them, by torch or by a GPU's passes.

Entries are $K_{ij} = \sum_k (s_i f(u_i))^T C_k (s_j f(v_j))\, T_k(\theta_{ij})$ with a small
matrix $C_k$ for every term: a Chebyshev series whose coefficients are products of thin matrices.
Clenshaw's recursion sums it in place, a tile of the block at a time, which stays in the cache.
Where norms are only factors, Horner's rule takes half the passes.

A back end is a subclass of :class:`Blocks` and a line in :func:`backend_for`.

Matrices are computed in strips of rows, within a limit of memory.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from shoal.core.caches import cached
from shoal.kernels.surface import ANGULAR_TOLERANCE, TOLERANCE, Span, Surface, shortened, to_unit
from shoal.numerics import chebyshev_basis, chebyshev_nodes

_LOGGER = logging.getLogger(__name__)

MatrixPair = tuple[Tensor, Tensor]  # of the CK and the NTK
OptionalMatrices = tuple[Tensor | None, ...]  # of both or of one of them

_TILE = (64, 2048)  # rows and columns whose work space stays in the cache of a core
_SMALL = 0.5  # angles from 0 and π, up to which series in the cosine are long
_LONGER = 12  # terms of all functions of a norm that cost no more than an arc cosine
_GROWTH = 4.0  # of the coefficients, up to which series are summed as powers


class Directions(Protocol):
    """Unit vectors in the form that products of a back end take."""

    def __getitem__(self, rows: slice, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class Factors:
    """Factors of the rows or the columns of a matrix, in the dtype of the matrix.

    Attributes:
        scale: Roots of the diagonals of both kernels. shape: (2, n)
        features: Functions of the norms. shape: (n, rank)
    """

    scale: Tensor
    features: Tensor

    def __getitem__(self, part: slice) -> "Factors":
        return Factors(self.scale[:, part], self.features[part])

    @property
    def scaled(self) -> Tensor:
        """Scales times functions of the norms. shape: (2, n, rank)."""
        return self.scale[:, :, None] * self.features


class Block(NamedTuple):
    """A part of a matrix, before it is evaluated.

    Attributes:
        surface: Both kernels, or derivatives of both.
        rows: Factors of the rows.
        columns: Factors of the columns.
        cosine: Cosines of the angles; their rows are contiguous. shape: (n, m)
    """

    surface: Surface
    rows: Factors
    columns: Factors
    cosine: Tensor


class Series(NamedTuple):
    """A surface in the form in which it is summed on blocks.

    Attributes:
        of_angle: Whether its series are in the angle; otherwise they are in the cosine.
        powers: Whether they are sums of powers; otherwise they are Chebyshev series.
        span: The range of that variable, which is scaled to [-1, 1].
        core: The coefficients. shape: (2, rank, rank, terms)
        lengths: The number of terms that matter for each function of a column's norm.
    """

    of_angle: bool
    powers: bool
    span: Span
    core: Tensor
    lengths: Tensor


@cached
def cheapest_series(surface: Surface, dtype: torch.dtype) -> Series:
    """The cheapest form of a surface at its accuracy."""
    cut = (ANGULAR_TOLERANCE if surface.norms is None else TOLERANCE)[dtype] / 5
    core, (low, high) = _in_cosines(surface, cut), surface.angles
    of_angle = core is None
    core, span = (
        (surface.coefficients, (low, high))
        if core is None
        else (core, (math.cos(high), math.cos(low)))
    )
    most = surface.basis.abs().sum(1)  # of the functions of a norm
    size = torch.einsum("r,qrsk,s->sqk", most, core.abs(), most).amax(1)
    lengths = (size.flip(1).cumsum(1).flip(1) > cut / 2 / surface.rank).sum(1)
    terms = max(1, int(lengths.max()))  # a kernel may be zero
    core = core[..., :terms] * (torch.arange(terms) < lengths[:, None])
    powers = core @ _power_basis(terms)
    stable = bool(powers.abs().sum() <= _GROWTH * core.abs().sum())
    return Series(of_angle, stable, span, powers if stable else core, lengths)


def _in_cosines(surface: Surface, tolerance: float) -> Tensor | None:
    """Coefficients of series in the cosines instead; ``None`` if these are longer.

    Next to 0 and π kernels are series in the angle, and the cosine depends on its square.
    """
    low, high = surface.angles
    if low < _SMALL or high > math.pi - _SMALL:
        return None
    terms = surface.coefficients.shape[-1]
    nodes = chebyshev_nodes(2 * terms + _LONGER, math.cos(high), math.cos(low)).acos()
    basis = chebyshev_basis(to_unit(nodes, surface.angles), terms - 1)
    coefficients, _ = shortened(surface.coefficients @ basis, tolerance)
    return coefficients if surface.rank * (coefficients.shape[-1] - terms) <= _LONGER else None


@cached
def _power_basis(terms: int) -> Tensor:
    """Coefficients of powers in Chebyshev polynomials. shape: (terms, terms)."""
    basis = torch.eye(terms, dtype=torch.float64)
    for k in range(2, terms):
        basis[k] = 2 * basis[k - 1].roll(1) - basis[k - 2]
    return basis


class EvaluatedBlock(NamedTuple):
    """The outcome of an evaluation.

    Attributes:
        beyond: Returns whether some cosines are outside the range of the surface.
        mirrored: Whether the entries above the diagonal have been written below it too.
    """

    beyond: Callable[[], bool]
    mirrored: bool = False


class Blocks:
    """The back end of every device: cosines of a block, and its evaluation.

    Attributes:
        takes_threads: Whether each thread is best given blocks of its own.
    """

    takes_threads = True

    def directions(self, unit: Tensor) -> Directions:
        """Unit vectors in the form that :meth:`cosines` takes. shape: (n, p)."""
        return unit

    def cosines(self, rows: Any, columns: Any) -> Tensor:
        """Cosines of the angles between directions of this back end. shape: (n, m)."""
        cosine: Tensor = rows @ columns.T
        return cosine

    def evaluate(
        self,
        block: Block,
        out: OptionalMatrices,
        mirrored: MatrixPair | None = None,  # noqa: ARG002
    ) -> EvaluatedBlock:
        """Write both kernels of a block, or one of them.

        Args:
            block: The block.
            out: The results.
            mirrored: The transposed part of a symmetric matrix, into which a back end may write the
                entries above the diagonal, too.
        """
        surface, rows, columns, cosine = block
        form = cheapest_series(surface, cosine.dtype)
        (low, high), core = form.span, form.core.to(cosine)
        row_factors, column_factors = rows.scaled, columns.scaled.mT.contiguous()
        plain = form.powers and surface.rank == 1
        series = core[:, 0, 0] if plain else torch.einsum("qnr,qrsk->qkns", row_factors, core)
        for i, j in _tiles(cosine):
            place = cosine[i, j]
            if form.of_angle:
                place = place.clamp(-1.0, 1.0).acos_()
            place = (place - (low + high) / 2).mul_(2 / (high - low)).clamp_(-1.0, 1.0)
            for q, matrix in enumerate(out):
                if matrix is None:
                    continue
                if plain:
                    total = _horner(series[q], place).mul_(row_factors[q, i])
                    torch.mul(total, column_factors[q, :, j], out=matrix[i, j])
                else:
                    factors = series[q][:, i], column_factors[q][:, j]
                    (_powers if form.powers else _clenshaw)(*factors, place, matrix[i, j])
        least, most = torch.aminmax(cosine)
        cosine_range = float(least), float(most)
        return EvaluatedBlock(lambda: not surface.covers(cosine_range))

    def mirror(self, matrix: Tensor, rows: slice) -> None:
        """Copy the part of a strip of rows above the diagonal to below it."""
        block = matrix[rows, rows]
        block.copy_(block.triu() + block.triu(1).T)
        matrix[rows.stop :, rows] = matrix[rows, rows.stop :].T


def backend_for(device: torch.device) -> Blocks:
    """The back end of a device."""
    return _gpu() if device.type == "cuda" else Blocks()


@lru_cache(maxsize=1)
def _gpu() -> Blocks:
    """The passes of a GPU, where their compiler is installed."""
    try:
        from shoal.kernels.gpu.tiles import Tiles
    except ImportError:
        _LOGGER.warning("triton is not installed: kernels are evaluated in blocks, more slowly")
        return Blocks()
    return Tiles()


def _tiles(block: Tensor) -> list[tuple[slice, slice]]:
    """Rows and columns that are computed together; all of them on a GPU."""
    count, size = block.shape
    if block.device.type != "cpu":
        return [(slice(0, count), slice(0, size))]
    width = min(size, _TILE[1])
    height = max(1, _TILE[0] * _TILE[1] // width)
    return [
        (slice(i, min(i + height, count)), slice(j, min(j + width, size)))
        for j in range(0, size, width)
        for i in range(0, count, height)
    ]


def _horner(coefficients: Tensor, place: Tensor) -> Tensor:
    """A sum of powers."""
    *lower, last = coefficients.unbind()
    total = torch.full_like(place, float(last))
    for coefficient in reversed(lower):
        torch.addcmul(coefficient, total, place, out=total)
    return total


def _clenshaw(rows: Tensor, columns: Tensor, place: Tensor, out: Tensor) -> None:
    """Write a Chebyshev series whose coefficients are products of thin matrices.

    Args:
        rows: Their left factors. shape: (terms, n, rank)
        columns: Their right factor. shape: (rank, m)
        place: The places in [-1, 1]. shape: (n, m)
        out: The sums. shape: (n, m)
    """
    last, before = torch.zeros_like(place), torch.zeros_like(place)
    for factor in reversed(rows[1:].unbind()):
        before.addmm_(factor, columns, beta=-1).addcmul_(place, last, value=2)
        last, before = before, last
    torch.addmm(before, rows[0], columns, beta=-1, out=out)
    out.addcmul_(place, last)


def _powers(rows: Tensor, columns: Tensor, place: Tensor, out: Tensor) -> None:
    """Write a sum of powers, like :func:`_clenshaw`."""
    total = torch.zeros_like(place)
    for factor in reversed(rows[1:].unbind()):
        total.addmm_(factor, columns).mul_(place)
    torch.addmm(total, rows[0], columns, out=out)


class Strip(NamedTuple):
    """A part of a matrix.

    Attributes:
        rows: Its rows.
        columns: Its columns; those of a symmetric matrix begin at the diagonal.
    """

    rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns it has."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    def inputs(self, where: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Rows and columns of the matrix, given those within the strip."""
        return where[0] + self.rows.start, where[1] + self.columns.start


def strips(shape: tuple[int, int], step: int, *, symmetric: bool) -> Iterator[Strip]:
    """Strips of ``step`` rows; in a symmetric matrix they begin at the diagonal.

    Example:
        >>> [strip.shape for strip in strips((3, 3), 2, symmetric=True)]
        [(2, 3), (1, 1)]
    """
    rows, columns = shape
    for start in range(0, rows, step):
        yield Strip(
            slice(start, min(start + step, rows)), slice(start if symmetric else 0, columns)
        )


def rows_per_process(rows: int, num_processes: int, *, symmetric: bool) -> int:
    """The most rows of a strip that still balance entries among processes."""
    parts = num_processes * (8 if symmetric else 1)  # strips get smaller
    return rows if num_processes == 1 else max(1, math.ceil(rows / parts))


def assign_strips(parts: Iterable[Strip], num_processes: int) -> list[int]:
    """The process of each strip, so that all have about as many entries.

    Each strip goes to the process with the fewest entries.

    Example:
        >>> assign_strips(strips((5, 5), 1, symmetric=True), 2)
        [0, 1, 1, 0, 0]
    """
    loads, owners = [0] * num_processes, []
    for strip in parts:
        owner = loads.index(min(loads))
        loads[owner] += strip.shape[0] * strip.shape[1]
        owners.append(owner)
    return owners
