"""Arguments and results of kernel computations: checked inputs, limits, arrays."""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from shoal.architectures import ImageArchitecture
from shoal.core.checks import as_tensor as as_tensor
from shoal.core.checks import float_tensor, integer, known_tensor

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_WORK = 64 * 2**20, 4 * 2**30  # bytes of a block by default, on a CPU and at most on a GPU

CLOSE = 1e-4  # 1 - |cos θ| below which a product of directions has lost the angle
PAIRS = 4096  # pairs that are solved together, and by the CPU for a GPU


class Kernels(NamedTuple):
    """The two kernels of an infinitely wide network.

    Attributes:
        ck: The conjugate kernel, the covariance of the network's function at initialization.
        ntk: The neural tangent kernel of the groups that are trained.
    """

    ck: Tensor
    ntk: Tensor


class Work(NamedTuple):
    """Options of the computation of a matrix.

    Attributes:
        memory: Bytes for intermediate results; ``None`` for the device's default.
        on_progress: Called with the completed share.
    """

    memory: int | None = None
    on_progress: Callable[[float], object] | None = None


Function = TypeVar("Function", bound=Callable[..., Kernels])


@dataclass(frozen=True, eq=False)
class PolarInputs:
    """Points as norms and directions; the direction of zero is zero.

    Attributes:
        points: The points. shape: (n, p)
    """

    points: Tensor

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def norm(self) -> Tensor:
        """Norms in float64. shape: (n,)."""
        norm: Tensor = torch.linalg.vector_norm(self.points, dim=-1, dtype=torch.float64)
        return norm

    @cached_property
    def range(self) -> tuple[float, float, bool]:
        """The least norm above zero, the largest norm, and whether some are zero."""
        positive = self.norm > 0
        least = torch.where(positive, self.norm, math.inf).min()
        low, high, all_positive = torch.stack([least, self.norm.max(), positive.all()]).tolist()
        return low, high, not all_positive

    @cached_property
    def unit(self) -> Tensor:
        """Directions in the dtype of the points. shape: (n, p)."""
        norm = self.norm.to(self.points.dtype)
        return self.points / torch.where(norm > 0, norm, 1.0)[:, None]


def on_host(*tensors: Tensor) -> list[Tensor]:
    """Tensors on the CPU if they are small, where a GPU would wait for each iteration."""
    return [t.cpu() if t.numel() <= PAIRS else t for t in tensors]


def pair_angles(
    rows: PolarInputs, columns: PolarInputs, i: Tensor, j: Tensor, cosine: Tensor
) -> Tensor:
    """Angles of single pairs in float64, near 0 and π from the distance of the directions."""
    angle = cosine.double().clamp(-1.0, 1.0).acos()
    close = (cosine.abs() > 1 - CLOSE).nonzero()[:, 0]
    for block in close.split(PAIRS):
        first, second = (
            s.points[k[block]].double() / s.norm[k[block], None].clamp(min=1e-300)
            for s, k in ((rows, i), (columns, j))
        )
        sign = torch.sign(cosine[block]).double()
        gap = torch.linalg.vector_norm(first - sign[:, None] * second, dim=-1)
        small = 2 * torch.asin((gap / 2).clamp(max=1.0))
        angle[block] = torch.where(sign > 0, small, math.pi - small)
    return angle


