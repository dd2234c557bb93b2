"""Argument checks whose errors name the argument, the expected value and the value received."""

import math
import os
import reprlib
from collections.abc import Iterable
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.masked import MaskedTensor

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})  # to compute in

T = TypeVar("T")

_REPR = reprlib.Repr()
_REPR.maxother = _REPR.maxstring = 200
_REPR.maxlist = _REPR.maxtuple = _REPR.maxset = _REPR.maxfrozenset = 8


def shown(value: object) -> str:
    """A short representation of any value, for messages.

    Example:
        >>> shown([*range(100)])
        '[0, 1, 2, 3, 4, 5, 6, 7, ...]'
    """
    return _REPR.repr(value)


def number(name: str, value: object) -> float:
    """Return a real number as a float, perhaps infinite or NaN, or raise."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a real number, got {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"{name} must be a number that double precision can hold, got {shown(value)}"
        ) from None


def real(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
) -> float:
    """Return ``value`` as a finite float in the given range, or raise."""
    converted = number(name, value)
    if not math.isfinite(converted):
        raise ValueError(f"{name} must be finite, got {converted}")
    limits = (
        (converted > above, ">", above),
        (converted < below, "<", below),
        (converted >= at_least, ">=", at_least),
        (converted <= at_most, "<=", at_most),
    )
    for holds, relation, limit in limits:
        if not holds:
            raise ValueError(f"{name} must be {relation} {limit:g}, got {converted:g}")
    return converted


def size(name: str, value: object) -> int:
    """Return ``value`` as the size of a tensor: an int from 1 that torch can count to."""
    return integer(name, value, at_least=1)


def room(name: str, *shape: int) -> None:
    """Reject a float64 tensor that this machine's memory cannot hold."""
    needed, there = 8 * math.prod(shape), _machine_memory()
    if needed > there:
        raise ValueError(
            f"{name} must be smaller: a tensor of shape {shape} takes {needed / 2**30:.3g} GiB, "
            f"and this machine has {there / 2**30:.3g} GiB"
        )


@cache
def _machine_memory() -> int:
    """The bytes of memory, or of a 64-bit address space if the system does not report them."""
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 2**47


def integer(name: str, value: object, *, at_least: int, below: int = 2**63) -> int:
    """Return ``value`` as an int in the given range, or raise.

    The range ends where torch's integers do, unless another end is given.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {shown(value)}")
    converted = int(value)
    if converted < at_least:
        raise ValueError(f"{name} must be >= {at_least}, got {shown(converted)}")
    if converted >= below:
        limit = f"2**{below.bit_length() - 1}" if below.bit_count() == 1 else str(below)
        raise ValueError(f"{name} must be < {limit}, got {shown(converted)}")
    return converted


def flag(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False, or raise."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {shown(value)}")
    return value


def unmasked(name: str, value: object) -> None:
    """Reject masked entries of an array, which would silently be taken as numbers."""
    if isinstance(value, np.ma.MaskedArray) and (count := int(np.sum(value.mask))):
        raise ValueError(
            f"{name} must not have masked entries, got {count} of {value.size}; fill them, or "
            "leave out their rows"
        )


def one_of(name: str, value: object, options: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``options``, or raise an error that lists them."""
    options = tuple(options)
    if not isinstance(value, str) or value not in options:
        listed = ", ".join(map(repr, options))
        raise ValueError(f"{name} must be one of {listed}, got {shown(value)}")
    return value


def items(name: str, value: object, kind: str = "a collection") -> tuple[Any, ...]:
    """Return the items of a collection, which text is not, or raise.

    The entries of a tensor of one dimension are plain numbers.
    """
    single = isinstance(value, str | bytes) or getattr(value, "ndim", 1) == 0
    if single or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be {kind}, got {shown(value)}")
    if isinstance(value, Tensor) and value.ndim == 1:
        return tuple(host_array(name, value).tolist())
    return tuple(value)


def instance(name: str, value: object, kind: type[T]) -> T:
    """Return ``value`` if it is of a class, or raise."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise TypeError(f"{name} must be {article} {kind.__name__}, got {shown(value)}")
    return value


def function(name: str, value: object) -> None:
    """Reject a value that is neither callable nor ``None``."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable, got {shown(value)}")


def seeded(name: str, seed: object) -> torch.Generator:
    """Return a generator of random numbers on the CPU, from a seed below 2**64."""
    start = integer(name, seed, at_least=0, below=2**64)
    return torch.Generator().manual_seed(start)


