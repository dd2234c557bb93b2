"""Files that are whole or not there, in a folder that one run writes to at a time."""

import hashlib
import io
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.files import json_text, lock_file, remove_leftovers, write_whole
from shoal.lab.experiment import Arrays

__all__ = [
    "locked",
    "packed",
    "read_arrays",
    "read_json",
    "write_json",
]

_logger = logging.getLogger(__name__)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document for people and machines."""
    text = json_text(document)
    write_whole(path, lambda file: file.write_bytes(text.encode()))


def read_json(path: Path) -> Any:
    """Read a JSON document; ``None`` if there is none.

    Raises:
        ValueError: If the file is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON document; it is not: {error}") from None


def packed(arrays: Arrays) -> bytes:
    """Named arrays as the content of a file; the same arrays make the same bytes."""
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def read_arrays(path: Path, digest: str | None) -> dict[str, Any] | None:
    """Read named arrays; ``None``, and a warning, if the file is damaged or is another one.

    Args:
        path: The file.
        digest: The SHA-256 of its content, where that is known.
    """
    try:
        content = path.read_bytes()
        if digest not in (None, hashlib.sha256(content).hexdigest()):
            raise ValueError("it is not the file that the record knows")  # noqa: TRY301
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file can fail in any way
        _logger.warning("%s is damaged and will be computed again: %s", path, error)
        return None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process, and remove what a killed one left half-written.

    Raises:
        RuntimeError: If another process holds it. The system frees what a killed process held.
        ValueError: If its lock is a link to somewhere else.
    """
    file = folder / ".lock"
    if file.is_symlink():
        raise ValueError(f"{file} must be a file of its own, got a link")
    lock = lock_file(file, unlocked=True)
    if lock is None:
        raise RuntimeError(
            f"another run is writing to {folder}; wait for it, or choose another output"
        )
    try:
        for place in (folder, *(entry for entry in folder.iterdir() if entry.is_dir())):
            remove_leftovers(place)
        yield
    finally:
        os.close(lock)
