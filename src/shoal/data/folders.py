"""Where data files lie."""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SHOAL_DATA"


@dataclass(frozen=True)
class Files:
    """The files of a dataset: how they are called and where they come from.

    Attributes:
        title: The name of the dataset in messages.
        folders: Subfolders in which they may lie, the preferred one first.
        url: Where they are published.
    """

    title: str
    folders: tuple[str, ...]
    url: str


def cache_folder(platform: str = sys.platform, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder for data of the user's, by the custom of the platform.

    Args:
        platform: As ``sys.platform`` names it.
        environment: The environment variables.

    Example:
        >>> from shoal.data.folders import cache_folder
        >>> cache_folder("linux", {"XDG_CACHE_HOME": "/scratch"}).as_posix()
        '/scratch/shoal'
    """
    if platform == "win32":
        local = environment.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "shoal" / "Cache"
    if platform == "darwin":
        return Path.home() / "Library" / "Caches" / "shoal"
    cache = environment.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "shoal"


def roots(folder: str | os.PathLike[str] | None) -> list[Path]:
    """The folders to look in: ``folder`` alone if given, else those of the user."""
    if folder is not None:
        if not isinstance(folder, str | os.PathLike):
            raise TypeError(f"folder must be a path, got {folder!r}")
        root = Path(folder).expanduser()
        if not root.is_dir():
            raise FileNotFoundError(f"folder must be an existing folder, got {str(root)!r}")
        return [root]
    named = os.environ.get(VARIABLE)
    return ([Path(named).expanduser()] if named else []) + [cache_folder()]


def find(
    files: Files, groups: Iterable[tuple[str, ...]], folder: str | os.PathLike[str] | None
) -> tuple[Path, ...]:
    """Find the files of a dataset, which lie together in one folder.

    Args:
        files: The dataset.
        groups: Sets of file names, any of which is enough; the first one found counts.
        folder: Where to look; ``None`` for the user's folders.

    Returns:
        The paths of one set, in its order.

    Raises:
        FileNotFoundError: If no set is complete; says which files, whence and whither.
    """
    sets = tuple(groups)
    places = roots(folder)
    target, wanted = places[0] / files.folders[0], sets[:2]
    found = f"{files.title} was not found"
    for place in (root / sub for root in places for sub in (*files.folders, ".")):
        for names in sets:
            paths = tuple(place / name for name in names)
            missing = tuple(path.name for path in paths if not path.is_file())
            if not missing:
                return paths
            if len(missing) < len(wanted[0]):  # the least that completes what is there
                target, wanted, found = place, (missing,), f"{files.title} is not complete"
    put = " or ".join(", ".join(names) for names in wanted)
    looked = ", ".join(str(place) for place in places)
    raise FileNotFoundError(
        f"{found}: put {put} from {files.url} into {target}. Looked below {looked}; "
        f"the environment variable {VARIABLE} names another place, and in Python folder=."
    )
