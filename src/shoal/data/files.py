"""The content of files, plain or gzipped: whether it is damaged, or not the official one."""

import gzip
import hashlib
import os
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path

from shoal.core.files import printable

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


class UnofficialDataWarning(UserWarning):
    """A data file is sound, but it is not the official one, or not all of it."""


def warn_unofficial(message: str) -> None:
    """Warn that what is read is not the official data, or not all of it."""
    warnings.warn(printable(message), UnofficialDataWarning, stacklevel=2)


def check_official(
    path: Path,
    content: bytes,
    digest: str,
    *,
    others: Mapping[str, str] | None = None,
    instead: str = "",
) -> None:
    """Compare the content of a file, decompressed, with the official checksum, before it is parsed.

    Content is compared, not the file, because mirrors compress anew.

    Args:
        path: The file, for the message.
        content: What it holds, decompressed.
        digest: ``"sha256:..."``, or ``"md5:..."`` where only that is published.
        others: Digests of files that are easily mistaken for this one, and what they are.
        instead: For formats that run code or may crash on damage, of which no other file is
            parsed: what to do with one.

    Raises:
        ValueError: If the content is that of one of ``others``, or if no other file is parsed.

    Warns:
        UnofficialDataWarning: If the content is another.
    """
    algorithm, _, expected = digest.partition(":")
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found == expected:
        return
    if instead:
        wanted = f"the official file, of {algorithm} checksum {expected}"
        raise damaged(path, wanted, f"one of {found}, which is not read; {instead}")
    other = (others or {}).get(f"{algorithm}:{found}")
    if other is not None:
        raise ValueError(f"{path}: expected the official file, got the file of {other}")
    warn_unofficial(
        f"{path}: this is not the official file: its content has the {algorithm} checksum {found}, "
        f"the official one {expected}"
    )
