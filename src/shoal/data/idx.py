"""IDX, the format of MNIST: unsigned bytes behind a header with their shape."""

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.data.files import damaged

__all__ = ["parse_idx"]


def parse_idx(path: Path, content: bytes, *, axes: int) -> NDArray[np.uint8]:
    """The array in an IDX file.

    Args:
        path: The file, for messages.
        content: What it holds, decompressed.
        axes: How many axes the array must have: 1 for labels, 3 for images.

    Raises:
        ValueError: If the magic number, the shape or the length is not what it should be.
    """
    magic = struct.pack(">BBBB", 0, 0, 0x08, axes)  # 0x08: unsigned bytes
    header = 4 + 4 * axes
    if content[:4] != magic:
        raise damaged(path, f"the IDX magic number {magic.hex()}", content[:4].hex())
    if len(content) < header:
        raise damaged(path, f"an IDX header of {header} bytes", f"{len(content)} bytes in all")
    shape = struct.unpack(f">{axes}I", content[4:header])
    size = math.prod(shape)
    if size == 0:
        raise damaged(path, "at least one entry", f"the shape {shape}")
    if len(content) - header != size:
        stated = "×".join(map(str, shape))
        raise damaged(
            path, f"{size} bytes behind the header, for {stated}", f"{len(content) - header}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)
