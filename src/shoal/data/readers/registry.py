"""Which readers there are: of well-known datasets by name, of one's own files by their endings."""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import NamedTuple, TypeVar

from shoal.data.dataset import Dataset

_PACKAGE = "shoal.data.readers"

ReadNamed = Callable[[str, str | os.PathLike[str] | None], Dataset]
ReadFile = Callable[[Path, str | None], Dataset]
N = TypeVar("N", bound=ReadNamed)
F = TypeVar("F", bound=ReadFile)


class NamedReader(NamedTuple):
    """A reader of a well-known dataset, which takes a split and a folder, and its splits."""

    read: ReadNamed
    splits: tuple[str, ...]


_NAMED: dict[str, NamedReader] = {}
_FILES: dict[str, ReadFile] = {}


def reads(name: str, *, splits: tuple[str, ...] = ("train", "test")) -> Callable[[N], N]:
    """Register a function that reads a well-known dataset, bytes of images as they are."""

    def decorate(read: N) -> N:
        _NAMED[name] = NamedReader(read, splits)
        return read

    return decorate


def reads_files(*endings: str) -> Callable[[F], F]:
    """Register a function that reads files of one's own whose names end like this.

    It takes a path and what was said of the labels: where they are, or ``None`` if nothing was;
    then they are those that are in the file anyway.
    """

    def decorate(read: F) -> F:
        _FILES.update(dict.fromkeys(endings, read))
        return read

    return decorate


def named_readers() -> dict[str, NamedReader]:
    """The readers of well-known datasets, the one that needs no files first."""
    _import_all()
    return dict(sorted(_NAMED.items(), key=lambda item: (item[0] != "digits", item[0])))


def file_readers() -> dict[str, ReadFile]:
    """The readers of files by the endings of names."""
    _import_all()
    return dict(sorted(_FILES.items()))


def _import_all() -> None:
    for module in iter_modules(import_module(_PACKAGE).__path__, f"{_PACKAGE}."):
        import_module(module.name)
