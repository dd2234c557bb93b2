"""Evaluation of one series on many CPU entries in one fused pass, by torch.compile.

Compiling takes some seconds, once for each length of the series (they are padded to multiples of
eight); numbers of entries, coefficients and ranges of angles are arguments and compile nothing new.
"""

import logging
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from shoal.kernels.backends.block import Block
from shoal.kernels.backends.blocks import Blocks, scale_series

__all__ = ["CompiledBlocks", "fused_series"]

_LOGGER = logging.getLogger(__name__)
_MULTIPLE = 8


class CompiledBlocks(Blocks):
    """One compiled pass where a surface is one series; elsewhere, and without it, blocks."""

    def evaluate(self, block: Block, out: tuple[Tensor, Tensor]) -> None:
        """Write both kernels of a block into ``out``; the cosines are used up."""
        surface, rows, columns, cosine = block
        values = None
        if surface.rank == 1:
            low, high = surface.angles
            coefficients = surface.coefficients[:, 0, 0].to(cosine)
            values = fused_series(cosine.view(-1), coefficients, (low + high) / 2, (high - low) / 2)
        if values is None:
            super().evaluate(block, out)
        else:
            scale_series(values.view(2, *cosine.shape), rows, columns, out)


def fused_series(
    cosine: Tensor, coefficients: Tensor, middle: float, half_width: float
) -> Tensor | None:
    """Both series at a vector of cosines; ``None``, with a message, where nothing can be compiled.

    Args:
        cosine: The cosines. shape: (n,)
        coefficients: Chebyshev coefficients of both kernels. shape: (2, degree + 1)
        middle: The middle of the range of angles.
        half_width: Half of its width.

    Returns:
        The values. shape: (2, n)
    """
    if not _Compiler.works:
        return None
    terms = coefficients.shape[1]
    padded = coefficients.new_zeros(2, -(-max(terms, 2) // _MULTIPLE) * _MULTIPLE)
    padded[:, :terms] = coefficients
    ends = cosine.new_tensor([middle, 1 / half_width])
    try:
        values: Tensor = _compiled()(cosine, padded, ends)
    except Exception as error:
        _Compiler.works = False
        reason = str(error).strip().splitlines()
        _LOGGER.warning(
            "torch.compile does not work here (%s): kernels are evaluated in blocks, more slowly",
            reason[0] if reason else type(error).__name__,
        )
        return None
    return values


class _Compiler:
    """Whether compiling has worked so far."""

    works = True


@lru_cache(maxsize=1)
def _compiled() -> Any:
    return torch.compile(_series, dynamic=True, fullgraph=True)


def _series(cosine: Tensor, coefficients: Tensor, ends: Tensor) -> Tensor:
    """Clenshaw's recurrence for both series."""
    t = ((torch.acos(cosine.clamp(-1.0, 1.0)) - ends[0]) * ends[1]).clamp(-1.0, 1.0)
    twice, values = 2 * t, []
    for row in range(2):
        c = coefficients[row]
        first, second = c[-1] + torch.zeros_like(t), torch.zeros_like(t)
        for k in range(c.shape[0] - 2, 0, -1):
            first, second = twice * first + (c[k] - second), first
        values.append(t * first + (c[0] - second))
    return torch.stack(values)
