"""Checkpoints: files from which work goes on as if it had never ended."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shoal.core.files import checksum, remove_leftovers, write_whole


class Snapshot(NamedTuple):
    """Work between two steps.

    Attributes:
        facts: What is not a tensor.
        tensors: What is.
    """

    facts: dict[str, Any]
    tensors: dict[str, Tensor]


class Checkpoint:
    """A file that holds the newest snapshot of some work; it is replaced as a whole or not at all.

    Args:
        path: The file.
        kind: What the work is, in one word.
        identity: What its numbers depend on; a file of which any of it differs is refused.
        seconds: How much time passes between two snapshots at least.

    Raises:
        TypeError: If the path is none.
        ValueError: If no file can be written there.
    """

    def __init__(
        self, path: str | os.PathLike[str], kind: str, identity: Mapping[str, str], seconds: float
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"checkpoint must be a path, got {path!r}")
        self.path, self.kind = Path(path), kind
        self.identity, self.seconds = dict(identity), seconds
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
        """Replace the file."""
        tensors = {n: t.detach().cpu().contiguous() for n, t in snapshot.tensors.items()}
        metadata = {
            "format": self._format,
            "identity": json.dumps(self.identity),
            "facts": json.dumps(snapshot.facts),
        }
        metadata["sha256"] = checksum(metadata, tensors)
        write_whole(self.path, lambda file: save_file(tensors, file, metadata=metadata))
        self._written = time.monotonic()

    def read(self, device: torch.device) -> Snapshot | None:
        """The snapshot in the file; ``None`` if there is no file.

        What a killed process left half-written beside it is removed.

        Raises:
            ValueError: If the file is damaged, or of other work.
        """
        remove_leftovers(self.path.parent)
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                names = file.keys()  # no iterator
                tensors = {name: file.get_tensor(name).clone() for name in names}
        except SafetensorError as error:
            raise ValueError(f"{self.path} is damaged or no checkpoint: {error}") from error
        if metadata.get("format") != self._format:
            raise ValueError(f"{self.path} is no checkpoint of a {self.kind}")
        if metadata.get("sha256") != checksum(metadata, tensors):
            raise ValueError(f"{self.path} is damaged: it does not have the checksum it was given")
        identity, facts = (_object(metadata.get(name, "")) for name in ("identity", "facts"))
        if identity is None or facts is None:
            raise ValueError(f"{self.path} is no checkpoint of a {self.kind}: it says too little")
        self._compare(identity)
        return Snapshot(facts, {name: tensor.to(device) for name, tensor in tensors.items()})

    @property
    def _format(self) -> str:
        return f"shoal {self.kind} 1"

    def _compare(self, before: Mapping[str, str]) -> None:
        """Refuse a file of other work, and say in what it differs."""
        other = [n for n in {**self.identity, **before} if before.get(n) != self.identity.get(n)]
        if other:
            raise ValueError(
                f"{self.path} is of another {self.kind}: {', '.join(sorted(other))} differ. Give "
                "the arguments of that one again, as they were when it began, or another path"
            )


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is; ``None`` if it is something else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
