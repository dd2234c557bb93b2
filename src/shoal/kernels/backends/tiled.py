"""The back end of a GPU: passes over tiles of a matrix, and products of half-precision numbers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shoal.kernels.backends import half_precision
from shoal.kernels.backends.block import (
    Adjoint,
    Block,
    DifferentiableBlock,
    Directions,
    EvaluatedBlock,
    Polynomial,
    Rounded,
)
from shoal.kernels.backends.blocks import Blocks, Pair, extremes
from shoal.kernels.backends.half_precision import SplitDirections
from shoal.kernels.backends.series_forms import values_form
from shoal.kernels.backends.tiled_passes import (
    adjoint_rows,
    evaluate_rows,
    evaluate_series,
    mirror_tiles,
)


class Tiles(Blocks):
    """The back end of a GPU; entries to first order are those of blocks."""

    def directions(self, unit: Tensor) -> Directions:
        """Unit vectors; those of single precision as numbers of half precision. shape: (n, p)."""
        return SplitDirections.of(unit) if unit.dtype == torch.float32 else unit

    def cosines(self, left: Any, right: Any) -> Tensor:
        """Cosines of the angles between directions of this back end. shape: (n, m)."""
        return (
            left.products(right)
            if isinstance(left, SplitDirections)
            else super().cosines(left, right)
        )

    def evaluate(self, block: Block, out: Pair, mirrored: Pair | None = None) -> EvaluatedBlock:
        """Write both kernels of a block; those of one function of the angle transposed too."""
        surface, cosine = block.surface, block.cosine
        form, series = values_form(surface, cosine.dtype, cosine.device)
        beyond = torch.zeros(1, dtype=torch.int32, device=cosine.device)
        if surface.rank == 1:
            evaluate_series(form, series, block, out, mirrored, beyond)
        else:
            evaluate_rows(form, block.rows.features @ series, block, out, beyond)
            mirrored = None
        return EvaluatedBlock(
            lambda: extremes(cosine), _on_host(beyond), mirrored=mirrored is not None
        )

    def adjoint(self, block: DifferentiableBlock, upstream: Tensor) -> Adjoint:
        """Gradients of cosines and norms of a block, given those of both kernels, (2, n, m)."""
        return adjoint_rows(block, upstream)

    def rounded(self, unit: Tensor) -> Rounded:
        """Directions as numbers of half precision."""
        return half_precision.halves(unit)

    def multiply(
        self,
        polynomial: Polynomial,
        rows: tuple[Rounded, Tensor],
        columns: tuple[Rounded, Tensor],
        *,
        diagonal: bool,
    ) -> tuple[Tensor, Tensor]:
        """Products of a block with vectors of both sides; none of its entries is stored."""
        return half_precision.multiply(polynomial, rows, columns, diagonal=diagonal)

    def mirror(self, matrix: Tensor, rows: slice) -> None:
        """Copy what a strip of rows of a square matrix has above the diagonal to below it."""
        if matrix.stride(1) == 1:
            mirror_tiles(matrix, rows)
        else:
            super().mirror(matrix, rows)


def _on_host(flag: Tensor) -> Callable[[], bool]:
    """A number on its way to the host, and what waits for it."""
    number = torch.empty(1, dtype=flag.dtype, pin_memory=True).copy_(flag, non_blocking=True)
    arrived = torch.cuda.current_stream(flag.device).record_event()

    def wait() -> bool:
        arrived.synchronize()
        return bool(number)

    return wait
