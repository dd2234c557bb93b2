"""Checkpoints: files from which a run goes on as if it had never ended."""

import glob
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from shoal.files import checksum, write_whole

__all__ = ["Checkpoint", "Snapshot"]

_FORMAT = "shoal training 1"


class Snapshot(NamedTuple):
    """A run between two steps.

    Attributes:
        facts: What is not a tensor.
        tensors: What is.
    """

    facts: dict[str, Any]
    tensors: dict[str, Tensor]


class Checkpoint:
    """A file that holds the newest snapshot of a run; it is replaced as a whole or not at all.

    Args:
        path: The file.
        identity: What makes the run this one; a file of another run is refused.
        seconds: How much time passes between two snapshots at least.
    """

    def __init__(self, path: Path, identity: Mapping[str, str], seconds: float) -> None:
        self.path, self.identity, self.seconds = path, dict(identity), seconds
        self._written = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time for the next snapshot."""
        return time.monotonic() - self._written >= self.seconds

    def write(self, snapshot: Snapshot) -> None:
        """Replace the file."""
        tensors = {n: t.detach().cpu().contiguous() for n, t in snapshot.tensors.items()}
        metadata = {
            "format": _FORMAT,
            "identity": json.dumps(self.identity),
            "facts": json.dumps(snapshot.facts),
        }
        metadata["sha256"] = checksum(metadata, tensors)
        # bytes, as the library's own files may be left behind under names of its own
        write_whole(self.path, lambda file: file.write_bytes(save(tensors, metadata=metadata)))
        self._written = time.monotonic()

    def read(self, device: torch.device) -> Snapshot | None:
        """The snapshot in the file; ``None`` if there is no file.

        What a killed process left half-written beside it is removed.

        Raises:
            ValueError: If the file is damaged, or of another run.
        """
        for leftover in self.path.parent.glob(f".{glob.escape(self.path.name)}.*"):
            leftover.unlink(missing_ok=True)
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                names = file.keys()  # no iterator
                tensors = {name: file.get_tensor(name).clone() for name in names}
        except SafetensorError as error:
            raise ValueError(f"{self.path} is damaged or no checkpoint: {error}") from error
        if metadata.get("format") != _FORMAT:
            raise ValueError(f"{self.path} is no checkpoint of a training")
        if metadata.get("sha256") != checksum(metadata, tensors):
            raise ValueError(f"{self.path} is damaged: it does not have the checksum it was given")
        before = json.loads(metadata["identity"])
        other = sorted(
            n for n in {*before, *self.identity} if before.get(n) != self.identity.get(n)
        )
        if other:
            raise ValueError(
                f"{self.path} is of another run: {', '.join(other)} differ. Give the arguments of "
                "that run again, with the network as it was before training, or another path"
            )
        facts = json.loads(metadata["facts"])
        return Snapshot(facts, {name: tensor.to(device) for name, tensor in tensors.items()})
