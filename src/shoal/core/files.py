"""Files that appear under their name only when they are complete."""

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError
from torch import Tensor

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_LEFTOVER = re.compile(r"\.shoal-[0-9a-f]{32}\.part")
# control characters but tabs and ends of lines, and what turns the direction of text
_UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Have a file written elsewhere, then move it; an error leaves what was there."""
    with _told_of(target), staged(target.parent) as place:
        write(place / target.name)


def write_text(target: Path, text: str) -> None:
    """Write a text in UTF-8: a new file as a whole, or what was there."""
    write_whole(target, lambda path: path.write_text(text, encoding="utf-8", newline="\n"))


def write_json(target: Path, value: Any) -> None:
    """Write plain values as JSON."""
    write_text(target, json_text(value))


def write_together(folder: Path, writers: Mapping[str, Callable[[Path], object]]) -> list[Path]:
    """Have files written elsewhere, then move them into a folder: all of them, or none.

    Args:
        folder: Where to; it is made if it is not there, and gone again after an error.
        writers: For each name, what writes a file at the path that it is given.

    Returns:
        The files.
    """
    with made(folder), staged(folder) as place:
        for name, write in writers.items():
            with _told_of(folder / name):
                write(place / name)
    return [folder / name for name in writers]


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make a folder that is not there; after an error it is gone again."""
    absent = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # something else is there
            for place in absent:
                place.rmdir()
        raise


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A new folder inside another, whose files are moved out of it at the end: all, or none.

    They are on the disk before they are moved, and replace what has their names. An error or
    Ctrl-C, also between two moves, leaves everything as it was. (A process that is killed between
    two moves, which take microseconds, leaves some new and some old files, each of them whole.)
    What a killed process leaves is hidden, and removed by the next one that writes there: the
    folder is locked while somebody works in it.
    """
    remove_leftovers(folder)
    with _locked_folder(folder) as (place, lock):
        new = place / "new"
        new.mkdir()
        yield new
        mode = os.fstat(lock).st_mode & 0o666  # of a file that was made in the usual way
        for file in new.iterdir():
            file.chmod(mode)
            _synchronize(file, os.O_RDWR)
        _move_all(new, folder, place / "old")
        if os.name == "posix":
            with suppress(OSError):  # some file systems cannot; names get to the disk later then
                _synchronize(folder, os.O_RDONLY)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder; what others write stays."""
    for place in folder.glob(".shoal-*.part"):
        with suppress(OSError):  # it has gone meanwhile, or belongs to another user
            if not _LEFTOVER.fullmatch(place.name) or place.is_symlink() or not place.is_dir():
                continue
            lock = lock_file(place / "lock", unlocked=False)
            if lock is not None:
                shutil.rmtree(place, ignore_errors=True)
                os.close(lock)


def lock_file(path: Path, *, unlocked: bool) -> int | None:
    """Open a file, which is made, for as long as this process lives or until it is closed.

    Links are not followed, and nothing is written to it.

    Args:
        path: The file.
        unlocked: Whether to go on where the system has no locks.

    Returns:
        What is to be closed; ``None`` if another process has the file, or has just removed it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        if _locked(handle, unlocked=unlocked) and _is(path, handle):
            return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _locked(handle: int, *, unlocked: bool) -> bool:
    if fcntl is None:
        return unlocked
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return unlocked
        raise
    return True


def _is(path: Path, handle: int) -> bool:
    """Whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


@contextmanager
def _locked_folder(folder: Path) -> Iterator[tuple[Path, int]]:
    """A new folder inside another, and its lock, until it is removed; what stays is a leftover."""
    places: list[Path] = []
    try:
        try:
            place, lock = _begin(folder, places)
            with os.fdopen(lock):  # closed at the end
                yield place, lock
        finally:
            _remove(places)
    finally:
        _remove(places)  # what Ctrl-C has just kept from being removed


def _begin(folder: Path, places: list[Path]) -> tuple[Path, int]:
    """A folder that is locked, and its lock; all that are made are noted before."""
    while True:
        place = folder / f".shoal-{uuid4().hex}.part"
        places.append(place)
        place.mkdir(mode=0o700)
        # until it is locked it looks like a leftover, which another process may remove
        with suppress(FileNotFoundError):
            lock = lock_file(place / "lock", unlocked=True)
            if lock is not None:
                return place, lock


def _remove(places: list[Path]) -> None:
    for place in places:
        shutil.rmtree(place, ignore_errors=True)


def _move_all(new: Path, folder: Path, old: Path) -> None:
    """Move files into a folder, and after an error back."""
    names = sorted(file.name for file in new.iterdir())
    for name in names:
        _check_replaceable(folder / name)
    if len(names) > 1:
        old.mkdir()
        for name in names:
            with _told_of(folder / name):
                _keep(folder / name, old / name)
    try:
        for name in names:
            with _told_of(folder / name):
                (new / name).replace(folder / name)
    except BaseException:
        # what was moved is seen from the folders: an interrupt comes between any two statements
        for name in names if len(names) > 1 else []:
            if os.path.lexists(old / name):
                (old / name).replace(folder / name)
            elif not os.path.lexists(new / name):
                (folder / name).unlink()
        raise


def _check_replaceable(target: Path) -> None:
    """Check that what a file will replace, if anything, is a file or a link: no device, no pipe."""
    with suppress(FileNotFoundError):
        mode = target.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EEXIST
            raise OSError(code, f"{os.strerror(code)}, and is no regular file", str(target))


def _keep(file: Path, copy: Path) -> None:
    """Give a file that is there a second name."""
    if not os.path.lexists(file):
        return
    try:
        os.link(file, copy, follow_symlinks=False)
    except OSError:  # there are no links in this file system, or not to this file
        shutil.copy2(file, copy, follow_symlinks=False)


def _synchronize(path: Path, flags: int) -> None:
    """Wait until what was written is on the disk."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
        raise OSError(errno.EIO, f"was not written: {error}", str(target)) from error


def checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """A checksum of the bits of tensors on the CPU and of their description."""
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


def json_text(document: Any) -> str:
    """A JSON document for people, machines and terminals, with a newline at its end."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def printable(text: str) -> str:
    r"""Text that does nothing to a terminal: what comes from files may hold its commands.

    Example:
        >>> print(printable("\x1b[2Jnamed so"))
        \x1b[2Jnamed so
    """
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
