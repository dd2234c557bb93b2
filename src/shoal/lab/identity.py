"""What makes two runs the same: hashes of configurations, and seeds."""

import hashlib
import json
from typing import Any

from shoal.core.fields import plain
from shoal.lab.experiment import Experiment, Point

__all__ = ["digest", "seed_of"]


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
