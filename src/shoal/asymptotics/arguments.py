"""Numbers that describe a mixture, as float64 tensors on the CPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.checks import float_tensor, unmasked

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = tuple(map(np.dtype, (np.float16, np.float32, np.float64)))  # of torch as well

Numbers = Tensor | NDArray[Any] | Sequence[float]


def numbers(name: str, value: object) -> Tensor:
    """Return a copy of ``value`` as a finite tensor of its dtype; what is no float is float64."""
    if isinstance(value, Tensor):
        tensor = value.detach()
    elif isinstance(value, np.ndarray | Sequence) and not isinstance(value, str | bytes):
        tensor = _from_array(name, value)
    else:
        raise TypeError(f"{name} must be a tensor, an array or a sequence, got {value!r}")
    if tensor.dtype in _INTEGERS:
        tensor = tensor.double()
    return float_tensor(name, tensor).cpu().clone()


def _from_array(name: str, value: "NDArray[Any] | Sequence[object]") -> Tensor:
    unmasked(name, value)
    try:
        array = np.array(value)
    except ValueError:
        raise ValueError(f"{name} must be rectangular, got rows of different lengths") from None
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)
    if array.dtype not in _FLOATS:
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    return torch.tensor(array)


def samples(x: object) -> Tensor:
    """Return samples in rows as a tensor, without their gradients."""
    if isinstance(x, np.ndarray):
        x = numbers("x", x)
    tensor = float_tensor("x", x)
    if tensor.dim() != 2:
        raise ValueError(f"x must have shape (samples, dimension), got {tuple(tensor.shape)}")
    return tensor.detach()
