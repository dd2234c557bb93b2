"""The record of a run, ``run.json``: whether a JSON document is one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["check_record"]

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
