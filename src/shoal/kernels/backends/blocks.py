"""Blocks of a kernel matrix by the operations of torch, some rows at a time."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from shoal.kernels.approximations.surface import Span, Surface, padded, to_unit
from shoal.kernels.backends.block import (
    Adjoint,
    Block,
    DifferentiableBlock,
    DifferentiableFactors,
    Directions,
    Entries,
    EvaluatedBlock,
    Factors,
    Polynomial,
    Rounded,
)
from shoal.numerics import chebyshev_basis, differentiate

Pair = tuple[Tensor, Tensor]  # of the CK and the NTK

CUT = {torch.float64: 2e-12, torch.float32: 1e-9}  # of the diagonal, that may be left out
_WORK = 1 << 18  # numbers of the basis that stay in the cache of a CPU
_WORK_ELSEWHERE = 1 << 26
_ROUNDED_BLOCK = (512, 2048)  # entries of a product in reduced precision that stay in the cache


class Blocks:
    """The back end of every device: all that is done with every entry of a block.

    Attributes:
        takes_threads: Whether each thread is best given blocks of its own.
    """

    takes_threads = False

    def directions(self, unit: Tensor) -> Directions:
        """Unit vectors in the form of which cosines are made. shape: (n, p)."""
        return unit

    def cosines(self, left: Any, right: Any) -> Tensor:
        """Cosines of the angles between directions of this back end. shape: (n, m)."""
        cosine: Tensor = left @ right.T
        return cosine

    def evaluate(self, block: Block, out: Pair, mirrored: Pair | None = None) -> EvaluatedBlock:  # noqa: ARG002
        """Write both kernels of a block.

        Args:
            block: The block.
            out: Where they go.
            mirrored: Of a symmetric matrix, where the same goes transposed: a back end may write
                what is above the diagonal there too.
        """
        surface, rows, columns, cosine = block
        low, high = surface.angles
        middle, half_width = (low + high) / 2, (high - low) / 2
        fill = _constant_block if surface.rank == 1 else _block
        for part in _parts(cosine, surface.coefficients.shape[-1] + 2 * surface.rank):
            t = cosine[part].clamp(-1.0, 1.0).acos_().sub_(middle)
            t = t.mul_(1 / half_width).clamp_(-1.0, 1.0)
            fill(surface, rows[part], columns, t, (out[0][part], out[1][part]))
        return evaluated(surface, extremes(cosine))

    def derivatives(self, block: DifferentiableBlock) -> Iterator[tuple[slice, Entries]]:
        """The entries of a block to first order, some rows at a time."""
        surface, rows, columns, cosine = block
        series = first_order(surface).to(cosine)
        for part in _parts(cosine, series.shape[-1] + 6 * surface.rank):
            own = rows[part]
            weights = torch.stack([own.values, own.slopes, own.values])
            angle = cosine[part].clamp(-1.0, 1.0).acos()
            sums = _row_sums(
                torch.einsum("dqnr,dqrsk->ndqsk", weights, series), to_unit(angle, surface.angles)
            )
            other = sums[:, 0 if surface.radial is None else 1]
            entries = Entries(
                cosine[part],
                (sums[:, 0, 0] * columns.values[0].T).sum(1),
                _weighted(sums[:, 1], columns.values),
                _weighted(other, columns.slopes),
                _weighted(sums[:, 2], columns.values).div_(angle.sin_().neg_()),
            )
            yield part, entries

    def adjoint(self, block: DifferentiableBlock, upstream: Tensor) -> Adjoint:
        """Gradients of cosines and norms of a block, given those of both kernels, (2, n, m)."""
        rows, columns, cosine = block[1:]
        left, right = rows.norm.new_zeros(len(rows.norm)), rows.norm.new_zeros(len(columns.norm))
        turning = torch.empty_like(cosine)
        for part, entries in self.derivatives(block):
            gradient = upstream[:, part]
            torch.sum(entries.in_cosine * gradient, dim=0, out=turning[part])
            left[part] = (entries.in_left * gradient).sum((0, 2), dtype=torch.float64)
            right += (entries.in_right * gradient).sum((0, 1), dtype=torch.float64)
        return Adjoint(turning, left, right)

    def rounded(self, unit: Tensor) -> Rounded:
        """Directions in float32. shape: (n, p)."""
        rows = unit.float()
        return Rounded(rows, rows, rows.new_ones(len(rows)), _ROUNDED_BLOCK)

    def multiply(
        self,
        polynomial: Polynomial,
        rows: tuple[Rounded, Tensor],
        columns: tuple[Rounded, Tensor],
        *,
        diagonal: bool,
    ) -> tuple[Tensor, Tensor]:
        r"""Products of a block of a kernel matrix in reduced precision with vectors of both sides.

        Args:
            polynomial: The kernel, divided by the roots of its diagonal.
            rows: Directions of the rows, and vectors $l$. shape: (n, q)
            columns: Directions of the columns, and vectors $r$. shape: (m, q)
            diagonal: Whether the block is on the diagonal of the matrix.

        Returns:
            $Kr$ and $K^T l$, the latter not to be used on the diagonal.
        """
        cosine = rows[0].rows @ columns[0].columns.T
        slope, *powers = polynomial.numbers.tolist()
        if polynomial.of_angle:
            place = cosine.clamp_(-1.0, 1.0).acos_()
        else:
            place = cosine.mul_(-0.5).add_(0.5).clamp_(min=0.0).sqrt_()
        u = place.mul_(slope).sub_(1.0)
        values = torch.full_like(u, powers[0])
        for power in powers[1:]:
            values.mul_(u).add_(power)
        if diagonal:
            values.fill_diagonal_(1.0)
        return values @ columns[1], values.T @ rows[1]

    def mirror(self, matrix: Tensor, rows: slice) -> None:
        """Copy what a strip of rows of a square matrix has above the diagonal to below it."""
        block = matrix[rows, rows]
        block.copy_(block.triu() + block.triu(1).T)
        matrix[rows.stop :, rows] = matrix[rows, rows.stop :].T


def evaluated(surface: Surface, cosines: Span) -> EvaluatedBlock:
    """What is known of a block, given the least and the largest of its cosines."""
    return EvaluatedBlock(lambda: cosines, lambda: not surface.knows(cosines))


def extremes(cosine: Tensor) -> Span:
    """The least and the largest cosine."""
    least, most = torch.aminmax(cosine)
    return float(least), float(most)


def first_order(surface: Surface) -> Tensor:
    """Series of values, for slopes in a norm, and of derivatives in the angle, stacked."""
    low, high = surface.angles
    values, terms = surface.coefficients, surface.coefficients.shape[-1]
    around = padded(differentiate(values) * (2 / (high - low)), terms)
    return torch.stack([values, values if surface.radial is None else surface.radial, around])


def adjoint_series(surface: Surface, rows: DifferentiableFactors) -> Tensor:
    """Series of the rows against the columns' slopes, against their values, and in the angle.

    Returns:
        Those of both kernels each. shape: (3, 2, n, rank, angular degree + 1)
    """
    order = [0, 1, 2] if surface.radial is None else [1, 1, 2]
    sides = torch.stack([rows.slopes if k == 1 else rows.values for k in order])
    return torch.einsum("dqnr,dqrsk->dqnsk", sides, first_order(surface)[order].to(sides))


def _parts(t: Tensor, width: int) -> Iterator[slice]:
    """Rows of a block that are computed together, given the numbers that each entry needs."""
    work = _WORK if t.device.type == "cpu" else _WORK_ELSEWHERE
    step = max(1, work // (width * t.shape[1]))
    for start in range(0, len(t), step):
        yield slice(start, start + step)


def _constant_block(
    surface: Surface, rows: Factors, columns: Factors, t: Tensor, out: tuple[Tensor, Tensor]
) -> None:
    """One function of the angle, times scales."""
    coefficients = surface.coefficients[:, 0, 0].to(t)
    basis = chebyshev_basis(t.reshape(-1), coefficients.shape[1] - 1)
    scale_series((coefficients @ basis).view(2, *t.shape), rows, columns, out)


def scale_series(
    values: Tensor, rows: Factors, columns: Factors, out: tuple[Tensor, Tensor]
) -> None:
    """Write both kernels, given those of unit diagonal, which are used up. shape: (2, n, m)."""
    for q in range(2):
        torch.mul(values[q].mul_(rows.scale[q, :, None]), columns.scale[q], out=out[q])


def _block(
    surface: Surface, rows: Factors, columns: Factors, t: Tensor, out: tuple[Tensor, Tensor]
) -> None:
    """Each row is a function of the angle and the other norm: a product of small matrices."""
    sums = _row_sums(_row_series(surface, rows), t)
    weights = columns.features.T * columns.scale[:, None]  # shape: (2, rank, size)
    for q in range(2):
        torch.sum(sums[:, q].mul_(weights[q]), dim=1, out=out[q])


def _row_series(surface: Surface, rows: Factors) -> Tensor:
    """Coefficients in the angle, for each row. shape: (n, 2, rank, angular degree + 1)."""
    coefficients = surface.coefficients.to(rows.features)
    series = torch.einsum("nr,qrsk->nqsk", rows.features, coefficients)
    return series * rows.scale.T[:, :, None, None]


def _row_sums(series: Tensor, t: Tensor) -> Tensor:
    """Series that belong to rows, (n, ..., k), at points of these, (n, m). shape: (n, ..., m)."""
    count, size = t.shape
    terms = series.shape[-1]
    basis = chebyshev_basis(t.reshape(-1), terms - 1).view(terms, count, size).transpose(0, 1)
    return torch.bmm(series.reshape(count, -1, terms), basis).view(*series.shape[:-1], size)


def _weighted(sums: Tensor, weights: Tensor) -> Tensor:
    """Sums, (n, 2, rank, m), times weights of the columns, (2, m, rank). shape: (2, n, m)."""
    return (sums * weights.transpose(1, 2)).sum(2).transpose(0, 1)
