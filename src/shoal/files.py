"""Files that appear under their name only when they are complete."""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["checksum", "finite", "write_whole"]


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Have a file written under another name, then rename it; an error leaves what was there."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    try:
        write(Path(name))
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


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
