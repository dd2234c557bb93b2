r"""What is solved, $(K + \lambda I) \alpha = y$, and the bytes that this takes."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from shoal.core.checks import float_tensor, one_of, real
from shoal.core.processes import ALONE, Processes
from shoal.core.words import memory_words
from shoal.kernels import KernelFunction, KernelOperator, kernel, kernel_operator
from shoal.kernels.arguments import as_tensor, memory_limit
from shoal.kernels.images.function import ImageKernels, checked_points
from shoal.numerics.krylov import Map
from shoal.numerics.operator import refuse_gradients

_DEFAULT_MEMORY = 8 * 2**30
_WORK = {"cpu": 2**29, "cuda": 6 * 2**30}  # besides the matrix: strips and panels
_ARRAYS = 4  # of the size of the matrix: it, its vectors, and what the decomposition works in
_COPIES = 4  # of the inputs, as they are and as directions
_VECTORS = 12  # of the size of the targets, that conjugate gradients hold


@dataclass(frozen=True, eq=False)
class Problem:
    r"""A kernel matrix, targets and a ridge, all in float64.

    Attributes:
        function: The kernels.
        x: The inputs. shape: (n, p), or that of images
        y: The targets. shape: (n, q)
        ridge: $\lambda$.
        kernel: 0 for the CK, 1 for the NTK.
        processes: Those that share the work with the matrix.
    """

    function: KernelFunction | ImageKernels
    x: Tensor
    y: Tensor
    ridge: float
    kernel: int
    processes: Processes = ALONE

    @property
    def size(self) -> int:
        """How many inputs."""
        return len(self.x)

    @cached_property
    def diagonal(self) -> Tensor:
        """The diagonal of the kernel matrix."""
        return self.own(self.x)

    def own(self, x: Tensor) -> Tensor:
        """The kernel of inputs with themselves."""
        return kernel(self.function, x, diag=True)[self.kernel]

    def operator(self, memory: int, precision: torch.dtype | None = None) -> KernelOperator:
        """The kernel matrix."""
        group = self.processes.group
        both = kernel_operator(
            self.function, self.x, memory=memory, precision=precision, process_group=group
        )
        return both[self.kernel]

    def shifted(self, operator: KernelOperator) -> Map:
        r"""$V \mapsto (K + \lambda I) V$, given $K$."""
        return partial(_shifted_product, operator, self.ridge)

    def cross(
        self, left: Tensor, right: Tensor, memory: int, *, shared: bool = True
    ) -> KernelOperator:
        """The kernel between inputs, in so many bytes, by all processes or by this one alone."""
        group = self.processes.group if shared else None
        both = kernel_operator(self.function, left, right, memory=memory, process_group=group)
        return both[self.kernel]


def _shifted_product(operator: KernelOperator, ridge: float, vectors: Tensor) -> Tensor:
    product: Tensor = operator @ vectors
    return product + ridge * vectors


def checked_problem(
    kernels: KernelFunction | ImageKernels, x: Any, y: Any, ridge: float, which: str
) -> Problem:
    """Checked arguments, in float64."""
    inputs = checked_points(kernels, "x", as_tensor(x, "x"))
    targets = float_tensor("y", as_tensor(y, "y"))
    if targets.dim() not in (1, 2) or len(targets) != len(inputs):
        raise ValueError(
            f"y must have shape (n,) or (n, outputs) with n = {len(inputs)}, "
            f"got {tuple(targets.shape)}"
        )
    given = {"x": inputs, "y": targets, **dict(kernels.variances)}
    refuse_gradients(given, "a regression is not differentiated; detach() it")
    kernels = replace(kernels, variances=())
    if isinstance(kernels, ImageKernels):
        kernels = replace(kernels, precision=inputs.dtype)
    return Problem(
        kernels,
        inputs.detach().to(torch.float64, copy=True),  # what the caller changes later is not seen
        targets.detach().reshape(len(targets), -1).to(inputs.device, torch.float64, copy=True),
        real("ridge", ridge, at_least=0.0),
        ("ck", "ntk").index(one_of("which", which, ("ck", "ntk"))),
    )


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


def matrix_bytes(problem: Problem, precision: torch.dtype) -> int:
    """What a factorization takes: the matrix, and the work on it."""
    matrix = problem.size**2 * precision.itemsize
    return matrix + min(matrix, _WORK.get(problem.x.device.type, 0))


def check_decomposition(problem: Problem, limit: int) -> None:
    """Say that an eigendecomposition does not fit into so many bytes, if it does not."""
    needed = _ARRAYS * 8 * problem.size**2
    _check_room("an eigendecomposition", needed, problem, limit, "or fewer samples")


def check_factor(problem: Problem, precision: torch.dtype, limit: int) -> None:
    """Say that a factorization does not fit into so many bytes, if it does not."""
    instead = "take shoal.learning.Cholesky(precision=torch.float32), or method='cg'"
    needed = matrix_bytes(problem, precision)
    _check_room("method='cholesky'", needed, problem, limit, instead)


def _check_room(what: str, needed: int, problem: Problem, limit: int, instead: str) -> None:
    left = limit - data_bytes(problem)
    if needed > left:
        there = f"leaves {memory_words(left)}" if left > 0 else "is too little even for these"
        raise ValueError(
            f"{what} needs {memory_words(needed)} besides inputs and targets, and memory {there}: "
            f"give more, {instead}"
        )
