"""Conjugate gradients on disk, so that an interrupted regression goes on."""

from os import PathLike
from typing import Any

import torch
from torch import Tensor

from shoal.activations.description import description
from shoal.core.checkpoints import Checkpoint, Snapshot
from shoal.core.files import checksum
from shoal.core.processes import fingerprint
from shoal.linalg import Iteration
from shoal.regression.preconditioners import Preconditioner
from shoal.regression.problem import Problem
from shoal.regression.solver import ConjugateGradients

_SECONDS = 30.0  # between writes


def of_problem(
    path: str | PathLike[str], problem: Problem, method: ConjugateGradients
) -> Checkpoint:
    """The file of a problem, with all that the bits of an iteration depend on."""
    identity = {
        "architecture": description(problem.function.architecture),
        "x": fingerprint(problem.x),
        "y": fingerprint(problem.y),
        "ridge": repr(problem.ridge),
        "which": str(problem.kernel),
        "trainable": " ".join(sorted(problem.function.trainable)),
        "width": str(problem.function.width),
        "precision": str(method.precision),
        **_options(method.preconditioner),
    }
    return Checkpoint(path, "regression", identity, _SECONDS)


def snapshot(state: Iteration) -> Snapshot:
    """An iteration as it is kept."""
    tensors = {name: value for name, value in vars(state).items() if isinstance(value, Tensor)}
    tensors["history"] = torch.stack(state.history) if state.history else state.residual[:0]
    return Snapshot({"steps": state.steps, "aim": state.aim}, tensors)


def resumed(kept: Snapshot, device: torch.device) -> Iteration:
    """The iteration that was kept."""
    tensors: dict[str, Any] = {"energy": None}  # that of an iteration which is about to start
    tensors |= {name: tensor.to(device) for name, tensor in kept.tensors.items()}
    return Iteration(**tensors | {"history": list(tensors["history"])}, **kept.facts)


def _options(preconditioner: Preconditioner | None) -> dict[str, str]:
    """All that decides what a preconditioner is."""
    if preconditioner is None:
        return {"preconditioner": "None"}
    given = vars(preconditioner).items()
    texts = {name: _hash(v) if isinstance(v, Tensor) else str(v) for name, v in given}
    if "precision" in texts:  # which the method has too
        texts["precision of columns"] = texts.pop("precision")
    return {"preconditioner": preconditioner.name, **texts}


def _hash(tensor: Tensor) -> str:
    return checksum({}, {"": tensor.cpu().contiguous()})