def checked_inputs(
    x1: object, x2: object | None, *, diag: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the inputs of rows and columns, checked."""
    first = checked_samples("x1", x1, empty=True)
    if x2 is None:
        return first, None
    second = checked_samples("x2", x2, empty=True)
    if first.shape[-1] != second.shape[-1]:
        raise ValueError(
            f"x1 and x2 must have as many features, got {first.shape[-1]} and {second.shape[-1]}"
        )
    _check_partners(first, second, first.shape[-2], second.shape[-2], diag=diag)
    try:
        np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    except ValueError:
        raise ValueError(
            "x1 and x2 must have broadcastable batch dimensions, got "
            f"{tuple(first.shape[:-2])} and {tuple(second.shape[:-2])}"
        ) from None
    return first, second


def checked_images(
    architecture: ImageArchitecture,
    x1: object,
    x2: object | None,
    *,
    diag: bool = False,
    empty: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the images of rows and columns, checked."""
    first = checked_image_samples("x1", x1, architecture, empty=empty)
    if x2 is None:
        return first, None
    second = checked_image_samples("x2", x2, architecture, empty=empty)
    if first.shape[1:] != second.shape[1:]:
        raise ValueError(
            "x1 and x2 must have as many channels and pixels, got "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    _check_partners(first, second, len(first), len(second), diag=diag)
    return first, second


def _check_partners(first: Tensor, second: Tensor, rows: int, columns: int, *, diag: bool) -> None:
    if (first.dtype, first.device) != (second.dtype, second.device):
        raise ValueError(
            f"x1 and x2 must have one dtype and device, got {first.dtype} on {first.device} "
            f"and {second.dtype} on {second.device}"
        )
    if diag and rows != columns:
        raise ValueError(f"diag needs as many x1 as x2, got {rows} and {columns}")


def checked_image_samples(
    name: str, x: object, architecture: ImageArchitecture, *, empty: bool = False
) -> Tensor:
    """Return images of shape (samples, channels, pixels...), checked."""
    tensor = _floats(name, x, empty=empty)
    if not 3 <= tensor.dim() <= 5:
        raise ValueError(
            f"{name} must have shape (samples, channels, pixels...) with one to three axes of "
            f"pixels, got {tuple(tensor.shape)}"
        )
    architecture.check_pixels(name, tuple(tensor.shape))
    return tensor


def checked_samples(name: str, x: object, *, batches: bool = True, empty: bool = False) -> Tensor:
    """Return inputs of shape (..., samples, features), checked."""
    tensor = _floats(name, x, empty=empty)
    if tensor.dim() < 2 or (tensor.dim() > 2 and not batches):
        raise ValueError(f"{name} must have shape (samples, features), got {tuple(tensor.shape)}")
    return tensor


def _floats(name: str, x: object, *, empty: bool = False) -> Tensor:
    none = isinstance(x, Tensor) and x.dim() >= 2 and x.shape[-1] and not x.numel()
    tensor = known_tensor(name, x) if empty and none else float_tensor(name, x)
    if tensor.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must be float32 or float64, got {tensor.dtype}")
    return tensor


def memory_limit(memory: int | str | None) -> int | None:
    """Return a limit such as ``"2GiB"`` in bytes.

    Example:
        >>> memory_limit("2GiB")
        2147483648
    """
    if memory is None:
        return None
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)\s*", memory.upper())
        if match is None:
            raise ValueError(f"memory must be a size such as '2GiB' or '500MB', got {memory!r}")
        memory = int(float(match[1]) * _UNITS[match[2]])
    return integer("memory", memory, at_least=1)


def work_space(limit: int | None, device: torch.device) -> int:
    """Bytes for a block of a matrix: the limit, or the device's default."""
    if limit is not None:
        return limit
    if device.type != "cuda":
        return _WORK[0]
    return min(_WORK[1], torch.cuda.mem_get_info(device)[0] // 8)


def check_memory(limit: int | None, least: int) -> None:
    """Refuse a memory limit below the smallest part of a matrix."""
    if limit is not None and limit < least:
        raise ValueError(f"memory must be at least {least} bytes for these inputs, got {limit}")


def check_size(shape: tuple[int, ...], like: Tensor) -> None:
    """Refuse a pair of matrices that is larger than the memory of its device."""
    needed, device = 2 * math.prod(shape) * like.element_size(), like.device
    if device.type == "cuda":
        available = torch.cuda.mem_get_info(device)[0]
    elif device.type == "cpu" and hasattr(os, "sysconf"):
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        return
    if needed > available:
        raise ValueError(
            f"two matrices of shape {tuple(shape)} take {needed / 1e9:.3g} GB, and there are "
            f"{available / 1e9:.3g} GB of memory: use shoal.kernel_operator, which forms none"
        )


def with_arrays(function: Function) -> Function:
    """Make a function of tensors accept NumPy arrays, and return arrays if it gets any."""

    @wraps(function)
    def wrapped(architecture: Any, x1: Any, x2: Any = None, **options: Any) -> Any:
        result = function(architecture, as_tensor(x1, "x1"), as_tensor(x2, "x2"), **options)
        if isinstance(x1, np.ndarray):
            if result.ck.requires_grad:
                raise TypeError("x1 must be a tensor where gradients are wanted, got an array")
            return Kernels(*(k.numpy() for k in result))  # type: ignore[arg-type]
        return result

    return wrapped  # type: ignore[return-value]
