"""Iterations on disk, so that an interrupted one goes on."""

import hashlib
import time
from os import PathLike
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from shoal.files import write_whole
from shoal.kernels.conjugate_gradients import Iteration
from shoal.regression.problem import Problem

__all__ = ["Checkpoint", "identity"]

_SECONDS = 30.0  # between writes
_STATE = ("solution", "residual", "direction")


def identity(problem: Problem, *options: object) -> str:
    """A hash of all that an iteration depends on."""
    parts = (problem.architecture, problem.ridge, problem.kernel, sorted(problem.trainable))
    text = hashlib.sha256(repr((*parts, problem.width, *options)).encode())
    for tensor in (problem.x, problem.y, problem.labels):
        if tensor is None:
            continue
        text.update(str(tuple(tensor.shape)).encode())
        text.update(tensor.cpu().contiguous().numpy().data)
    return text.hexdigest()


class Checkpoint:
    """One file, which is whole or not there.

    Args:
        path: Where it is.
        key: The identity of the problem.
    """

    def __init__(self, path: str | PathLike[str], key: str) -> None:
        self.path = Path(path)
        self.key = key
        self._last = time.monotonic()

    def read(self, like: Tensor) -> Iteration | None:
        """Where the iteration was; ``None`` if there is no file.

        Raises:
            ValueError: If the file is damaged, or of another problem.
        """
        if not self.path.exists():
            return None
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                found = {name: stored[name] for name in stored.files}
            key, steps = str(found["key"]), int(found["steps"])
            x, residual, direction = (torch.from_numpy(found[name]).to(like) for name in _STATE)
            energy = torch.from_numpy(found["energy"]).to(like)
            counts = torch.from_numpy(found["counts"]).to(like.device)
            history = list(torch.from_numpy(found["history"]).to(like))
        except (BadZipFile, EOFError, KeyError, OSError, ValueError) as error:
            raise ValueError(f"checkpoint {self.path} is damaged: {error}") from None
        if key != self.key:
            raise ValueError(
                f"checkpoint {self.path} must be of this problem, and is of another: other data, "
                "kernel, ridge or preconditioner"
            )
        last = energy if len(energy) else None
        return Iteration(x, residual, direction, last, steps, counts, history)

    def offer(self, state: Iteration) -> None:
        """Write if it is time to."""
        if time.monotonic() - self._last >= _SECONDS:
            self.write(state)

    def write(self, state: Iteration) -> None:
        """Write the file, through a temporary one."""
        arrays = {name: getattr(state, name).cpu().numpy() for name in _STATE}
        empty = state.solution.new_empty(0)
        arrays["energy"] = (empty if state.energy is None else state.energy).cpu().numpy()
        history = torch.stack(state.history) if state.history else state.residual[:0]
        arrays |= {"history": history.cpu().numpy(), "counts": state.counts.cpu().numpy()}

        def save(path: Path) -> None:
            with path.open("wb") as file:
                np.savez(file, key=np.array(self.key), steps=np.array(state.steps), **arrays)

        write_whole(self.path, save)
        self._last = time.monotonic()
