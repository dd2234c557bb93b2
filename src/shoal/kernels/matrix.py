"""Kernel matrices: one matrix product and one function of the angle."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.architectures import Architecture
from shoal.core import checks
from shoal.core.exceptions import AccuracyError
from shoal.core.settings import in_standard_settings
from shoal.kernels.arguments import (
    Kernels,
    PolarInputs,
    Work,
    as_tensor,
    check_memory,
    check_size,
    checked_samples,
    memory_limit,
    with_arrays,
    work_space,
)
from shoal.kernels.function import KernelFunction, chosen_kernels
from shoal.kernels.gradient import Pull, Upstream, differentiable, pull
from shoal.kernels.images.function import ImageKernels
from shoal.kernels.plan import FEW_PAIRS, Plan


@in_standard_settings
@with_arrays
def kernel(
    architecture: Architecture | KernelFunction | ImageKernels,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    variances: Mapping[str, Tensor] | None = None,
    diag: bool = False,
    memory: int | str | None = None,
    on_progress: Callable[[float], object] | None = None,
) -> Kernels:
    r"""Conjugate kernel and neural tangent kernel of an infinitely wide network.

    The kernel is computed once as a short series in the angle (and the norms, if they matter), and
    then evaluated on the whole matrix at about the cost of a matrix product. In float64 the error
    of that representation is below 1e-12 of the diagonal for inputs of one norm or positively
    homogeneous activations, and below 1e-10 otherwise. (NTKs of activations with kinks have errors
    up to 1e-8 at inputs of different norms that are nearly parallel, to 1e-6 or less.)

    Both kernels have first-order gradients with respect to the inputs and ``variances``. At fixed
    points these are implicit: no iteration is unrolled, and nothing of the size of the matrices is
    stored. For an activation with a kink, a kernel may have no derivative at an input of zero, or
    at two equal inputs. The gradient is then the mean of both sides.

    Kernels of images are computed for pairs of pixels, with two duals per pair in every layer or in
    every step towards an equilibrium. A readout of all pixels needs the $P$ pairs of equal pixels;
    a readout of sums or means of channels needs all $P^2$ pairs. They are computed in float64, in
    blocks within the memory limit.

    Args:
        architecture: The network, or its kernel function.
        x1: Inputs, of shape (..., n, p): a tensor, or a NumPy array. For networks of images, such
            as a ``ConvDEQ``, images of shape (n, channels, pixels...), with one to three axes of
            pixels.
        x2: Other inputs, of shape (..., m, p); ``x1`` again by default, and then the results are
            exactly symmetric. Batch dimensions are broadcast.
        trainable: Groups of parameters that contribute to the NTK; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.
        variances: Scalar tensors that replace variances of the architecture, such as
            ``{"recurrent_variance": v}`` for a ``DEQ``, and receive gradients.
        diag: Whether to return only the kernels of each input with itself (or with the
            corresponding input in ``x2``), of shape (..., n).
        memory: Memory limit such as ``"1GiB"``, not counting inputs, results, and the directions of
            inputs (as large as the inputs; in float32 on a GPU three times that, with at least 16
            features). For matrices larger than memory use :func:`~shoal.kernel_operator`.
        on_progress: Called with the share of a matrix that is done, up to 1, after every block.

    Returns:
        The two matrices, of shape (..., n, m), in the dtype and on the device of ``x1``; NumPy
        arrays if ``x1`` is one.

    Raises:
        ValueError: If the shapes do not fit, an entry is NaN or infinite, ``memory`` is too small,
            or the matrices are larger than the memory of the device.
        TypeError: If an input is not a floating-point tensor.
        ConvergenceError: If the kernel does not exist.
        AccuracyError: If the kernel overflows the dtype.

    Example:
        >>> import torch, shoal
        >>> x = torch.eye(2, dtype=torch.float64)
        >>> shoal.kernel(shoal.DEQ("relu", 0.2, 0.8), x).ck
        tensor([[0.4444, 0.1490],
                [0.1490, 0.4444]], dtype=torch.float64)
    """
    work = Work(memory_limit(memory), on_progress)
    checks.flag("diag", diag)
    checks.function("on_progress", on_progress)
    function = chosen_kernels(architecture, trainable=trainable, width=width, variances=variances)
    first, second = function.checked(x1, x2, diag=diag)
    return (function.partners if diag else function.matrices)(first, second, work)


def matrices(function: KernelFunction, first: Tensor, second: Tensor | None, work: Work) -> Kernels:
    """All matrices of a batch of inputs that are vectors, with gradients."""
    batch = np.broadcast_shapes(first.shape[:-2], () if second is None else second.shape[:-2])
    first = first.expand(*batch, *first.shape[-2:])
    second = None if second is None else second.expand(*batch, *second.shape[-2:])
    if not first.numel() or not (second is None or second.numel()):
        shape = (*batch, first.shape[-2], (first if second is None else second).shape[-2])
        return Kernels(first.new_zeros(shape), first.new_zeros(shape))
    return differentiable(partial(_run, function, work), function, first, second)


def _empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A new tensor; on a CPU from NumPy, which asks for huge pages."""
    if like.device.type != "cpu":
        return like.new_empty(shape)
    return torch.from_numpy(np.empty(shape, like.numpy().dtype))


