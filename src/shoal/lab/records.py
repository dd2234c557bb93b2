"""The record of a run, ``run.json``: whether a document is one, and the results that it is of."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from shoal.core.checks import as_path
from shoal.core.fields import plain
from shoal.lab.experiment import Experiment, Result, check_experiment, point_names
from shoal.lab.storage import read_arrays, read_json

__all__ = ["check_record", "collect"]

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
