"""Kernel matrices that are never formed: products, and solutions of linear systems."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.architectures import Architecture
from shoal.checks import float_tensor, integer, real
from shoal.exceptions import ConvergenceError
from shoal.kernels.arguments import as_tensor, checked_inputs, memory_limit
from shoal.kernels.evaluation import mirror
from shoal.kernels.function import kernel_function
from shoal.kernels.inputs import Inputs
from shoal.kernels.matrix import strips
from shoal.kernels.plan import Plan
from shoal.kernels.result import Kernels

__all__ = ["KernelOperator", "KernelOperators", "kernel_operator"]

_DEFAULT_MEMORY = 2**30


class KernelOperator:
    """One kernel matrix as a linear map.

    It is computed strip by strip whenever it is applied, and strips are kept as far as the memory
    allows: a matrix that fits is computed once.
    """

    def __init__(self, plan: Plan, kernel: int, memory: int) -> None:
        self._plan = plan
        self._kernel = kernel
        self._memory = memory
        self._kept: dict[int, Tensor] = {}

    def __repr__(self) -> str:
        name = Kernels._fields[self._kernel]
        return f"KernelOperator({name}, shape={tuple(self.shape)}, dtype={self.dtype})"

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return torch.Size((len(self._plan.left), len(self._plan.right)))

    @property
    def dtype(self) -> torch.dtype:
        """That of the inputs."""
        return self._plan.left.points.dtype

    @property
    def device(self) -> torch.device:
        """That of the inputs."""
        return self._plan.left.points.device

    def diagonal(self) -> Tensor:
        """The kernel of each input with itself; only of a symmetric matrix."""
        self._check_symmetric("diagonal")
        return self._plan.diagonal[self._kernel].to(self.dtype)

    def to_dense(self) -> Tensor:
        """The matrix itself."""
        result = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        for rows, start, strip in self._strips():
            result[rows, start:] = strip
            if self._plan.symmetric:
                mirror(result, rows)
        return result

    def __matmul__(self, other: Any) -> Any:
        """The product with a vector or a matrix; NumPy arrays give NumPy arrays."""
        vectors = self._vectors(other, self.shape[1])
        result = vectors.new_zeros(self.shape[0], vectors.shape[1])
        for rows, start, strip in self._strips():
            result[rows] += strip @ vectors[start:]
            if self._plan.symmetric:  # the part below the diagonal
                size = rows.stop - rows.start
                result[rows.stop :] += strip[:, size:].T @ vectors[rows]
        return _like(other, result)

    def solve(
        self, other: Any, *, shift: float = 0.0, rtol: float = 1e-6, max_steps: int = 1000
    ) -> Any:
        r"""Solve $(K + \lambda I) x = b$ by conjugate gradients.

        Args:
            other: $b$, a vector or a matrix of columns.
            shift: $\lambda \ge 0$; a ridge makes the system better conditioned.
            rtol: Largest $\|b - (K + \lambda I) x\| / \|b\|$ of each column.
            max_steps: Most steps, each of which applies the operator once.

        Raises:
            ConvergenceError: If the tolerance is not reached; nothing is returned then.
        """
        self._check_symmetric("solve")
        shift = real("shift", shift, at_least=0.0)
        rtol, max_steps = real("rtol", rtol, above=0.0), integer("max_steps", max_steps, at_least=1)
        b = self._vectors(other, self.shape[0])
        target = rtol * torch.linalg.vector_norm(b, dim=0)
        scale = (self.diagonal() + shift)[:, None]  # a preconditioner: the diagonal
        x, residual = torch.zeros_like(b), b.clone()
        direction = step = residual / torch.where(scale > 0, scale, 1.0)
        energy = (residual * step).sum(0)
        for taken in range(max_steps + 1):
            if bool((torch.linalg.vector_norm(residual, dim=0) <= target).all()):
                residual = b - (self @ x + shift * x)  # the true one, free of drift
                if bool((torch.linalg.vector_norm(residual, dim=0) <= target).all()):
                    return _like(other, x)
                direction = step = residual / torch.where(scale > 0, scale, 1.0)
                energy = (residual * step).sum(0)
            if taken == max_steps:
                break
            image = self @ direction + shift * direction
            curvature = (direction * image).sum(0)
            length = torch.where(curvature > 0, energy / curvature, 0.0)
            x, residual = x + length * direction, residual - length * image
            step = residual / torch.where(scale > 0, scale, 1.0)
            previous, energy = energy, (residual * step).sum(0)
            direction = step + torch.where(previous > 0, energy / previous, 0.0) * direction
        reached = float((torch.linalg.vector_norm(residual, dim=0) / target).max()) * rtol
        raise ConvergenceError(
            f"conjugate gradients reached a relative residual of {reached:.1e} instead of "
            f"{rtol:.1e} in {max_steps} steps: allow more of them, a larger rtol, or a larger shift"
        )

    def _strips(self) -> Iterator[tuple[slice, int, Tensor]]:
        """Strips of rows, with their first column."""
        plan = self._plan
        for rows in strips(plan, self._memory // 2):
            start = plan.columns_from(rows.start)
            strip = self._kept.get(rows.start)
            if strip is None:
                shape = (rows.stop - rows.start, len(plan.right) - start)
                both = tuple(torch.empty(shape, dtype=self.dtype, device=self.device) for _ in "12")
                plan.fill(rows, (both[0], both[1]))
                strip = both[self._kernel]
                if plan.symmetric:
                    mirror(strip[:, : len(strip)], slice(0, len(strip)))
                kept = sum(s.nbytes for s in self._kept.values())
                if kept + strip.nbytes <= self._memory // 2:
                    self._kept[rows.start] = strip
            yield rows, start, strip

    def _vectors(self, other: Any, size: int) -> Tensor:
        vectors = float_tensor("the factor", as_tensor(other))
        if vectors.dim() not in (1, 2) or vectors.shape[0] != size:
            raise ValueError(
                f"the factor must have {size} rows and at most two dimensions, "
                f"got shape {tuple(vectors.shape)}"
            )
        return vectors.detach().to(dtype=self.dtype, device=self.device).reshape(size, -1)

    def _check_symmetric(self, name: str) -> None:
        if not self._plan.symmetric:
            raise ValueError(f"{name} needs a symmetric matrix, and this one is {self.shape}")


class KernelOperators(NamedTuple):
    """The two kernels of an infinitely wide network, as operators.

    Attributes:
        ck: The conjugate kernel.
        ntk: The neural tangent kernel of the groups that are trained.
    """

    ck: KernelOperator
    ntk: KernelOperator


def kernel_operator(
    architecture: Architecture,
    x1: Any,
    x2: Any = None,
    *,
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    memory: int | str = _DEFAULT_MEMORY,
) -> KernelOperators:
    """The kernels of :func:`~shoal.kernels.kernel` for products, without forming the matrix.

    Args:
        architecture: The network.
        x1: Inputs of shape (n, p), a tensor or a NumPy array.
        x2: Other inputs, of shape (m, p); ``x1`` again by default.
        trainable: Groups of parameters that the NTK counts; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.
        memory: Most bytes that each operator uses, such as ``"2GiB"``; a matrix of half that size
            is computed only once.

    Example:
        >>> import torch, shoal
        >>> x = torch.eye(3, dtype=torch.float64)
        >>> op = shoal.kernel_operator(shoal.DEQ(shoal.ReLU(), 0.2, 0.8), x, memory="1MiB")
        >>> op.ck @ torch.ones(3, dtype=torch.float64)
        tensor([0.7424, 0.7424, 0.7424], dtype=torch.float64)
    """
    function = kernel_function(architecture, trainable=trainable, width=width)
    first, second = checked_inputs(as_tensor(x1), as_tensor(x2))
    if first.dim() != 2 or (second is not None and second.dim() != 2):
        raise ValueError("x1 and x2 must have shape (samples, features): no batches of operators")
    left = Inputs(first.detach())
    right = left if second is None else Inputs(second.detach())
    plan, limit = Plan.of(function, left, right), memory_limit(memory)
    limit = _DEFAULT_MEMORY if limit is None else limit
    return KernelOperators(KernelOperator(plan, 0, limit), KernelOperator(plan, 1, limit))


def _like(other: Any, result: Tensor) -> Any:
    """The result in the shape and kind of the factor."""
    shaped = result[:, 0] if other.ndim == 1 else result
    return shaped.cpu().numpy() if isinstance(other, np.ndarray) else shaped
