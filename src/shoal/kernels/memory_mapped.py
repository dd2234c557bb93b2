"""Matrices in files, for those that are larger than memory."""

import errno
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from shoal.core.checks import as_path
from shoal.core.files import made, staged
from shoal.kernels.result import Kernels

__all__ = ["memory_mapped"]


@contextmanager
def memory_mapped(
    folder: str | PathLike[str], shape: tuple[int, ...], dtype: torch.dtype
) -> Iterator[Kernels]:
    """Tensors that are mapped to ``ck.npy`` and ``ntk.npy`` in a folder, which is made.

    The files appear under these names when all is done; earlier ones are replaced, not written to,
    so that tensors mapped to them stay what they are.

    Raises:
        OSError: If the disk has no room for them.
    """
    place = as_path("out", folder)
    if place.exists() and not place.is_dir():
        raise ValueError(f"out must be a folder, got {str(folder)!r}")
    numbers = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
    with made(place), staged(place) as new:
        tensors = []
        for name in Kernels._fields:
            try:
                array = np.lib.format.open_memmap(
                    new / f"{name}.npy", mode="w+", dtype=numbers, shape=shape
                )
                _reserve(new / f"{name}.npy")
            except OSError as error:
                size = math.prod(shape) * numbers.itemsize
                what = f"{error.strerror}, for a matrix of {size:,} bytes"
                raise OSError(error.errno, what, str(place / f"{name}.npy")) from error
            tensors.append(torch.from_numpy(array))
        yield Kernels(*tensors)


def _reserve(file: Path) -> None:
    """Take the room of a file on the disk, where a mapped one only finds out when it is written.

    The system kills a process that writes to a mapped file on a full disk.
    """
    size = file.stat().st_size
    if shutil.disk_usage(file.parent).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if hasattr(os, "posix_fallocate"):
        with file.open("rb+") as opened:
            os.posix_fallocate(opened.fileno(), 0, size)
