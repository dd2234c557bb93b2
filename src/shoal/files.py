"""Files that appear under their name only when they are complete."""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

__all__ = ["checksum", "finite", "write_together", "write_whole"]


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Have a file written under another name, then rename it; an error leaves what was there."""
    _write(target.parent, {target.name: write})


def write_together(folder: Path, writers: Mapping[str, Callable[[Path], object]]) -> list[Path]:
    """Have files written elsewhere, then move them into a folder: all of them, or none.

    Args:
        folder: Where to; it is made if it is not there, and gone again after an error.
        writers: For each name, what writes a file at the path that it is given.

    Returns:
        The files.
    """
    absent = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return _write(folder, writers)
    except BaseException:
        for place in absent:
            place.rmdir()
        raise


def _write(folder: Path, writers: Mapping[str, Callable[[Path], object]]) -> list[Path]:
    staged: dict[Path, Path] = {}
    try:
        for name, write in writers.items():
            with _told_of(folder / name):
                handle, other = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
                os.close(handle)
                staged[Path(other)] = folder / name
                write(Path(other))
                Path(other).chmod(0o666 & ~_umask())
        for temporary, target in staged.items():
            temporary.replace(target)
    except BaseException:
        for temporary in staged:
            temporary.unlink(missing_ok=True)
        raise
    return list(staged.values())


@contextmanager
def _told_of(target: Path) -> Iterator[None]:
    """Errors name the file that was wanted."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error
    except SafetensorError as error:  # a full disk, say
        raise OSError(f"{target} was not written: {error}") from error


def _umask() -> int:
    """What new files are denied; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Of tensors on the CPU, bit by bit, and of their description but for the checksum in it."""
    digest = hashlib.sha256()
    others = {name: text for name, text in metadata.items() if name != "sha256"}
    dtypes = {name: str(tensor.dtype) for name, tensor in tensors.items()}
    digest.update(json.dumps([others, dtypes], sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        # a copy, since numbers may lie apart, as those of a column do
        flat = tensors[name].reshape(-1).clone(memory_format=torch.contiguous_format)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def finite(value: Any) -> Any:
    """Plain values without infinities and NaN, which JSON does not have; ``None`` instead.

    Example:
        >>> finite({"a": [1.5, float("inf")]})
        {'a': [1.5, None]}
    """
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
