"""Back ends of kernel matrices: blocks of torch, a compiled pass, and the tiles of a GPU.

Another one is a file with a subclass of :class:`Blocks` and a line in :func:`backend_for`.
"""

import logging
from functools import lru_cache

import torch

from shoal.kernels.backends.block import Block, DifferentiableFactors, Entries, Factors
from shoal.kernels.backends.blocks import Blocks
from shoal.kernels.backends.compiled import CompiledBlocks

__all__ = ["Block", "DifferentiableFactors", "Entries", "Factors", "backend_for"]

_LOGGER = logging.getLogger(__name__)


def backend_for(device: torch.device, *, fuse: bool = False) -> Blocks:
    """The back end of a device; ``fuse`` compiles one pass on a CPU, and a GPU has one anyway."""
    tiles = _tiles() if device.type == "cuda" else None
    if tiles is not None:
        return tiles
    return CompiledBlocks() if fuse else Blocks()


@lru_cache(maxsize=1)
def _tiles() -> Blocks | None:
    """The passes of a GPU, where their compiler is installed."""
    try:
        from shoal.kernels.backends.tiled import Tiles
    except ImportError:
        _LOGGER.warning("triton is not installed: kernels are evaluated in blocks, more slowly")
        return None
    return Tiles()
