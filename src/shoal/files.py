"""Files that appear under their name only when they are complete."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["write_whole"]


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
