"""The file from which a run of ``train`` continues after an interruption."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shoal.core.checks import as_path
from shoal.core.files import checksum, write_whole

_FORMAT = "shoal training 2"
_SHOWN = 5  # differences in a message


class Snapshot(NamedTuple):
    """A run between two steps.

    Attributes:
        facts: Numbers and names.
        tensors: Weights, the state of the optimizer, records.
    """

    facts: dict[str, Any]
    tensors: dict[str, Tensor]


class Checkpoint:
    """A safetensors file with the newest snapshot of a run.

    Args:
        path: The file.
        run: Descriptions of the run, by name; the file of a run with others is refused.
        seconds: Least time between two snapshots.

    Raises:
        TypeError: If ``path`` is not a path.
        ValueError: If no file can be written there.
    """

    def __init__(
        self, path: str | os.PathLike[str], run: Mapping[str, str], seconds: float
    ) -> None:
        self.path = as_path("checkpoint", path)
        self.run, self.seconds = dict(run), seconds
        folder = self.path.parent
        if not folder.is_dir() or self.path.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(
                "checkpoint must be a file in a folder that exists and can be written to, "
                f"got {str(path)!r}"
            )
        self._written = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time for the next snapshot."""
        return time.monotonic() - self._written >= self.seconds

    def write(self, snapshot: Snapshot) -> None:
        """Replace the file as a whole."""
        tensors = {n: t.detach().cpu().contiguous() for n, t in snapshot.tensors.items()}
        facts = json.dumps(snapshot.facts)
        metadata = {"format": _FORMAT, "run": json.dumps(self.run), "facts": facts}
        metadata["sha256"] = checksum(metadata, tensors)
        write_whole(self.path, lambda file: save_file(tensors, file, metadata=metadata))
        self._written = time.monotonic()

    def read(self) -> Snapshot | None:
        """The snapshot in the file; ``None`` if there is no file.

        Raises:
            ValueError: If the file is damaged, or belongs to another run.
        """
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                names = file.keys()  # no iterator
                tensors = {name: file.get_tensor(name).clone() for name in names}
        except SafetensorError as error:
            raise ValueError(f"{self.path} is damaged or not a checkpoint: {error}") from error
        if metadata.get("format") != _FORMAT:
            raise ValueError(f"{self.path} is not a checkpoint of train")
        if metadata.get("sha256") != checksum(metadata, tensors):
            raise ValueError(f"{self.path} is damaged: its checksum is another")
        _compare(self.path, json.loads(metadata["run"]), self.run)
        return Snapshot(json.loads(metadata["facts"]), tensors)


def described(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """The shape and dtype of each weight, as text."""
    return {name: f"{tuple(t.shape)} {t.dtype}" for name, t in weights.items()}


def _compare(path: Path, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Refuse the file of another run, and list the differences."""
    others = [
        f"{name} is {there.get(name, 'missing')} in the file and {here.get(name, 'missing')} here"
        for name in {**here, **there}
        if there.get(name) != here.get(name)
    ]
    if others:
        more = f"; and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise ValueError(
            f"checkpoint {str(path)!r} belongs to another run: {'; '.join(others[:_SHOWN])}{more}. "
            "Repeat the call that began it, or give another path"
        )