def as_path(name: str, value: object) -> Path:
    """Return ``value`` as the path of a file or folder, or raise."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a path, got {shown(value)}")
    text = os.fspath(value)
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a path of text, got {shown(text)}")
    if not text or "\0" in text:
        raise ValueError(f"{name} must be a path without NUL and not empty, got {shown(text)}")
    return Path(text)


def float_dtype(name: str, value: object) -> torch.dtype:
    """Return ``value`` if it is a dtype to compute in, or raise."""
    if not isinstance(value, torch.dtype) or value not in FLOATS:
        raise TypeError(
            f"{name} must be a floating-point dtype of 16 bits or more, got {shown(value)}"
        )
    return value


def as_device(name: str, value: object, kinds: str = "cpu, cuda or cuda:N") -> torch.device:
    """Return a device that torch can use here, or raise."""
    if not isinstance(value, str | torch.device):
        raise TypeError(f"{name} must be a device, such as 'cpu' or 'cuda:0', got {shown(value)}")
    try:
        device = torch.device(value)
    except RuntimeError:
        raise ValueError(f"{name} must be {kinds}, got {shown(value)}") from None
    if device.type in ("cpu", "meta"):
        return device
    backend: Any = getattr(torch, device.type, None)  # torch.cuda and its like
    count = backend.device_count() if hasattr(backend, "device_count") else 0
    if (device.index or 0) >= count:
        raise ValueError(
            f"{name} must be one that this machine has, and torch can use {count} of type "
            f"{device.type!r} here; got {shown(value)}"
        )
    return device


def dense_tensor(name: str, value: object) -> Tensor:
    """Return a dense floating-point tensor of any size and values, or raise."""
    if (  # the usual case at once: activations are evaluated often
        type(value) is Tensor
        and value.dtype in FLOATS
        and value.layout is torch.strided
        and not value.is_nested
    ):
        return value
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a floating-point tensor, got {type(value).__name__}")
    if value.dtype not in FLOATS:
        raise TypeError(
            f"{name} must be a floating-point tensor of 16 bits or more, got dtype {value.dtype}"
        )
    check_layout(name, value)
    return value


def check_layout(name: str, tensor: Tensor) -> None:
    """Reject sparse, nested and masked tensors."""
    masked = isinstance(tensor, MaskedTensor)
    if masked or tensor.layout != torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
        kind = "a MaskedTensor: fill it, or leave out its rows" if masked else kind
        raise TypeError(f"{name} must be a dense tensor, got {kind}")


def check_values(name: str, tensor: Tensor) -> None:
    """Reject a tensor that has a shape and no values."""
    if tensor.is_meta:
        raise TypeError(f"{name} must be a tensor with values, got one of shapes alone")


def known_tensor(name: str, value: object) -> Tensor:
    """Return a dense floating-point tensor that has values, perhaps none and perhaps NaN."""
    tensor = dense_tensor(name, value)
    check_values(name, tensor)
    return tensor.resolve_neg()  # torch has not all operations for views of imaginary parts


def shaped(name: str, value: object, *shape: int | None) -> Tensor:
    """Return a dense floating-point tensor of a shape; ``None`` stands for any size."""
    tensor = known_tensor(name, value)
    sizes = tuple(tensor.shape)
    fits = (want in (None, size) for want, size in zip(shape, sizes, strict=False))
    if len(sizes) != len(shape) or not all(fits):
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape ({expected}), got {sizes}")
    return tensor


def writable(name: str, tensor: Tensor) -> None:
    """Reject a tensor whose entries cannot be overwritten one by one."""
    shared = any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    if shared or tensor.requires_grad:
        kind = "one whose entries share memory" if shared else "one that requires gradients"
        raise ValueError(f"{name} must be a tensor to write to, got {kind}")


def host_array(name: str, tensor: Tensor) -> NDArray[Any]:
    """Return the entries of a dense tensor of numbers as a NumPy array, without its gradient."""
    if tensor.is_quantized or (tensor.dtype.is_floating_point and tensor.dtype not in FLOATS):
        raise TypeError(f"{name} must hold plain numbers, got dtype {tensor.dtype}")
    check_layout(name, tensor)
    check_values(name, tensor)
    wide = tensor.detach().double() if tensor.dtype == torch.bfloat16 else tensor.detach()
    array: NDArray[Any] = wide.cpu().resolve_conj().resolve_neg().numpy()
    return array


def as_tensor(x: Any, name: str) -> Any:
    """Return a NumPy array, an argument of some name, as a tensor, and all else as it is."""
    if not isinstance(x, np.ndarray):
        return x
    unmasked(name, x)
    if x.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise TypeError(f"{name} must be float32 or float64, in native byte order, got {x.dtype}")
    return torch.from_numpy(np.array(x, order="C"))  # a copy, which has no negative strides


def real_array(name: str, value: object) -> NDArray[np.float64]:
    """Return a tensor, an array or a sequence of real numbers as a new array in float64."""
    array = host_array(name, value) if isinstance(value, Tensor) else value
    if isinstance(array, np.ndarray) and array.dtype.kind not in "iufO":
        raise TypeError(f"{name} must be real numbers, got dtype {array.dtype}")
    try:
        return np.array(array, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be real numbers, got {shown(value)}: {error}") from None


def float_tensor(name: str, value: object) -> Tensor:
    """Return a non-empty, finite, floating-point tensor; real numbers become float64."""
    if isinstance(value, Real) and not isinstance(value, bool):
        value = torch.tensor(number(name, value), dtype=torch.float64)
    if not isinstance(value, Tensor):
        # a data frame: of pandas, polars and others
        cure = f": give torch.tensor({name}.to_numpy())" if hasattr(value, "to_numpy") else ""
        raise TypeError(
            f"{name} must be a floating-point tensor or a number, got {type(value).__name__}{cure}"
        )
    tensor = known_tensor(name, value)
    if tensor.numel() == 0:
        raise ValueError(f"{name} must not be empty, got shape {tuple(tensor.shape)}")
    # extremes instead of a mask: NaN propagates, and nothing of the tensor's size is made
    if not all(map(math.isfinite, torch.stack(torch.aminmax(tensor.detach())).tolist())):
        raise ValueError(f"{name} must be finite, got NaN or infinity among its entries")
    return tensor
