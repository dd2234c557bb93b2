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
from torch import Tensor

from shoal.core.checks import as_path
from shoal.core.files import made, staged
from shoal.core.processes import ALONE, Processes
from shoal.kernels.result import Kernels


@contextmanager
def memory_mapped(
    folder: str | PathLike[str],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    shared: Processes = ALONE,
) -> Iterator[Kernels]:
    """Tensors that are mapped to ``ck.npy`` and ``ntk.npy`` in a folder, which is made.

    The files appear under these names when all is done; earlier ones are replaced, not written to,
    so that tensors mapped to them stay what they are. Of several processes the first makes them.

    Raises:
        OSError: If the disk has no room for them.
    """
    if not shared.first:
        new = shared.common(Path())
        arrays = [np.load(new / f"{name}.npy", mmap_mode="r+") for name in Kernels._fields]
        yield Kernels(*map(torch.from_numpy, arrays))
        for array in arrays:
            array.flush()
        shared.agree({"written": shape})
        return
    place = as_path("out", folder)
    if place.exists() and not place.is_dir():
        raise ValueError(f"out must be a folder, got {str(folder)!r}")
    with made(place), staged(place) as new:
        tensors = []
        for name in Kernels._fields:
            try:
                tensors.append(_mapped(new / f"{name}.npy", shape, dtype))
            except OSError as error:
                size = math.prod(shape) * dtype.itemsize
                what = f"{error.strerror}, for a matrix of {size:,} bytes"
                raise OSError(error.errno, what, str(place / f"{name}.npy")) from error
        shared.common(new.resolve())
        yield Kernels(*tensors)
        shared.agree({"written": shape})


def _mapped(file: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A new file of zeros."""
    numbers = np.float64 if dtype == torch.float64 else np.float32
    array = np.lib.format.open_memmap(file, mode="w+", dtype=numbers, shape=shape)
    _reserve(file)
    return torch.from_numpy(array)


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
