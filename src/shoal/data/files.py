"""The content of files, plain or gzipped, and how their damage is reported."""

import gzip
import os
import zlib
from pathlib import Path

from shoal.core.files import printable

__all__ = ["damaged", "expansion_limit", "read_content"]

# No official file is larger; what is, is not worth the memory.
_LIMIT = 2**30
_SHOWN = 1000  # letters of what is wrong with a file
_ALWAYS, _RATIO = 2**26, 200  # what files may always expand to, and by what factor


def damaged(path: Path, expected: str, got: str) -> ValueError:
    """The error for a file that is not what it should be."""
    shown = got if len(got) <= _SHOWN else f"{got[:_SHOWN]} ..."
    return ValueError(printable(f"{path}: expected {expected}, got {shown}"))


def expansion_limit(stored: int) -> int:
    """How many bytes so many compressed ones may become.

    Numbers worth reading are compressed less; zeros, a thousand times.
    """
    return max(_ALWAYS, _RATIO * stored)


def read_content(path: Path, *, limit: int = _LIMIT) -> bytes:
    """The bytes of a file, decompressed if its name ends in ``.gz``.

    Args:
        path: The file.
        limit: The most bytes to accept, so that a small file cannot expand without end.

    Raises:
        ValueError: If the file is empty, larger than ``limit`` or not intact gzip.
    """
    if path.suffix == ".gz":
        limit = min(limit, expansion_limit(path.stat().st_size))
        content = _decompressed(path, limit)
    else:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size  # as much memory is taken as is asked for
            content = file.read(min(limit, size or limit) + 1)
    if not content:
        raise damaged(path, "data", "an empty file")
    if len(content) > limit:
        raise damaged(path, f"at most {limit} bytes", "more")
    return content


def _decompressed(path: Path, limit: int) -> bytes:
    if path.stat().st_size == 0:
        raise damaged(path, "data", "an empty file")
    try:
        with gzip.open(path) as file:
            return file.read(limit + 1)
    except EOFError as error:
        raise damaged(path, "a complete gzip file", "one that is cut off") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, "an intact gzip file", str(error)) from error
