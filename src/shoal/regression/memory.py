"""The bytes that a regression takes."""

import torch

from shoal.core.memory import memory_words
from shoal.kernels.arguments import memory_limit
from shoal.regression.methods import Cholesky
from shoal.regression.problem import Problem

__all__ = [
    "byte_limit",
    "check_decomposition",
    "check_factor",
    "data_bytes",
    "matrix_bytes",
]

_DEFAULT_MEMORY = 8 * 2**30
_WORK = {"cpu": 2**29, "cuda": 6 * 2**30}  # besides the matrix: strips and panels
_ARRAYS = 4  # of the size of the matrix: it, its vectors, and what the decomposition works in
_COPIES = 4  # of the inputs, as they are and as directions
_VECTORS = 12  # of the size of the targets, that conjugate gradients hold


def byte_limit(problem: Problem, memory: int | str | None) -> int:
    """Bytes for all."""
    most, device = memory_limit(memory), problem.x.device
    if most is None:
        most = _DEFAULT_MEMORY
        if device.type == "cuda":
            held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            most = (torch.cuda.mem_get_info(device)[0] + held) * 9 // 10
    return most


def data_bytes(problem: Problem) -> int:
    """What is not for the matrix and the work on it: inputs, their directions, and vectors."""
    return _COPIES * problem.x.nbytes + _VECTORS * problem.y.nbytes


def matrix_bytes(problem: Problem, method: Cholesky) -> int:
    """What a factorization takes: the matrix, and the work on it."""
    matrix = problem.size**2 * method.precision.itemsize
    return matrix + min(matrix, _WORK.get(problem.x.device.type, 0))


def check_decomposition(problem: Problem, limit: int) -> None:
    """Say that an eigendecomposition does not fit into so many bytes, if it does not."""
    needed = _ARRAYS * 8 * problem.size**2
    _check_room("an eigendecomposition", needed, problem, limit, "or fewer samples")


def check_factor(method: Cholesky, problem: Problem, limit: int) -> None:
    """Say that a factorization does not fit into so many bytes, if it does not."""
    instead = "take shoal.Cholesky(precision=torch.float32), or method='cg'"
    needed = matrix_bytes(problem, method)
    _check_room("method='cholesky'", needed, problem, limit, instead)


def _check_room(what: str, needed: int, problem: Problem, limit: int, instead: str) -> None:
    left = limit - data_bytes(problem)
    if needed > left:
        there = f"leaves {memory_words(left)}" if left > 0 else "is too little even for these"
        raise ValueError(
            f"{what} needs {memory_words(needed)} besides inputs and targets, and memory {there}: "
            f"give more, {instead}"
        )
