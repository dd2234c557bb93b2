"""Matrices in files, for those that are larger than memory."""

from os import PathLike
from pathlib import Path

import numpy as np
import torch

from shoal.kernels.result import Kernels

__all__ = ["memory_mapped"]


def memory_mapped(
    folder: str | PathLike[str], shape: tuple[int, ...], dtype: torch.dtype
) -> Kernels:
    """Tensors that are mapped to ``ck.npy`` and ``ntk.npy`` in a folder, which is made."""
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise ValueError(f"out must be a folder, got {str(place)!r}, which is a file")
    place.mkdir(parents=True, exist_ok=True)
    numbers = np.float64 if dtype == torch.float64 else np.float32
    arrays = (
        np.lib.format.open_memmap(place / f"{name}.npy", mode="w+", dtype=numbers, shape=shape)
        for name in Kernels._fields
    )
    return Kernels(*(torch.from_numpy(array) for array in arrays))
