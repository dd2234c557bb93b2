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
from shoal.kernels.arguments import PAIRS, Inputs, Kernels, on_host, pair_angles, work_space
from shoal.kernels.blocks import (
    Block,
    Blocks,
    Directions,
    Factors,
    Pair,
    Strip,
    backend_for,
    rows_per_process,
    strips,
)
from shoal.kernels.function import KernelFunction
from shoal.kernels.surface import (
    ANY_ANGLE,
    Surface,
    chosen_surface,
    common_norm,
    diagonal,
)

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
        left: The inputs of the rows.
        right: The inputs of the columns; the same object if the matrix is symmetric.
        rows: Scales and features of the rows.
        columns: Scales and features of the columns.
        diagonal: Both kernels of the inputs of the rows with themselves, in float64. shape: (2, n)
    """

    function: KernelFunction
    surface: Surface | None
    wide: Surface | None
    left: Inputs
    right: Inputs
    rows: Factors
    columns: Factors
    diagonal: Tensor

    @property
    def symmetric(self) -> bool:
        """Whether rows and columns are the same inputs."""
        return self.left is self.right

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.left), len(self.right)

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and the device of the matrix."""
        return self.left.points

    @classmethod
    def of(
        cls,
        function: KernelFunction,
        left: Inputs,
        right: Inputs,
        *,
        few_pairs: int = _FEW_PAIRS,
    ) -> "Plan":
        """Choose the way for some inputs; up to ``few_pairs`` are computed one by one."""
        check_norms(left, right)
        chosen, wide = chosen_surface(function, left, right, few_pairs)
        own = _diagonal(function, chosen, left)
        other = own if right is left else _diagonal(function, chosen, right)
        check_overflow(own, other, left.points.dtype)
        rows = _factors(chosen, left, own)
        columns = rows if right is left else _factors(chosen, right, other)
        return cls(function, chosen, wide, left, right, rows, columns, own)

    @cached_property
    def squared_norm(self) -> float | None:
        """The squared norm of all inputs but zero; ``None`` if they differ."""
        if self.surface is None or self.surface.norms is not None:
            return None
        return common_norm(self.function, self.left, self.right)

    @property
    def pairs(self) -> int:
        """How many entries are computed."""
        return _pairs(self.left, self.right)

    @cached_property
    def backend(self) -> Blocks:
        """The back end for blocks of the matrix."""
        return backend_for(self.left.points.device)

    @property
    def least_memory(self) -> int:
        """Bytes that a row takes while it is computed."""
        # the cosines of it and of the one before, both kernels, a mask and the work space of the
        # evaluation; the series of the row, which outweigh them in tall matrices
        series = 0 if self.surface is None else self.surface.coefficients[:, 0].numel()
        return (6 * len(self.right) + 3 * series) * self.like.element_size()

    def strips(self, limit: int | None, num_processes: int = 1) -> Iterator[Strip]:
        """Parts of the matrix that are computed together within a limit of memory.

        Where so many processes share the matrix there are enough of them to go round.
        """
        points, size = self.left.points, len(self.right)
        threads = torch.get_num_threads() if self.backend.takes_threads else 1
        step = max(1, work_space(limit, points.device) // (self.least_memory * threads))
        if self.symmetric and points.device.type == "cpu":  # entries below the diagonal are wasted
            step = min(step, max(_LEAST_STRIP, size // (_STRIPS * threads)))
        fair = rows_per_process(len(self.left), num_processes, symmetric=self.symmetric)
        step = min(step, max(fair, _LEAST_STRIP) if self.symmetric else fair)
        if points.device.type == "cuda":  # strips begin where memory is read and written at once
            if self.symmetric:
                step = min(step, max(_LEAST_ENTRIES // size, size // (2 * _STRIPS), _LEAST_STRIP))
            step = 1 << (step.bit_length() - 1)
        if self.surface is None:  # pairs share series of the duals, which take more memory
            step = max(step, PAIRS // size)
        return strips((len(self.left), size), step, symmetric=self.symmetric)

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
        left = self.backend.directions(self.left.unit)
        return left, left if self.symmetric else self.backend.directions(self.right.unit)

    def cosines(self, strip: Strip) -> Tensor:
        """Cosines of the angles of a strip."""
        left, right = self._directions
        return self.backend.cosines(left[strip.rows], right[strip.columns])

    def mirror(self, matrix: Tensor, strip: Strip) -> None:
        """Copy the part of a strip above the diagonal to below it, in a symmetric matrix."""
        if self.symmetric:
            self.backend.mirror(matrix, strip.rows)

    def write(self, parts: Sequence[Strip], matrices: Pair) -> Iterator[None]:
        """Write strips of both kernels into whole matrices, and mirror them if symmetric."""

        def begin(strip: Strip) -> Callable[[], None]:
            out, below = (matrices[0][strip], matrices[1][strip]), None
            if self.symmetric:
                below = matrices[0][strip[::-1]], matrices[1][strip[::-1]]
            finish = self._begin(strip, out, below)

            def end() -> None:
                if not finish():
                    for matrix in matrices:
                        self.mirror(matrix, strip)

            return end

        _ = self._directions  # once for all threads
        if self.backend.takes_threads:
            return side_by_side(lambda strip: begin(strip)(), parts)
        return one_behind(map(begin, parts))

    def fill(self, strip: Strip, out: Pair) -> None:
        """Write both kernels of a strip into ``out``.

        The strip of a symmetric matrix begins at its diagonal, which is exact; entries below it are
        not to be used.
        """
        self._begin(strip, out)()

    def _begin(self, strip: Strip, out: Pair, mirrored: Pair | None = None) -> Callable[[], bool]:
        """Evaluate a strip, and return a function that waits for it and mends single entries.

        The function returns whether ``mirrored`` is complete.
        """
        cosine, done = self.cosines(strip), None
        if self.symmetric:
            angles = ANY_ANGLE if self.surface is None else self.surface.angles
            cosine.diagonal().fill_(math.cos(sum(angles) / 2))  # any that needs no care
        if self.surface is not None:
            factors = self.rows[strip.rows], self.columns[strip.columns]
            done = self.backend.evaluate(Block(self.surface, *factors, cosine), out, mirrored)

        def finish() -> bool:
            mended = done is None or self._has_zeros or done.beyond()
            if mended:
                self._mend(strip, cosine, out)
            if self.symmetric:  # whose diagonal is exact
                for q, matrix in enumerate(out):
                    matrix.diagonal().copy_(self.diagonal[q, strip.rows])
            return done is not None and done.mirrored and not mended

        return finish

    @property
    def _has_zeros(self) -> bool:
        """Whether some inputs are zero, and the surface does not cover their entries."""
        if self.function.architecture.positively_homogeneous:
            return False
        return self.left.range[2] or self.right.range[2]

    def outside(self, surface: Surface | None, strip: Strip, cosine: Tensor) -> Tensor:
        """Entries that a surface does not cover: other angles, and inputs of zero."""
        if surface is None:
            return torch.ones_like(cosine, dtype=torch.bool)
        least, most = surface.cosines
        outside = (cosine > most) | (cosine < least)
        outside |= (self.left.norm[strip.rows] == 0)[:, None]
        return outside.logical_or_(self.right.norm[strip.columns] == 0)

    def _mend(self, strip: Strip, cosine: Tensor, out: Pair) -> None:
        """Write entries that the surface does not cover, or whose angle the product has lost."""
        outside = self.outside(self.surface, strip, cosine)
        where = (outside.triu(1) if self.symmetric else outside).nonzero(as_tuple=True)
        i, j = strip.inputs(where)
        if len(i):
            angle = pair_angles(self.left, self.right, i, j, cosine[where])
            for matrix, value in zip(out, self.single(i, j, angle), strict=True):
                matrix[where] = value.to(matrix)

    def single(self, i: Tensor, j: Tensor, angle: Tensor) -> Tensor:
        """Both kernels of some rows and columns, whose angles are known. shape: (2, n)."""
        norms, wide = (self.left.norm[i], self.right.norm[j]), self.wide or self.surface
        low, high = (math.inf, 0.0) if wide is None else wide.angles
        covered = (angle >= low) & (angle <= high)
        if self._has_zeros:
            covered &= (norms[0] > 0) & (norms[1] > 0)
        values = angle.new_empty(2, len(i))
        if wide is not None and bool(covered.any()):
            left, right = i[covered], j[covered]
            scale = self.rows.scale[:, left].double() * self.columns.scale[:, right].double()
            features = self.rows.features[left].double(), self.columns.features[right].double()
            values[:, covered] = scale * wide.pairs(*features, angle[covered])
        if not bool(covered.all()):
            a, b, t = on_host(*(v[~covered] for v in (*norms, angle)))
            product = torch.where((a == b) & (t == 0), a**2, a * b * t.cos())
            solved = torch.stack(tuple(self.function(a**2, b**2, product)))
            values[:, ~covered] = solved.to(values.device)
        return values


def check_norms(left: Inputs, right: Inputs) -> None:
    """Refuse inputs whose squared norms are beyond float64, in which kernels are computed."""
    largest = max(left.range[1], right.range[1])
    _check_bound(largest * largest, torch.float64)


def check_overflow(rows: Tensor, columns: Tensor, dtype: torch.dtype) -> None:
    """Refuse kernels if the bound of their entries, by both diagonals, is beyond a dtype."""
    largest = torch.stack([rows.abs().max(), columns.abs().max()]).sqrt().prod()
    _check_bound(float(largest), dtype)


def _check_bound(largest: float, dtype: torch.dtype) -> None:
    if not largest <= torch.finfo(dtype).max:
        raise AccuracyError(f"the kernel of these inputs overflows {dtype}: scale them down")


def _pairs(left: Inputs, right: Inputs) -> int:
    return len(left) * (len(left) + 1) // 2 if right is left else len(left) * len(right)


def _diagonal(function: KernelFunction, chosen: Surface | None, inputs: Inputs) -> Tensor:
    """Both kernels of each input with itself, in float64. shape: (2, n)."""
    if chosen is None or chosen.diagonal is None:
        return diagonal(function, inputs.norm)
    own = inputs.norm.new_tensor(chosen.diagonal)[:, None]
    if function.architecture.positively_homogeneous:
        return own * inputs.norm**2
    if not inputs.range[2]:
        return own.expand(-1, len(inputs))
    return torch.where(inputs.norm > 0, own, diagonal(function, inputs.norm.new_zeros(1)))


def _factors(chosen: Surface | None, inputs: Inputs, own: Tensor) -> Factors:
    dtype = inputs.points.dtype
    features = (
        inputs.norm.new_ones(len(inputs), 1) if chosen is None else chosen.features(inputs.norm)
    )
    return Factors(own.sqrt().to(dtype).contiguous(), features.to(dtype))


def own_diagonal(function: KernelFunction, x: Tensor) -> Kernels:
    """Both kernels of each input with itself, in the dtype of the inputs. shapes: (..., n)."""
    square = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64) ** 2
    check_overflow(square.detach(), square.detach(), torch.float64)
    return _rounded(function.own(square), x.dtype)


def partner_diagonal(function: KernelFunction, first: Tensor, second: Tensor) -> Kernels:
    """Both kernels of each input with its partner, from angles as exact as those of a matrix."""
    dtype = first.dtype
    batch = np.broadcast_shapes(first.shape[:-1], second.shape[:-1])
    first, second = (x.expand(*batch, x.shape[-1]).double() for x in (first, second))
    left, right = (Inputs(x.detach().reshape(-1, x.shape[-1])) for x in (first, second))
    plan = Plan.of(replace(function, variances=()), left, right, few_pairs=len(left) ** 2)
    each = torch.arange(len(left), device=left.points.device)
    angle = pair_angles(left, right, each, each, (left.unit * right.unit).sum(-1))
    values = plan.single(each, each, angle).view(2, *batch)
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
