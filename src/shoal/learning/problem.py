r"""A kernel matrix with targets and a ridge, and the memory that work on it may take."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.architectures import Architecture
from shoal.asymptotics.labels import class_indices, classes_of
from shoal.core.checks import float_tensor, one_of, real
from shoal.core.processes import ALONE, Processes
from shoal.core.words import memory_words
from shoal.kernels import KernelFunction, KernelOperator, kernel, kernel_operator
from shoal.kernels.arguments import as_tensor, memory_limit
from shoal.kernels.function import chosen_kernels
from shoal.kernels.images.function import ImageKernels
from shoal.numerics.krylov import Map
from shoal.numerics.operator import refuse_gradients

Which = Literal["ck", "ntk"]

_DEFAULT_MEMORY = 8 * 2**30
_COPIES = 4  # of the inputs, as they are and as directions
_VECTORS = 12  # of the size of the targets, that conjugate gradients hold


@dataclass(frozen=True, eq=False)
class Problem:
    r"""The system $(K + \lambda I) \alpha = y$, in float64.

    Attributes:
        function: The kernels.
        x: The inputs. shape: (n, p), or that of images
        y: The targets. shape: (n, q)
        ridge: $\lambda$.
        which: The kernel.
        memory: Bytes that are left beside inputs and vectors; it may be negative.
        processes: The processes that share the products with the matrix.
    """

    function: KernelFunction | ImageKernels
    x: Tensor
    y: Tensor
    ridge: float
    which: Which
    memory: int
    processes: Processes = ALONE

    @classmethod
    def of(
        cls,
        architecture: Architecture | KernelFunction,
        x: Any,
        y: Any,
        ridge: float,
        which: str,
        memory: int | str | None,
        *,
        trainable: Iterable[str] | None = None,
        width: int | None = None,
    ) -> "Problem":
        """Check the arguments of a regression."""
        function = chosen_kernels(architecture, trainable=trainable, width=width)
        inputs = function.samples("x", as_tensor(x, "x"))
        targets = checked_labels("y", y, len(inputs))
        given = {"x": inputs, "y": targets, **dict(function.variances)}
        refuse_gradients(given, "a regression is not differentiated; detach() it")
        function = replace(function.in_precision(inputs.dtype), variances=())
        points = inputs.detach().to(torch.float64, copy=True)  # later changes are not seen
        columns = targets.detach().reshape(len(targets), -1)
        columns = columns.to(points.device, torch.float64, copy=True)
        chosen: Which = one_of("which", which, ("ck", "ntk"))  # type: ignore[assignment]
        ridge = real("ridge", ridge, at_least=0.0)
        problem = cls(function, points, columns, ridge, chosen, _limit(memory, points.device))
        return replace(problem, memory=problem.memory - problem.data_bytes)

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.x)

    @property
    def data_bytes(self) -> int:
        """Bytes of inputs, their directions, and vectors."""
        return _COPIES * self.x.nbytes + _VECTORS * self.y.nbytes

    @cached_property
    def diagonal(self) -> Tensor:
        """The diagonal of the kernel matrix."""
        return self.diagonal_at(self.x)

    def diagonal_at(self, x: Tensor) -> Tensor:
        """The kernel of inputs with themselves."""
        values: Tensor = getattr(kernel(self.function, x, diag=True), self.which)
        return values

    def operator(self, memory: int, precision: torch.dtype | None = None) -> KernelOperator:
        """The kernel matrix, computed in so many bytes."""
        return self.cross(self.x, None, memory, precision=precision)

    def cross(
        self,
        left: Tensor,
        right: Tensor | None,
        memory: int,
        *,
        precision: torch.dtype | None = None,
        shared: bool = True,
    ) -> KernelOperator:
        """The kernel between inputs, by all processes or by this one alone."""
        group = self.processes.group if shared else None
        options: dict[str, Any] = {"memory": memory, "precision": precision, "process_group": group}
        found: KernelOperator = getattr(
            kernel_operator(self.function, left, right, **options), self.which
        )
        return found

    def matrix(self) -> Tensor:
        """The kernel matrix itself."""
        return self.operator(self.memory - 8 * self.size**2).to_dense()

    def shifted(self, operator: KernelOperator) -> Map:
        r"""$V \mapsto (K + \lambda I) V$, given $K$."""
        return partial(_shifted_product, operator, self.ridge)

    def check_room(self, purpose: str, needed: int, instead: str) -> None:
        """Refuse what needs more bytes than there are."""
        if needed > self.memory:
            left = memory_words(self.memory)
            there = f"leaves {left}" if self.memory > 0 else "is too little even for these"
            raise ValueError(
                f"{purpose} needs {memory_words(needed)} besides inputs and targets, and memory "
                f"{there}: give more, {instead}"
            )


def _shifted_product(operator: KernelOperator, ridge: float, vectors: Tensor) -> Tensor:
    product: Tensor = operator @ vectors
    return product + ridge * vectors


def _limit(memory: int | str | None, device: torch.device) -> int:
    """Most bytes to use."""
    most = memory_limit(memory)
    if most is None:
        most = _DEFAULT_MEMORY
        if device.type == "cuda":
            held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            most = (torch.cuda.mem_get_info(device)[0] + held) * 9 // 10
    return most


def checked_labels(name: str, y: Any, samples: int) -> Tensor:
    """Labels of shape (n,) or (n, q), or an error that names the fault."""
    targets = float_tensor(name, as_tensor(y, name))
    if targets.dim() not in (1, 2) or len(targets) != samples:
        raise ValueError(
            f"{name} must have shape (n,) or (n, outputs) with n = {samples}, "
            f"got {tuple(targets.shape)}"
        )
    return targets


def targets_or_indicators(y: Any) -> tuple[Any, bool]:
    """Targets as they are, or indicators of classes, and whether they are these."""
    kind = getattr(y, "dtype", None)
    if isinstance(kind, torch.dtype) and (kind.is_floating_point or kind.is_complex):
        return y, False
    if isinstance(kind, np.dtype) and kind.kind in "fc":
        return as_tensor(y, "y"), False
    labels = y + 0 if kind in (torch.bool, np.dtype(bool)) else y
    classes = classes_of(labels, "y")
    if len(classes) < 2:
        raise ValueError(f"y must have at least two classes, got one class, {classes[0]!r}")
    return torch.nn.functional.one_hot(class_indices(labels, classes), len(classes)).double(), True


def like_input(x: Any, values: Tensor, dtype: torch.dtype) -> Any:
    """Results in a dtype, as an array where the input is one, and on its device."""
    result = values.to(dtype)
    return result.cpu().numpy() if isinstance(x, np.ndarray) else result.to(x.device)
