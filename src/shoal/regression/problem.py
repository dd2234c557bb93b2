r"""What is solved: $(K + \lambda I) \alpha = y$."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shoal.kernels import KernelFunction, KernelOperator, kernel, kernel_operator

__all__ = ["Problem", "Shifted"]


@dataclass(frozen=True, eq=False)
class Problem:
    r"""A kernel matrix, targets and a ridge, all in float64.

    Attributes:
        function: The kernels.
        x: The inputs. shape: (n, p)
        y: The targets. shape: (n, q)
        ridge: $\lambda$.
        kernel: 0 for the CK, 1 for the NTK.
    """

    function: KernelFunction
    x: Tensor
    y: Tensor
    ridge: float
    kernel: int

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
        both = kernel_operator(self.function, self.x, memory=memory, precision=precision)
        return both[self.kernel]

    def shifted(self, operator: KernelOperator) -> "Shifted":
        r"""$K + \lambda I$."""
        return Shifted(operator, self.ridge)

    def cross(self, left: Tensor, right: Tensor, memory: int) -> KernelOperator:
        """The kernel between inputs, in so many bytes."""
        return kernel_operator(self.function, left, right, memory=memory)[self.kernel]


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
