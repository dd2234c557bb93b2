"""Back ends of kernel matrices: blocks of torch, compiled loops on a CPU, and the tiles of a GPU.

Another one is a file with a subclass of :class:`Blocks` and a line in :func:`backend_for`.
"""

import logging
from functools import lru_cache

import torch

from shoal.kernels.backends.block import (
    Adjoint,
    Block,
    DifferentiableBlock,
    DifferentiableFactors,
    Directions,
    Entries,
    Factors,
    Polynomial,
    Rounded,
)
from shoal.kernels.backends.blocks import Blocks, Pair, extremes

__all__ = [
    "Adjoint",
    "Block",
    "Blocks",
    "DifferentiableBlock",
    "DifferentiableFactors",
    "Directions",
    "Entries",
    "Factors",
    "Pair",
    "Polynomial",
    "Rounded",
    "backend_for",
    "extremes",
]

_LOGGER = logging.getLogger(__name__)
_MANY = 1 << 18  # entries for which loading compiled loops pays


def backend_for(device: torch.device, entries: int) -> Blocks:
    """The back end of a device, for a matrix of which so many entries are computed."""
    found = None
    if device.type == "cuda":
        found = _tiles()
    elif device.type == "cpu" and entries >= _MANY:
        found = _loops()
    return Blocks() if found is None else found


@lru_cache(maxsize=1)
def _tiles() -> Blocks | None:
    """The passes of a GPU, where their compiler is installed."""
    try:
        from shoal.kernels.backends.tiled import Tiles
    except ImportError:
        _LOGGER.warning("triton is not installed: kernels are evaluated in blocks, more slowly")
        return None
    return Tiles()


@lru_cache(maxsize=1)
def _loops() -> Blocks | None:
    """The loops of a CPU, where their compiler is installed."""
    try:
        from shoal.kernels.backends.loops import Loops
    except ImportError:
        _LOGGER.info("numba is not installed: kernels are evaluated in blocks, more slowly")
        return None
    return Loops()
