"""Kernel matrices: one matrix product and one function of the angle."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.architectures import Architecture
from shoal.checks import float_tensor
from shoal.kernels.function import KernelFunction, kernel_function
from shoal.kernels.profile import angular_profile
from shoal.kernels.result import Kernels

__all__ = ["kernel"]

_ROWS = 512  # rows that are computed together
_CLOSE = 1e-4  # 1 - |cos θ| below which the angle is recomputed from differences
_ONE_NORM = 1e-13  # relative spread of squared norms that count as one, for float64


def kernel(
    architecture: Architecture,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    diag: bool = False,
) -> Kernels:
    r"""Conjugate kernel and neural tangent kernel of an infinitely wide network.

    Inputs of one norm, or positively homogeneous activations, cost one matrix product and one
    series in the angle, whose error is below 1e-12 of the diagonal in float64. Other inputs are
    evaluated entry by entry.

    Args:
        architecture: The network.
        x1: Inputs, of shape (n, p).
        x2: Other inputs, of shape (m, p); ``x1`` again by default, and then the results are exactly
            symmetric.
        trainable: Groups of parameters that the NTK counts; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.
        diag: Return only the kernels of each input with itself (or with its partner in ``x2``),
            of shape (n,).

    Returns:
        The two matrices, of shape (n, m), in the dtype and on the device of ``x1``.

    Raises:
        ValueError: If the shapes do not fit, or an input is empty, NaN or infinite.
        TypeError: If an input is not a floating-point tensor.
        ConvergenceError: If the kernel does not exist.

    Example:
        >>> import torch, shoal
        >>> x = torch.eye(2, dtype=torch.float64)
        >>> shoal.kernel(shoal.DEQ(shoal.ReLU(), 0.2, 0.8), x).ck
        tensor([[0.4444, 0.1490],
                [0.1490, 0.4444]], dtype=torch.float64)
    """
    function = kernel_function(architecture, trainable=trainable, width=width)
    first = _inputs("x1", x1)
    second = first if x2 is None else _inputs("x2", x2)
    _check_pair(first, second, diag=diag)
    if diag:
        products = (first * second).sum(-1)
        return function(_squared_norms(first), _squared_norms(second), products)
    norms = torch.cat([_squared_norms(first), _squared_norms(second)]).double()
    one_norm = float(norms.max() - norms.min()) <= _spread(first.dtype) * float(norms.max())
    if architecture.positively_homogeneous:
        return _by_angle(function, first, None if x2 is None else second, 1.0, homogeneous=True)
    if one_norm and float(norms.max()) > 0:
        radius = float(norms.mean())
        return _by_angle(function, first, None if x2 is None else second, radius, homogeneous=False)
    return _by_entry(function, first, None if x2 is None else second)


def _by_angle(
    function: KernelFunction,
    first: Tensor,
    second: Tensor | None,
    squared_norm: float,
    *,
    homogeneous: bool,
) -> Kernels:
    """Matrices that are a norm factor times a function of the angle."""
    profile = angular_profile(function, squared_norm)
    rows, columns = _Directions.of(first), None if second is None else _Directions.of(second)
    result = _empty(first, second)
    for block, angle in _angles(rows, columns):
        for out, values in zip(result, profile(angle), strict=True):
            if homogeneous:
                right = rows if columns is None else columns
                values.mul_(rows.norm[block.rows, None]).mul_(right.norm[block.columns])
            out[block.rows, block.columns] = values
    if second is None:
        for out, value in zip(result, profile.at_zero, strict=True):
            diagonal = value * rows.norm**2 if homogeneous else out.new_full((len(out),), value)
            _mirror(out, diagonal)
    return result


def _by_entry(function: KernelFunction, first: Tensor, second: Tensor | None) -> Kernels:
    """Matrices by the scalar equations of every entry."""
    right = first if second is None else second
    result = _empty(first, second)
    left_norms, right_norms = _squared_norms(first), _squared_norms(right)
    for block in _blocks(len(first), len(right), symmetric=second is None):
        products = first[block.rows] @ right[block.columns].T
        a, b = left_norms[block.rows, None], right_norms[block.columns]
        bound = a.sqrt() * b.sqrt()
        values = function(a, b, torch.minimum(torch.maximum(products, -bound), bound))
        for out, value in zip(result, values, strict=True):
            out[block.rows, block.columns] = value
    if second is None:
        for out, diagonal in zip(result, function(left_norms, left_norms, left_norms), strict=True):
            _mirror(out, diagonal)
    return result


@dataclass(frozen=True)
class _Directions:
    """Inputs split into norm and direction; the direction of zero is zero."""

    norm: Tensor
    unit: Tensor

    @classmethod
    def of(cls, x: Tensor) -> "_Directions":
        norm = torch.linalg.vector_norm(x, dim=-1)
        return cls(norm, x / torch.where(norm > 0, norm, 1.0)[:, None])


@dataclass(frozen=True)
class _Block:
    rows: slice
    columns: slice


def _blocks(rows: int, columns: int, *, symmetric: bool) -> Iterator[_Block]:
    """Blocks of rows; of a symmetric matrix only what lies right of the diagonal blocks."""
    for start in range(0, rows, _ROWS):
        stop = min(start + _ROWS, rows)
        yield _Block(slice(start, stop), slice(start if symmetric else 0, columns))


def _angles(rows: _Directions, columns: _Directions | None) -> Iterator[tuple[_Block, Tensor]]:
    """The angles between all inputs, block by block."""
    right = rows if columns is None else columns
    for block in _blocks(len(rows.unit), len(right.unit), symmetric=columns is None):
        left, other = rows.unit[block.rows], right.unit[block.columns]
        cosine = left @ other.T
        close = (cosine.abs() > 1 - _CLOSE).nonzero(as_tuple=True)
        signs = torch.sign(cosine[close])
        angle = cosine.clamp_(-1.0, 1.0).acos_()
        angle[close] = _close_angles(left, other, close, signs)
        yield block, angle


def _close_angles(left: Tensor, right: Tensor, pairs: tuple[Tensor, ...], signs: Tensor) -> Tensor:
    """Angles near 0 and π, from the distance of the directions: a product has lost the digits."""
    parts = []
    for i, j, sign in zip(*(t.split(4096) for t in (*pairs, signs)), strict=True):
        gap = torch.linalg.vector_norm(left[i] - sign[:, None] * right[j], dim=-1)
        small = 2 * torch.asin((gap / 2).clamp(max=1.0))
        parts.append(torch.where(sign > 0, small, math.pi - small))
    return torch.cat(parts) if parts else signs


def _mirror(matrix: Tensor, diagonal: Tensor) -> None:
    """Copy the part above the diagonal below it, block by block, and set the diagonal."""
    size = len(matrix)
    for start in range(0, size, _ROWS):
        stop = min(start + _ROWS, size)
        block = matrix[start:stop, start:stop]
        block.copy_(block.triu(1) + block.triu(1).T)
        matrix[stop:, start:stop] = matrix[start:stop, stop:].T
    matrix.diagonal().copy_(diagonal)


def _empty(first: Tensor, second: Tensor | None) -> Kernels:
    columns = len(first) if second is None else len(second)
    return Kernels(first.new_empty(len(first), columns), first.new_empty(len(first), columns))


def _squared_norms(x: Tensor) -> Tensor:
    return (x * x).sum(-1)


def _spread(dtype: torch.dtype) -> float:
    return _ONE_NORM * torch.finfo(dtype).eps / torch.finfo(torch.float64).eps


def _inputs(name: str, x: Tensor) -> Tensor:
    tensor = float_tensor(name, x)
    if tensor.dim() != 2:
        raise ValueError(f"{name} must have shape (samples, features), got {tuple(tensor.shape)}")
    return tensor.detach()


def _check_pair(first: Tensor, second: Tensor, *, diag: bool) -> None:
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"x1 and x2 must have as many features, got {first.shape[1]} and {second.shape[1]}"
        )
    if (first.dtype, first.device) != (second.dtype, second.device):
        raise ValueError(
            f"x1 and x2 must have one dtype and device, got {first.dtype} on {first.device} "
            f"and {second.dtype} on {second.device}"
        )
    if diag and len(first) != len(second):
        raise ValueError(f"diag needs as many x1 as x2, got {len(first)} and {len(second)}")