def _run(
    function: KernelFunction, work: Work, first: Tensor, second: Tensor | None, *, gradients: bool
) -> tuple[Kernels, Pull]:
    """All matrices of a batch without gradients, and a function for gradients."""
    options = {"few_pairs": FEW_PAIRS} if gradients else {}
    limit, batch = work_space(work.memory, first.device), first.shape[:-2]
    plain, plans = replace(function, variances=()), []
    shape = (*batch, first.shape[-2], (first if second is None else second).shape[-2])
    check_size(shape, first)
    result = Kernels(*(_empty(shape, first) for _ in range(2)))
    for position, index in enumerate(np.ndindex(*batch)):
        row_inputs = PolarInputs(first[index])
        column_inputs = row_inputs if second is None else PolarInputs(second[index])
        plan = Plan.for_inputs(plain, row_inputs, column_inputs, **options)
        plans.append(plan)
        check_memory(work.memory, plan.least_memory)
        parts = list(plan.strips(limit))
        for written, _ in enumerate(plan.write(parts, (result.ck[index], result.ntk[index])), 1):
            if work.on_progress is not None:
                work.on_progress((position + written / len(parts)) / math.prod(batch))

    def pull_back(upstream: Upstream, names: Sequence[str]) -> tuple[list[Tensor], list[float]]:
        """Gradients of all inputs of the batch, and of variances."""
        into = [torch.empty_like(x) for x in (first, second) if x is not None]
        total = [0.0 for _ in names]
        for index, plan in zip(np.ndindex(*batch), plans, strict=True):
            gradients = [None if g is None else g[index] for g in upstream]
            sides, values = pull(plan, gradients, names, work.memory and max(1, work.memory // 2))
            for x, side in zip(into, sides, strict=True):
                x[index] = side
            total = [t + float(v) for t, v in zip(total, values, strict=True)]
        return into, total

    return result, pull_back


@in_standard_settings
def pair_eigenvalue(x: Any) -> float:
    r"""The least eigenvalue $\lambda$ of the Gram matrices of all pairs of different inputs.

    $$\lambda = \min_{i \ne j} \lambda_{\min} \begin{pmatrix} x_i^\top x_i & x_i^\top x_j \\
    x_j^\top x_i & x_j^\top x_j \end{pmatrix} \qquad \text{(Du 2018, Assumption 4.1)}$$

    (The paper's minimum is over $i = j$ too, where it would be zero.) For inputs of norm one it is
    $1 - |\cos\theta|$ of the pair that is closest to parallel. Du 2018 scales the
    residuals of a ``ResNet`` by $c_\lambda \lambda^{3/2}$ with a constant $c_\lambda < 1$.

    Args:
        x: Inputs, of shape (n, p) with n at least 2: a tensor, or a NumPy array.

    Raises:
        TypeError: If ``x`` is neither.
        ValueError: If ``x`` has another shape, or is not finite.

    Example:
        >>> import torch, shoal
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=torch.float64)
        >>> f"{shoal.kernels.pair_eigenvalue(x):.12f}"
        '0.200000000000'
    """
    points = checked_samples("x", as_tensor(x, "x")).detach().double()
    if points.dim() != 2 or len(points) < 2:
        raise ValueError(f"x must have shape (n, p) with n >= 2, got {tuple(points.shape)}")
    squares, least = points.square().sum(1), math.inf
    if not bool(squares.isfinite().all()):
        raise AccuracyError("the squared norms of x overflow in float64: scale x down")
    step = max(1, min(1024, 2**22 // points.shape[1]))
    for start in range(0, len(points), step):
        rows = slice(start, start + step)
        product = points[rows] @ points.T
        mean = (squares[rows, None] + squares) / 2
        eigenvalue = mean - torch.hypot((squares[rows, None] - squares) / 2, product)
        numbers = torch.arange(start, start + len(product), device=points.device)
        eigenvalue[numbers - start, numbers] = math.inf
        partner = eigenvalue.argmin(1)
        # nearly parallel pairs lose digits there, but not in their singular values
        pairs = torch.stack([points[rows], points[partner]], dim=2)
        singular = torch.linalg.svdvals(pairs) if points.shape[1] > 1 else pairs.new_zeros(1, 1)
        least = min(least, float(singular[:, -1].min()) ** 2)
    return least
