"""Kernel matrices that are never formed: products, and solutions of linear systems."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.activations.names import description
from shoal.architectures import Architecture
from shoal.core.checks import integer, real, shaped, writable
from shoal.core.exceptions import ConvergenceError
from shoal.core.processes import ALONE, Group, Processes, fingerprint, processes
from shoal.core.settings import in_standard_settings
from shoal.kernels.arguments import Kernels, as_tensor, check_memory, memory_limit, work_space
from shoal.kernels.blocks import Strip, assign_strips
from shoal.kernels.function import KernelFunction, chosen_kernels
from shoal.kernels.images.function import ImageKernels, ImagePlan
from shoal.kernels.plan import Plan
from shoal.numerics import DiagonalOperator, conjugate_gradients
from shoal.numerics.operator import Operator, like_factor, refuse_gradients

_DEFAULT_MEMORY = 2**30
_WORK = {"cpu": 2**28, "cuda": 12 * 2**30}  # largest number of bytes to compute a strip


class KernelOperator(Operator):
    """One kernel matrix as a linear map.

    It is computed strip by strip whenever it is applied, and strips are kept as far as the memory
    allows: a matrix that fits is computed once. Only the upper half of a symmetric one is kept.
    Factors must be on its device, and must not require gradients.

    Several processes share the strips. All of them must make the same calls with the same vectors,
    and get the same results, to the last bit.
    """

    def __init__(
        self,
        plan: Plan | ImagePlan,
        kernel: int,
        memory: int,
        precision: torch.dtype | None = None,
        shared: Processes = ALONE,
    ) -> None:
        self._plan = plan
        self._kernel = kernel
        self._work = min(memory // 2, _WORK.get(plan.like.device.type, memory))
        self._cache_bytes = memory - self._work
        self._precision = plan.like.dtype if precision is None else precision
        self._strip_cache: dict[int, Tensor] = {}
        self._processes = shared
        self._rounded_products = None
        if self._precision != plan.like.dtype and not self._fits:
            self._rounded_products = plan.rounded(kernel)

    def __repr__(self) -> str:
        name = Kernels._fields[self._kernel]
        return f"KernelOperator({name}, shape={tuple(self.shape)}, dtype={self.dtype})"

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return torch.Size(self._plan.shape)

    @property
    def _entries(self) -> Tensor:
        return self._plan.like

    def __matmul__(self, other: Any) -> Any:
        """The product with a vector or a matrix; NumPy arrays give NumPy arrays."""
        with self._processes.collective():
            return super().__matmul__(other)

    @in_standard_settings
    def diagonal(self) -> Tensor:
        """The kernel of each input with itself; only of a symmetric matrix."""
        self._check_symmetric("diagonal")
        return self._plan.diagonal[self._kernel].to(self.dtype)

    @in_standard_settings
    def to_dense(self) -> Tensor:
        """The matrix itself."""
        with self._processes.collective():
            result = torch.empty(self.shape, dtype=self.dtype, device=self.device)
            self.write(result)
        for strip, _ in self._assignments:
            self._plan.mirror(result, strip)
        return result

    @in_standard_settings
    def keep(self) -> None:
        """Compute the kept entries now, and not with the first product."""
        with self._processes.collective():
            if self._rounded_products is not None:
                return
            for strip, _ in self._strips():
                if strip.rows.start not in self._strip_cache:
                    return

    @in_standard_settings
    def write(self, out: Tensor) -> None:
        """Write the matrix into ``out``; a symmetric one from the diagonal on.

        Entries below it are not to be used then. ``out`` may have another dtype, and nothing else
        of its size is made.
        """
        with self._processes.collective():
            writable("out", shaped("out", out, *self.shape))
            for strip in self._own_strips:
                if out.dtype == self.dtype:
                    self._fill(strip, out[strip])
                else:
                    out[strip].copy_(self._fill(strip))
            self._processes.agree({"matrix": tuple(self.shape)})
        for strip, owner in self._assignments:
            self._processes.broadcast(out[strip], owner)

    def _product(self, vectors: Tensor) -> Tensor:
        if self._rounded_products is not None:
            shared = self._processes
            return self._sum_over_processes(
                vectors, self._rounded_products.product(vectors, shared.rank, shared.size)
            )
        result = vectors.new_zeros(self.shape[0], vectors.shape[1])
        for (rows, across), values in self._strips():
            factors = vectors.to(values.dtype)  # products are as exact as their entries
            result[rows] += values @ factors[across]
            if self._plan.symmetric:  # the part below the diagonal
                mirrored_rows = slice(across.start + len(values), across.stop)
                result[mirrored_rows] += values[:, len(values) :].T @ factors[rows]
        return self._sum_over_processes(vectors, result)

    def _sum_over_processes(self, vectors: Tensor, part: Tensor) -> Tensor:
        """The product with vectors, given the part of each process."""
        if self._processes.size > 1:
            self._processes.agree({"vectors": fingerprint(vectors)})
        return self._processes.sum(part)

    @property
    def keeps(self) -> bool:
        """Whether entries are kept as far as they fit; not in reduced precision."""
        return self._rounded_products is None

    def exact(self, memory: int) -> "KernelOperator":
        """This matrix in the precision of its inputs, within some bytes of memory."""
        return KernelOperator(self._plan, self._kernel, memory, None, self._processes)

    @in_standard_settings
    def solve(
        self, other: Any, *, shift: float = 0.0, rtol: float = 1e-6, max_steps: int = 1000
    ) -> Any:
        r"""Solve $(K + \lambda I) x = b$ by conjugate gradients.

        Args:
            other: $b$, a vector or a matrix of columns.
            shift: $\lambda \ge 0$; a ridge makes the system better conditioned.
            rtol: Largest $\|b - (K + \lambda I) x\| / \|b\|$ of each column.
            max_steps: Largest number of steps, with one product each.

        Raises:
            ConvergenceError: If the tolerance is not reached; nothing is returned then.
        """
        with self._processes.collective():
            return self._solve(other, shift, rtol, max_steps)

    def _solve(self, other: Any, shift: float, rtol: float, max_steps: int) -> Any:
        self._check_symmetric("solve")
        shift = real("shift", shift, at_least=0.0)
        rtol, max_steps = real("rtol", rtol, above=0.0), integer("max_steps", max_steps, at_least=1)
        b = self._columns(other, self.shape[0]).to(self.dtype)
        diagonal = self.diagonal() + shift
        result = conjugate_gradients(
            lambda vectors: self @ vectors + shift * vectors,
            b,
            preconditioner=DiagonalOperator(diagonal.where(diagonal > 0, 1.0)),
            rtol=rtol,
            max_steps=max_steps,
        )
        if not result.converged:
            raise ConvergenceError(
                "conjugate gradients reached a relative residual of "
                f"{float(result.residuals.max()):.1e} instead of {rtol:.1e} in "
                f"{max_steps} steps: allow more of them, a larger rtol, or a larger shift"
            )
        return like_factor(other, result.solution)

    @property
    def _fits(self) -> bool:
        """Whether a process can keep all of its strips."""
        rows, columns = self.shape
        entries = rows * columns // (2 if self._plan.symmetric else 1)
        return entries * self._precision.itemsize <= self._cache_bytes * self._processes.size

    @cached_property
    def _assignments(self) -> list[tuple[Strip, int]]:
        """Strips, and the process of each."""
        num_processes = self._processes.size
        parts = list(self._plan.strips(self._work, num_processes))
        return list(zip(parts, assign_strips(parts, num_processes), strict=True))

    @property
    def _own_strips(self) -> list[Strip]:
        """The strips of this process."""
        return [strip for strip, owner in self._assignments if owner == self._processes.rank]

    def _strips(self) -> Iterator[tuple[Strip, Tensor]]:
        """Strips of this process and their entries."""
        for strip in self._own_strips:
            values = self._strip_cache.get(strip.rows.start)
            if values is None:
                values = self._fill(strip)
                square = slice(0, len(values))
                self._plan.mirror(values[:, square], Strip(square, square))
                cached_bytes = sum(s.nbytes for s in self._strip_cache.values())
                if cached_bytes + values.numel() * self._precision.itemsize <= self._cache_bytes:
                    values = self._strip_cache[strip.rows.start] = values.to(self._precision)
            yield strip, values

    def _fill(self, strip: Strip, out: Tensor | None = None) -> Tensor:
        """Compute a strip, in place where there is one."""
        if out is None:
            out = torch.empty(strip.shape, dtype=self.dtype, device=self.device)
        both = [out, torch.empty_like(out)]  # the other kernel comes with it
        if self._kernel:
            both.reverse()
        self._plan.fill(strip, (both[0], both[1]))
        return out

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


@in_standard_settings
def kernel_operator(
    architecture: Architecture | KernelFunction | ImageKernels,
    x1: Any,
    x2: Any = None,
    *,
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    memory: int | str = _DEFAULT_MEMORY,
    precision: torch.dtype | None = None,
    process_group: Group = "auto",
) -> KernelOperators:
    """Return the kernels of :func:`~shoal.kernels.kernel` as operators, without any matrix.

    Args:
        architecture: The network, or its kernel function.
        x1: Inputs of shape (n, p), or images, a tensor or a NumPy array.
        x2: Other inputs, of shape (m, p); ``x1`` again by default.
        trainable: Groups of parameters that contribute to the NTK; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.
        memory: Memory limit of each operator, such as ``"2GiB"``. Parts that fit are computed only
            once.
        precision: The dtype in which the matrix is kept and multiplied; the inputs' dtype by
            default. With ``torch.float32`` twice as much fits, and products have its error. If not
            all of it fits, and inputs have one norm or activations are positively homogeneous,
            nothing is kept and entries are made in that precision, much faster than in float64;
            on a GPU with an error of up to 1e-6, from products of half-precision numbers.
        process_group: The processes that share the matrix, and all make this call: those of
            ``torch.distributed`` or ``torchrun`` by default, with ``None`` this one alone. Each has
            ``memory`` bytes.

    Raises:
        ValueError: If an argument does not fit, or inputs require gradients, which operators do not
            support.

    Example:
        >>> import torch, shoal
        >>> x = torch.eye(3, dtype=torch.float64)
        >>> op = shoal.kernel_operator(shoal.DEQ("relu", 0.2, 0.8), x, memory="1MiB")
        >>> op.ck @ torch.ones(3, dtype=torch.float64)
        tensor([0.7424, 0.7424, 0.7424], dtype=torch.float64)
    """
    shared = processes(process_group)
    with shared.collective():
        function = chosen_kernels(architecture, trainable=trainable, width=width)
        first, second = _points(function, x1, x2)
        limit = memory_limit(memory)
        limit = _DEFAULT_MEMORY if limit is None else limit
        if precision not in (None, torch.float32, torch.float64):
            raise ValueError(f"precision must be torch.float32 or torch.float64, got {precision!r}")
        if shared.size > 1:
            identity_fields = {**identity(function, first, second), "precision": precision}
            limit = min(shared.agree(identity_fields, limit))
        plan = function.plan(first, second, min(limit // 4, work_space(None, first.device)))
        check_memory(limit, plan.least_memory)
    return KernelOperators(
        *(KernelOperator(plan, kernel, limit, precision, shared) for kernel in (0, 1))
    )


def _points(
    function: KernelFunction | ImageKernels, x1: Any, x2: Any
) -> tuple[Tensor, Tensor | None]:
    """The inputs of rows and columns, without batches or gradients."""
    tensors = {"x1": as_tensor(x1, "x1"), "x2": as_tensor(x2, "x2")}
    for name, x in tensors.items():
        if x is not None:
            function.samples(name, x)
    first, second = function.checked(*tensors.values())
    refuse_gradients(
        {"x1": first, "x2": second, **dict(function.variances)},
        "operators are not differentiated; shoal.kernel has gradients",
    )
    return first.detach(), None if second is None else second.detach()


def identity(
    function: KernelFunction | ImageKernels, x1: Tensor, x2: Tensor | None
) -> dict[str, object]:
    """The properties that must agree between processes that share a matrix."""
    return {
        "architecture": description(function.architecture),
        "trainable": sorted(function.trainable),
        "width": function.width,
        "device": x1.device.type,
        "x1": fingerprint(x1),
        "x2": None if x2 is None else fingerprint(x2),
    }
