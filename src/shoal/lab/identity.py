"""What makes two runs the same: configurations as JSON, their hashes, and seeds."""

import dataclasses
import hashlib
import json
from typing import Any

from shoal.core.fields import stated_fields
from shoal.lab.experiment import Experiment, Point

__all__ = ["digest", "plain", "seed_of"]


def plain(value: Any) -> Any:
    """A configuration as JSON knows it: dataclasses by the names of their classes and fields.

    Raises:
        TypeError: If something in it is neither a dataclass nor a plain value.

    Example:
        >>> import shoal
        >>> plain(shoal.DEQ(shoal.LeakyReLU(0.1), 0.2, 0.8))["activation"]
        {'class': 'LeakyReLU', 'slope': 0.1}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        own = kind.__module__.partition(".")[0] == "shoal"
        name = kind.__qualname__ if own else f"{kind.__module__}.{kind.__qualname__}"
        _check_fields(value)
        return {"class": name, **{f: plain(entry) for f, entry in stated_fields(value).items()}}
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain(entry) for key, entry in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        "a configuration must be made of frozen dataclasses, tuples, numbers and names, "
        f"got {value!r}"
    )


def _check_fields(value: Any) -> None:
    names = {field.name for field in dataclasses.fields(value)}
    if set(getattr(value, "__dict__", ())) - names:
        raise TypeError(
            "a configuration must not have attributes that are no fields of a dataclass, "
            f"got {value!r}"
        )


def digest(value: Any) -> str:
    """A hash of a plain value, in hexadecimal, the same on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def seed_of(experiment: Experiment, point: Point) -> int:
    """The seed of a point: of the experiment's name and configuration and the point, no more."""
    whole = {
        "experiment": list(experiment.name),
        "configuration": plain(experiment),
        "point": dict(point),
    }
    return int(digest(whole)[:15], 16)  # 60 bits: a seed for every generator
