r"""What is solved: $(K + \lambda I) \alpha = y$."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from shoal.core.checks import float_tensor, one_of, real
from shoal.core.processes import ALONE, Processes
from shoal.kernels import KernelFunction, KernelOperator, kernel, kernel_operator
from shoal.kernels.arguments import as_tensor
from shoal.kernels.images.function import ImageKernels, checked_points
from shoal.linalg.operator import refuse_gradients

__all__ = ["Problem", "Shifted", "checked_problem"]


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
        """That of the kernel matrix."""
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

    def shifted(self, operator: KernelOperator) -> "Shifted":
        r"""$K + \lambda I$."""
        return Shifted(operator, self.ridge)

    def cross(
        self, left: Tensor, right: Tensor, memory: int, *, shared: bool = True
    ) -> KernelOperator:
        """The kernel between inputs, in so many bytes, by all processes or by this one alone."""
        group = self.processes.group if shared else None
        both = kernel_operator(self.function, left, right, memory=memory, process_group=group)
        return both[self.kernel]


@dataclass(frozen=True, eq=False)
class Shifted:
    r"""Products with $K + \lambda I$.

    Attributes:
        operator: $K$.
        ridge: $\lambda$.
    """

    operator: KernelOperator
    ridge: float

    def __call__(self, vectors: Tensor) -> Tensor:
        """The matrix times columns."""
        product: Tensor = self.operator @ vectors
        return product + self.ridge * vectors


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
