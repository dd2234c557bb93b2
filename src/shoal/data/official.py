"""Whether a file holds what its publisher put there."""

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path

from shoal.core.files import printable
from shoal.data.files import damaged

__all__ = ["UnofficialDataWarning", "check_official", "warn_unofficial"]


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
