"""Matrices in files, for those that are larger than memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from shoal.files import staged
from shoal.kernels.result import Kernels

__all__ = ["memory_mapped"]


@contextmanager
def memory_mapped(
    folder: str | PathLike[str], shape: tuple[int, ...], dtype: torch.dtype
) -> Iterator[Kernels]:
    """Tensors that are mapped to ``ck.npy`` and ``ntk.npy`` in a folder, which is made.

    The files appear under these names when all is done; earlier ones are replaced, not written to,
    so that tensors mapped to them stay what they are.
    """
    place = Path(folder)
    if not str(folder) or (place.exists() and not place.is_dir()):
        raise ValueError(f"out must be a folder, got {str(folder)!r}")
    place.mkdir(parents=True, exist_ok=True)
    numbers = np.float64 if dtype == torch.float64 else np.float32
    with staged(place) as new:
        arrays = (
            np.lib.format.open_memmap(new / f"{name}.npy", mode="w+", dtype=numbers, shape=shape)
            for name in Kernels._fields
        )
        yield Kernels(*(torch.from_numpy(array) for array in arrays))
