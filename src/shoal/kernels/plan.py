"""How a kernel matrix is computed: which surface, and what the rows and columns contribute."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.core.exceptions import AccuracyError
from shoal.core.threads import one_behind, side_by_side
from shoal.kernels.approximations.choice import (
    chosen_surface,
    common_norm,
)
from shoal.kernels.approximations.surface import ANY_ANGLE, Span, Surface, diagonal
from shoal.kernels.approximations.typical_angles import GRID
from shoal.kernels.arguments import work_space
from shoal.kernels.blocks import Block, Blocks, Directions, Factors, Pair, backend_for, extremes
from shoal.kernels.function import KernelFunction
from shoal.kernels.inputs import CLOSE, Inputs, pair_angles
from shoal.kernels.strips import Strip, rows_per_process, strips

if TYPE_CHECKING:
    from shoal.kernels.gpu.half_precision import RoundedProducts

GRADIENT_COST = 8  # of an entry whose derivatives are wanted, in entries
FEW_PAIRS = 256  # pairs that are cheaper one by one when derivatives are wanted, ...
_FEW_PAIRS = 4095  # ... and when they are not: those of 90 inputs, fewer than a surface needs
_PAIRS = 4096  # whose scalar equations are solved together at least
_STRIPS = (
    16  # of a symmetric matrix on a CPU, at least (twice as many of a large one on a GPU), ...
)
_LEAST_STRIP = 128  # ... but of so many rows, with which products are as fast as with more
_LEAST_ENTRIES = 1 << 24  # of a strip on a GPU, which has less to do than the host otherwise
INSET = 1e-3  # next to 0 and π derivatives in norms and variances are lost


@dataclass(frozen=True, eq=False)
class Plan:
    """All that blocks of one kernel matrix share.

    Attributes:
        function: The kernel as a function of norms and inner product.
        surface: Its approximation; ``None`` if entries are computed one by one.
        wide: The same for all angles, for entries beyond those of ``surface``; ``None`` if these
            are computed one by one.
        left: The inputs of the rows.
        right: Those of the columns; the same object if the matrix is symmetric.
        rows: What the rows contribute.
        columns: What the columns contribute.
        diagonal: Both kernels of the inputs of the rows with themselves, in float64. shape: (2, n)
        cost: Of an entry, in entries that are only evaluated: more than one if gradients follow.
        seen: The least and the largest cosine of strips, but those near ±1, by first and last row;
            noted where gradients follow.
    """

    function: KernelFunction
    surface: Surface | None
    wide: Surface | None
    left: Inputs
    right: Inputs
    rows: Factors
    columns: Factors
    diagonal: Tensor
    cost: int = 1
    seen: dict[tuple[int, int], Span] = field(default_factory=dict)

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
        few_pairs: int | None = None,
        cost: int = 1,
    ) -> "Plan":
        """Choose the way for some inputs; up to ``few_pairs`` are computed one by one."""
        few_pairs = _FEW_PAIRS if few_pairs is None else few_pairs
        check_overflow(left.norm**2, right.norm**2, torch.float64)  # in which they are computed
        chosen, wide = chosen_surface(function, left, right, few_pairs)
        own = _diagonal(function, chosen, left)
        other = own if right is left else _diagonal(function, chosen, right)
        check_overflow(own, other, left.points.dtype)
        rows = _factors(chosen, left, own)
        columns = rows if right is left else _factors(chosen, right, other)
        return cls(function, chosen, wide, left, right, rows, columns, own, cost)

    @cached_property
    def squared_norm(self) -> float | None:
        """The squared norm of all inputs but zero; ``None`` if they differ."""
        if self.surface is None or self.surface.norms is not None:
            return None
        norms = torch.cat([self.left.norm, self.right.norm])
        return common_norm(self.function, norms[norms > 0], self.left.points.dtype)

    @property
    def pairs(self) -> int:
        """How many entries are computed."""
        return _pairs(self.left, self.right)

    @cached_property
    def backend(self) -> Blocks:
        """What computes with blocks of the matrix."""
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
        if self.symmetric and points.device.type == "cpu":  # what is below the diagonal is wasted
            step = min(step, max(_LEAST_STRIP, size // (_STRIPS * threads)))
        fair = rows_per_process(len(self.left), num_processes, symmetric=self.symmetric)
        step = min(step, max(fair, _LEAST_STRIP) if self.symmetric else fair)
        if points.device.type == "cuda":  # strips begin where memory is read and written at once
            if self.symmetric:
                step = min(step, max(_LEAST_ENTRIES // size, size // (2 * _STRIPS), _LEAST_STRIP))
            step = 1 << (step.bit_length() - 1)
        if self.surface is None:  # pairs share series of the duals, which take more memory
            step = max(step, _PAIRS // size)
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
        """Those of the rows and of the columns, as the back end takes them."""
        left = self.backend.directions(self.left.unit)
        return left, left if self.symmetric else self.backend.directions(self.right.unit)

    def cosines(self, strip: Strip) -> Tensor:
        """Cosines of the angles of a strip."""
        left, right = self._directions
        return self.backend.cosines(left[strip.rows], right[strip.columns])

    def angles(self, limit: int | None) -> Span:
        """A range that holds all angles seen but those near 0 and π, rounded outwards."""
        if not self.seen:  # the matrix has not been filled for it
            for strip in self.strips(limit):
                cosine = self.cosines(strip)
                self._note(strip, cosine, extremes(cosine))
        lows, highs = zip(*self.seen.values(), strict=True)
        low = math.floor(math.acos(max(0.0, *highs)) * GRID) / GRID
        high = math.ceil(math.acos(min(0.0, *lows)) * GRID) / GRID
        return max(low, INSET), min(high, math.pi - INSET)

    def _note(self, strip: Strip, cosine: Tensor, seen: Span) -> None:
        """Note the least and the largest cosine of a strip, but those near ±1."""
        if max(-seen[0], seen[1]) > 1 - CLOSE:
            seen = extremes(cosine.masked_fill(cosine.abs() > 1 - CLOSE, 0.0))
        self.seen[strip.rows.start, strip.rows.stop] = seen

    def mirror(self, matrix: Tensor, strip: Strip) -> None:
        """Copy what a strip of a symmetric matrix has above the diagonal to below it."""
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

        _ = self._directions, self._has_zeros  # once for all threads
        if self.backend.takes_threads:
            return side_by_side(lambda strip: begin(strip)(), parts)
        return one_behind(map(begin, parts))

    def fill(self, strip: Strip, out: Pair) -> None:
        """Write both kernels of a strip into ``out``.

        The strip of a symmetric matrix begins at its diagonal, which is exact; what lies below it
        is not to be used.
        """
        self._begin(strip, out)()

    def _begin(self, strip: Strip, out: Pair, mirrored: Pair | None = None) -> Callable[[], bool]:
        """Evaluate a strip; what it returns mends single entries.

        That waits for the device, and tells whether ``mirrored`` needs nothing more.
        """
        cosine = self.cosines(strip)
        if self.symmetric:
            angles = ANY_ANGLE if self.surface is None else self.surface.angles
            cosine.diagonal().fill_(math.cos(sum(angles) / 2))  # any that needs no care
        if self.surface is None:
            self._fill_directly(strip, cosine, out)
            self._fill_diagonal(strip, out)
            return lambda: False
        factors = self.rows[strip.rows], self.columns[strip.columns]
        done = self.backend.evaluate(Block(self.surface, *factors, cosine), out, mirrored)

        def finish() -> bool:
            if self.cost > 1:  # gradients will ask for it
                self._note(strip, cosine, done.cosines())
            mended = done.beyond()
            if mended:
                self._fill_special(strip, cosine, out)
            if self._has_zeros:
                self._fill_zeros(strip, out)
            self._fill_diagonal(strip, out)
            return done.mirrored and not (mended or self._has_zeros)

        return finish

    def _fill_diagonal(self, strip: Strip, out: Pair) -> None:
        """The diagonal of a symmetric matrix, which is exact."""
        if self.symmetric:
            for q, matrix in enumerate(out):
                matrix.diagonal().copy_(self.diagonal[q, strip.rows])

    @cached_property
    def _has_zeros(self) -> bool:
        """Whether some inputs are zero, and the surface does not know their entries."""
        if self.function.architecture.positively_homogeneous:
            return False
        return any(bool((inputs.norm == 0).any()) for inputs in (self.left, self.right))

    def _fill_directly(self, strip: Strip, cosine: Tensor, out: Pair) -> None:
        """Write both kernels of a strip by the scalar equations of every entry."""
        where = torch.ones_like(cosine, dtype=torch.bool)
        if self.symmetric:
            where = where.triu(1)
        indices = where.nonzero(as_tuple=True)
        if len(indices[0]):
            i, j = strip.inputs(indices)
            values = self._exact(i, j, cosine[indices])
            for matrix, value in zip(out, values, strict=True):
                matrix[indices] = value.to(matrix)

    def _fill_special(self, strip: Strip, cosine: Tensor, out: Pair) -> None:
        """Entries whose angle the product has lost or the surface does not know."""
        chosen = self.surface
        assert chosen is not None
        least, most = chosen.cosines
        beyond = (cosine > most) | (cosine < least)
        where = (beyond.triu(1) if self.symmetric else beyond).nonzero(as_tuple=True)
        i, j = strip.inputs(where)
        found = cosine[where]
        angle = pair_angles(self.left, self.right, i, j, found)
        known = chosen if self.wide is None else self.wide
        inside = (angle >= known.angles[0]) & (angle <= known.angles[1])
        values = torch.empty(2, len(i), dtype=torch.float64, device=found.device)
        if bool(inside.any()):
            left, right = i[inside], j[inside]
            scale = self.rows.scale[:, left].double() * self.columns.scale[:, right].double()
            features = self.rows.features[left].double(), self.columns.features[right].double()
            values[:, inside] = scale * known.pairs(*features, angle[inside])
        if not bool(inside.all()):
            values[:, ~inside] = self._exact(i[~inside], j[~inside], found[~inside])
        for matrix, value in zip(out, values, strict=True):
            matrix[where] = value.to(matrix)

    def _exact(self, i: Tensor, j: Tensor, cosine: Tensor) -> Tensor:
        """Pairs by their scalar equations. shape: (2, n)."""
        angle = pair_angles(self.left, self.right, i, j, cosine)
        return pairs_at_angles(self.function, self.left.norm[i], self.right.norm[j], angle)

    def _fill_zeros(self, strip: Strip, out: Pair) -> None:
        """The rows and columns of inputs that are zero, which the surface does not know."""
        left, right = self.left.norm[strip.rows], self.right.norm[strip.columns]
        for dim, own, other in ((0, left, right), (1, right, left)):
            zero = (own == 0).nonzero()[:, 0]
            if len(zero):
                nothing = torch.zeros_like(other)
                for matrix, values in zip(
                    out, self.function(nothing, other**2, nothing), strict=True
                ):
                    matrix.index_copy_(dim, zero, torch.stack([values.to(matrix)] * len(zero), dim))


def check_overflow(rows: Tensor, columns: Tensor, dtype: torch.dtype) -> None:
    """Refuse kernels if the bound of their entries, by both diagonals, is beyond a dtype."""
    largest = float(rows.abs().max()) ** 0.5 * float(columns.abs().max()) ** 0.5
    if not largest <= torch.finfo(dtype).max:
        raise AccuracyError(f"the kernel of these inputs overflows {dtype}")


def _pairs(left: Inputs, right: Inputs) -> int:
    return len(left) * (len(left) + 1) // 2 if right is left else len(left) * len(right)


def pairs_at_angles(function: KernelFunction, left: Tensor, right: Tensor, angle: Tensor) -> Tensor:
    """Both kernels at pairs of norms and their angles, by scalar equations. shape: (2, n)."""
    product = torch.where((left == right) & (angle == 0), left**2, left * right * angle.cos())
    return torch.stack(tuple(function(left**2, right**2, product)))


def _diagonal(function: KernelFunction, chosen: Surface | None, inputs: Inputs) -> Tensor:
    """Both kernels of each input with itself, in float64. shape: (2, n)."""
    if chosen is None or chosen.diagonal is None:
        return diagonal(function, inputs.norm)
    own = inputs.norm.new_tensor(chosen.diagonal)[:, None]
    if function.architecture.positively_homogeneous:
        return own * inputs.norm**2
    present = inputs.norm > 0
    if bool(present.all()):
        return own.expand(-1, len(inputs))
    return torch.where(present, own, diagonal(function, inputs.norm.new_zeros(1)))


def _factors(chosen: Surface | None, inputs: Inputs, own: Tensor) -> Factors:
    dtype = inputs.points.dtype
    features = (
        inputs.norm.new_ones(len(inputs), 1) if chosen is None else chosen.features(inputs.norm)
    )
    return Factors(own.sqrt().to(dtype).contiguous(), features.to(dtype))
