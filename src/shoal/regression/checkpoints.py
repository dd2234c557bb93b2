"""Conjugate gradients on disk, so that an interrupted regression goes on."""

from os import PathLike

import torch
from torch import Tensor

from shoal.activations.description import description
from shoal.core.checkpoints import Checkpoint, Snapshot
from shoal.core.files import checksum
from shoal.core.processes import fingerprint
from shoal.linalg import Iteration
from shoal.regression.methods import ConjugateGradients
from shoal.regression.preconditioners import Preconditioner
from shoal.regression.problem import Problem

__all__ = ["of_problem", "resumed", "snapshot"]

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
    tensors = {
        "solution": state.solution,
        "residual": state.residual,
        "direction": state.direction,
        "counts": state.counts,
        "history": torch.stack(state.history) if state.history else state.residual[:0],
    }
    if state.energy is not None:
        tensors["energy"] = state.energy
    return Snapshot({"steps": state.steps, "aim": state.aim}, tensors)


def resumed(kept: Snapshot, device: torch.device) -> Iteration:
    """The iteration that was kept."""
    tensors = {name: tensor.to(device) for name, tensor in kept.tensors.items()}
    return Iteration(
        tensors["solution"],
        tensors["residual"],
        tensors["direction"],
        tensors.get("energy"),
        kept.facts["steps"],
        tensors["counts"],
        list(tensors["history"]),
        aim=kept.facts.get("aim"),
    )


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
