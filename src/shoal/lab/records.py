"""The files of a run, whole or not there, in a folder that one run at a time writes to."""

import hashlib
import io
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.checks import as_path
from shoal.core.fields import plain
from shoal.core.files import json_text, lock_file, remove_leftovers, write_whole
from shoal.lab.experiment import Arrays, Experiment, Result, check_experiment, point_names

_logger = logging.getLogger(__name__)
_SESSION = {"started": str, "seconds": float, "computed": int, "jobs": int, "hardware": dict}
_RECORD = {
    "title": str,
    "identity": dict,
    "complete": bool,
    "wall_seconds": float,
    "points": list,
    "sessions": list,
}


def check_record(path: Path, value: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return what a file holds if it is the record of a run with points of these names.

    Raises:
        ValueError: If it is not.
    """
    if (
        not _has(value, _RECORD)
        or not all(_has(row, {"name": str}) for row in value["points"])
        or [row["name"] for row in value["points"]] != list(names)
        or not all(_has(session, _SESSION) for session in value["sessions"])
        or not isinstance(value.get("summary"), dict if value["complete"] else dict | None)
    ):
        raise ValueError(
            f"{path} must be the record of a run with {len(names)} points, and is something else; "
            "remove the folder, or choose another output"
        )
    record: dict[str, Any] = value
    return record


def _has(value: Any, fields: dict[str, type]) -> bool:
    """Whether something is a JSON object with fields of these kinds."""
    return isinstance(value, dict) and all(
        isinstance(value.get(name), int | float if kind is float else kind)
        for name, kind in fields.items()
    )


def collect(experiment: Experiment, folder: str | PathLike[str]) -> list[Result]:
    """The results in the folder of a run, on whatever machine it was made.

    ``experiment.plot`` draws them where the run could not, for lack of matplotlib.

    Args:
        experiment: The experiment.
        folder: The run's own folder, which holds ``run.json``.

    Raises:
        FileNotFoundError: If there is no ``run.json``.
        ValueError: If the folder holds another configuration, or points are missing or damaged.
    """
    check_experiment(experiment)
    place = as_path("folder", folder)
    record = read_json(place / "run.json")
    if record is None:
        raise FileNotFoundError(f"{place} must be the folder of a run, with a run.json")
    identity = record.get("identity") if isinstance(record, dict) else None
    if isinstance(identity, dict) and identity.get("configuration") != plain(experiment):
        raise ValueError(f"{place} must hold this configuration, and holds another")
    names = point_names(experiment)
    rows = check_record(place / "run.json", record, names)["points"]
    found = []
    for point, name, row in zip(experiment.points(), names, rows, strict=True):
        arrays = read_arrays(place / "points" / f"{name}.npz", row.get("sha256"))
        if arrays is None:
            raise ValueError(f"{place} must hold all points, and {name} is missing or damaged")
        found.append(Result(point, arrays))
    return found


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
