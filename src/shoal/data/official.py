"""Whether a file holds what its publisher put there."""

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path

from shoal.core.files import printable
from shoal.data.files import damaged

__all__ = ["UnofficialDataWarning", "check_official", "require_official", "warn_unofficial"]


class UnofficialDataWarning(UserWarning):
    """A data file is sound, but it is not the official one, or not all of it."""


def warn_unofficial(message: str) -> None:
    """Warn that what is read is not the official data, or not all of it."""
    warnings.warn(printable(message), UnofficialDataWarning, stacklevel=2)


def check_official(
    path: Path, content: bytes, digest: str, *, others: Mapping[str, str] | None = None
) -> None:
    """Compare the content of a file, decompressed, with the official checksum, before it is parsed.

    Content is compared, not the file, because mirrors compress anew. For formats that are harmless
    to parse; what runs code or may crash on damage needs :func:`require_official`.

    Args:
        path: The file, for the message.
        content: What it holds, decompressed.
        digest: ``"sha256:..."``, or ``"md5:..."`` where only that is published.
        others: Digests of files that are easily mistaken for this one, and what they are.

    Raises:
        ValueError: If the content is that of one of ``others``.

    Warns:
        UnofficialDataWarning: If the content is neither.
    """
    algorithm, expected, found = _digests(content, digest)
    if found == expected:
        return
    other = (others or {}).get(f"{algorithm}:{found}")
    if other is not None:
        raise ValueError(f"{path}: expected the official file, got the file of {other}")
    warn_unofficial(
        f"{path}: this is not the official file: its content has the {algorithm} checksum {found}, "
        f"the official one {expected}"
    )


def require_official(path: Path, content: bytes, digest: str, instead: str) -> None:
    """Refuse content that is not the official one: nothing of it is parsed.

    Args:
        path: The file, for the message.
        content: What it holds, decompressed.
        digest: As for :func:`check_official`.
        instead: What to do with other files.

    Raises:
        ValueError: If the content is another.
    """
    algorithm, expected, found = _digests(content, digest)
    if found != expected:
        raise damaged(
            path,
            f"the official file, of {algorithm} checksum {expected}",
            f"one of {found}, which is not read; {instead}",
        )


def _digests(content: bytes, digest: str) -> tuple[str, str, str]:
    """The algorithm, what is expected, and what is found."""
    algorithm, _, expected = digest.partition(":")
    return algorithm, expected, hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
