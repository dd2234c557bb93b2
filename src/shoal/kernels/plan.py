"""How a kernel matrix is computed: its surface, and the features of rows and columns."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from shoal.core.exceptions import AccuracyError
from shoal.core.threads import one_behind, side_by_side
from shoal.kernels.arguments import PAIRS, Kernels, PolarInputs, on_host, pair_angles, work_space
from shoal.kernels.blocks import (
    Block,
    Blocks,
    Directions,
    Factors,
    MatrixPair,
    Strip,
    backend_for,
    rows_per_process,
    strips,
)
from shoal.kernels.function import KernelFunction
from shoal.kernels.surface import ANY_ANGLE, Surface, chosen_surface, common_norm, diagonal

if TYPE_CHECKING:
    from shoal.kernels.gpu.half_precision import RoundedProducts

FEW_PAIRS = 256  # pairs that are cheaper one by one when derivatives are wanted, ...
_FEW_PAIRS = 4095  # ... and when they are not: those of 90 inputs, fewer than a surface needs
_STRIPS = 16  # of a symmetric matrix on a CPU, at least (twice as many of a large one on a GPU)
_LEAST_STRIP = 128  # rows with which products are as fast as with more
_LEAST_ENTRIES = 1 << 24  # of a strip on a GPU, which has less to do than the host otherwise


@dataclass(frozen=True, eq=False)
class Plan:
    """All that blocks of one kernel matrix share.

    Attributes:
        function: The kernel as a function of norms and inner product.
        surface: Its approximation; ``None`` if entries are computed one by one.
        wide: The same for all angles, for entries beyond those of ``surface``; ``None`` if these
            are computed one by one.
        row_inputs: The inputs of the rows.
        column_inputs: The inputs of the columns; the same object if the matrix is symmetric.
        rows: Scales and features of the rows.
        columns: Scales and features of the columns.
        diagonal: Both kernels of the inputs of the rows with themselves, in float64. shape: (2, n)
    """

    function: KernelFunction
    surface: Surface | None
    wide: Surface | None
    row_inputs: PolarInputs
    column_inputs: PolarInputs
    rows: Factors
    columns: Factors
    diagonal: Tensor

    @property
    def symmetric(self) -> bool:
        """Whether rows and columns are the same inputs."""
        return self.row_inputs is self.column_inputs

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.row_inputs), len(self.column_inputs)

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and the device of the matrix."""
        return self.row_inputs.points

    @classmethod
    def for_inputs(
        cls,
        function: KernelFunction,
        rows: PolarInputs,
        columns: PolarInputs,
        *,
        few_pairs: int = _FEW_PAIRS,
    ) -> "Plan":
        """Choose the surfaces for some inputs; up to ``few_pairs`` are computed one by one."""
        largest = max(rows.range[1], columns.range[1])
        _check_bound(largest * largest, torch.float64)
        surface, wide = chosen_surface(function, rows, columns, few_pairs)
        sides = (rows,) if columns is rows else (rows, columns)
        diagonals = [_diagonal(function, surface, side) for side in sides]
        check_overflow(diagonals[0], diagonals[-1], rows.points.dtype)
        factors = [_factors(surface, *pair) for pair in zip(sides, diagonals, strict=True)]
        return cls(function, surface, wide, rows, columns, factors[0], factors[-1], diagonals[0])

    @cached_property
    def squared_norm(self) -> float | None:
        """The squared norm of all inputs but zero; ``None`` if they differ."""
        if self.surface is None or self.surface.norms is not None:
            return None
        return common_norm(self.function, self.row_inputs, self.column_inputs)

    @property
    def pairs(self) -> int:
        """How many entries are computed."""
        rows, columns = self.shape
        return rows * (rows + 1) // 2 if self.symmetric else rows * columns

    @cached_property
    def backend(self) -> Blocks:
        """The back end for blocks of the matrix."""
        return backend_for(self.row_inputs.points.device)

    @property
    def least_memory(self) -> int:
        """Bytes used while a row is computed."""
        # the cosines of it and of the one before, both kernels, a mask and the work space of the
        # evaluation; the series of the row, which outweigh them in tall matrices
        series = 0 if self.surface is None else self.surface.coefficients[:, 0].numel()
        return (6 * len(self.column_inputs) + 3 * series) * self.like.element_size()

    def strips(self, limit: int | None, num_processes: int = 1) -> Iterator[Strip]:
        """Parts of the matrix that are computed together within a limit of memory.

        Where so many processes share the matrix there are enough of them to go round.
        """
        points, size = self.row_inputs.points, len(self.column_inputs)
        threads = torch.get_num_threads() if self.backend.takes_threads else 1
        step = max(1, work_space(limit, points.device) // (self.least_memory * threads))
        if self.symmetric and points.device.type == "cpu":  # entries below the diagonal are wasted
            step = min(step, max(_LEAST_STRIP, size // (_STRIPS * threads)))
        fair = rows_per_process(len(self.row_inputs), num_processes, symmetric=self.symmetric)
        step = min(step, max(fair, _LEAST_STRIP) if self.symmetric else fair)
        if points.device.type == "cuda":  # strips begin where memory is read and written at once
            if self.symmetric:
                step = min(step, max(_LEAST_ENTRIES // size, size // (2 * _STRIPS), _LEAST_STRIP))
            step = 1 << (step.bit_length() - 1)
        if self.surface is None:  # pairs share series of the duals, which take more memory
            step = max(step, PAIRS // size)
        return strips((len(self.row_inputs), size), step, symmetric=self.symmetric)

    def rounded(self, kernel: int) -> "RoundedProducts | None":
        """Products of entries that are made in half precision, on a GPU that has them."""
        if self.like.device.type != "cuda":
            return None
        try:
            from shoal.kernels.gpu.half_precision import rounded_products
        except ImportError:
            return None
        return rounded_products(self, kernel)

    @cached_property
    def _directions(self) -> tuple[Directions, Directions]:
        """Directions of the rows and of the columns, as the back end takes them."""
        rows = self.backend.directions(self.row_inputs.unit)
        return rows, rows if self.symmetric else self.backend.directions(self.column_inputs.unit)

    def cosines(self, strip: Strip) -> Tensor:
        """Cosines of the angles of a strip."""
        rows, columns = self._directions
        return self.backend.cosines(rows[strip.rows], columns[strip.columns])

    def mirror(self, matrix: Tensor, strip: Strip) -> None:
        """Copy the part of a strip above the diagonal to below it, in a symmetric matrix."""
        if self.symmetric:
            self.backend.mirror(matrix, strip.rows)

    def write(self, parts: Sequence[Strip], matrices: MatrixPair) -> Iterator[None]:
        """Write strips of both kernels into whole matrices, and mirror them if symmetric."""

        def begin(strip: Strip) -> Callable[[], None]:
            out, mirrored = (matrices[0][strip], matrices[1][strip]), None
            if self.symmetric:
                mirrored = matrices[0][strip[::-1]], matrices[1][strip[::-1]]
            finish = self._begin(strip, out, mirrored)

            def end() -> None:
                if not finish():
                    for matrix in matrices:
                        self.mirror(matrix, strip)

            return end

        _ = self._directions  # once for all threads
        if self.backend.takes_threads:
            return side_by_side(lambda strip: begin(strip)(), parts)
        return one_behind(map(begin, parts))

    def fill(self, strip: Strip, out: MatrixPair) -> None:
        """Write both kernels of a strip into ``out``.

        The strip of a symmetric matrix begins at its diagonal, which is exact; entries below it are
        not to be used.
        """
        self._begin(strip, out)()

    def _begin(
        self, strip: Strip, out: MatrixPair, mirrored: MatrixPair | None = None
    ) -> Callable[[], bool]:
        """Evaluate a strip, and return a function that waits for it and corrects single entries.

        The function returns whether ``mirrored`` is complete.
        """
        cosine, evaluation = self.cosines(strip), None
        if self.symmetric:
            angles = ANY_ANGLE if self.surface is None else self.surface.angles
            cosine.diagonal().fill_(math.cos(sum(angles) / 2))  # a value inside the range
        if self.surface is not None:
            factors = self.rows[strip.rows], self.columns[strip.columns]
            evaluation = self.backend.evaluate(Block(self.surface, *factors, cosine), out, mirrored)

        def finish() -> bool:
            corrected = evaluation is None or self._has_zeros or evaluation.beyond()
            if corrected:
                self._write_single_entries(strip, cosine, out)
            if self.symmetric:  # whose diagonal is exact
                for q, matrix in enumerate(out):
                    matrix.diagonal().copy_(self.diagonal[q, strip.rows])
            return evaluation is not None and evaluation.mirrored and not corrected

        return finish

    @property
    def _has_zeros(self) -> bool:
        """Whether some inputs are zero, and the surface does not cover their entries."""
        if self.function.architecture.positively_homogeneous:
            return False
        return self.row_inputs.range[2] or self.column_inputs.range[2]

    def uncovered(self, surface: Surface | None, strip: Strip, cosine: Tensor) -> Tensor:
        """Entries that a surface does not cover: other angles, and inputs of zero."""
        if surface is None:
            return torch.ones_like(cosine, dtype=torch.bool)
        least, most = surface.cosines
        uncovered = (cosine > most) | (cosine < least)
        uncovered |= (self.row_inputs.norm[strip.rows] == 0)[:, None]
        return uncovered.logical_or_(self.column_inputs.norm[strip.columns] == 0)

    def _write_single_entries(self, strip: Strip, cosine: Tensor, out: MatrixPair) -> None:
        """Write the entries that the surface does not cover."""
        uncovered = self.uncovered(self.surface, strip, cosine)
        where = (uncovered.triu(1) if self.symmetric else uncovered).nonzero(as_tuple=True)
        i, j = strip.inputs(where)
        if len(i):
            angle = pair_angles(self.row_inputs, self.column_inputs, i, j, cosine[where])
            for matrix, value in zip(out, self.single(i, j, angle), strict=True):
                matrix[where] = value.to(matrix)

    def single(self, i: Tensor, j: Tensor, angle: Tensor) -> Tensor:
        """Both kernels of some rows and columns, whose angles are known. shape: (2, n)."""
        norms = self.row_inputs.norm[i], self.column_inputs.norm[j]
        wide = self.wide or self.surface
        low, high = (math.inf, 0.0) if wide is None else wide.angles
        covered = (angle >= low) & (angle <= high)
        if self._has_zeros:
            covered &= (norms[0] > 0) & (norms[1] > 0)
        values = angle.new_empty(2, len(i))
        if wide is not None and bool(covered.any()):
            rows, columns = i[covered], j[covered]
            scale = self.rows.scale[:, rows].double() * self.columns.scale[:, columns].double()
            features = self.rows.features[rows].double(), self.columns.features[columns].double()
            values[:, covered] = scale * wide.pairs(*features, angle[covered])
        if not bool(covered.all()):
            a, b, t = on_host(*(v[~covered] for v in (*norms, angle)))
            product = torch.where((a == b) & (t == 0), a**2, a * b * t.cos())
            solved = torch.stack(tuple(self.function(a**2, b**2, product)))
            values[:, ~covered] = solved.to(values.device)
        return values


def check_overflow(rows: Tensor, columns: Tensor, dtype: torch.dtype) -> None:
    """Refuse kernels if the bound of their entries, by both diagonals, is beyond a dtype."""
    largest = torch.stack([rows.abs().max(), columns.abs().max()]).sqrt().prod()
    _check_bound(float(largest), dtype)


def _check_bound(largest: float, dtype: torch.dtype) -> None:
    if not largest <= torch.finfo(dtype).max:
        raise AccuracyError(f"the kernel of these inputs overflows {dtype}: scale them down")


def _diagonal(function: KernelFunction, surface: Surface | None, inputs: PolarInputs) -> Tensor:
    """Both kernels of each input with itself, in float64. shape: (2, n)."""
    if surface is None or surface.diagonal is None:
        return diagonal(function, inputs.norm)
    values = inputs.norm.new_tensor(surface.diagonal)[:, None]
    if function.architecture.positively_homogeneous:
        return values * inputs.norm**2
    if not inputs.range[2]:
        return values.expand(-1, len(inputs))
    return torch.where(inputs.norm > 0, values, diagonal(function, inputs.norm.new_zeros(1)))


def _factors(surface: Surface | None, inputs: PolarInputs, self_kernels: Tensor) -> Factors:
    dtype = inputs.points.dtype
    features = (
        inputs.norm.new_ones(len(inputs), 1) if surface is None else surface.features(inputs.norm)
    )
    return Factors(self_kernels.sqrt().to(dtype).contiguous(), features.to(dtype))


def input_diagonal(function: KernelFunction, x: Tensor) -> Kernels:
    """Both kernels of each input with itself, in the dtype of the inputs. shapes: (..., n)."""
    square = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64) ** 2
    check_overflow(square.detach(), square.detach(), torch.float64)
    return _rounded(function.diagonal(square), x.dtype)


def partner_diagonal(function: KernelFunction, first: Tensor, second: Tensor) -> Kernels:
    """Both kernels of each input with its partner, from angles as exact as those of a matrix."""
    dtype = first.dtype
    batch = np.broadcast_shapes(first.shape[:-1], second.shape[:-1])
    first, second = (x.expand(*batch, x.shape[-1]).double() for x in (first, second))
    rows, columns = (PolarInputs(x.detach().reshape(-1, x.shape[-1])) for x in (first, second))
    plan = Plan.for_inputs(replace(function, variances=()), rows, columns, few_pairs=len(rows) ** 2)
    numbers = torch.arange(len(rows), device=rows.points.device)
    angle = pair_angles(rows, columns, numbers, numbers, (rows.unit * columns.unit).sum(-1))
    values = plan.single(numbers, numbers, angle).view(2, *batch)
    kernels = Kernels(values[0], values[1])
    tensors = first, second, *(value for _, value in function.variances)
    if torch.is_grad_enabled() and any(
        t.requires_grad for t in tensors
    ):  # values as above, derivatives by the products
        norms = [torch.linalg.vector_norm(x, dim=-1) for x in (first, second)]
        bound = norms[0] * norms[1]
        products = torch.minimum(torch.maximum((first * second).sum(-1), -bound), bound)
        smooth = function(norms[0] ** 2, norms[1] ** 2, products)
        kernels = Kernels(*(k + (s - s.detach()) for k, s in zip(kernels, smooth, strict=True)))
    return _rounded(kernels, dtype)


def _rounded(kernels: Kernels, dtype: torch.dtype) -> Kernels:
    for values in kernels:
        check_overflow(values.detach(), values.detach(), dtype)
    return Kernels(*(k.to(dtype) for k in kernels))
