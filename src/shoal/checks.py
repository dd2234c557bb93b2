"""Argument checks that name the argument, what was expected and what came."""

import math
from collections.abc import Iterable
from numbers import Integral, Real

import numpy as np
import torch
from torch import Tensor

__all__ = ["FLOATS", "flag", "float_tensor", "integer", "one_of", "real", "size", "unmasked"]

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})  # to compute in


def real(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
) -> float:
    """Return ``value`` as a finite float in the given range, or say why it is not one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a real number, got {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    limits = [
        (number > above, f"> {above:g}"),
        (number < below, f"< {below:g}"),
        (number >= at_least, f">= {at_least:g}"),
        (number <= at_most, f"<= {at_most:g}"),
    ]
    for holds, limit in limits:
        if not holds:
            raise ValueError(f"{name} must be {limit}, got {number:g}")
    return number


def size(name: str, value: object) -> int:
    """Return ``value`` as the size of a tensor: an int from 1 that torch can count to."""
    number = integer(name, value, at_least=1)
    if number >= 2**63:
        raise ValueError(f"{name} must be < 2**63, got {number}")
    return number


def integer(name: str, value: object, *, at_least: int) -> int:
    """Return ``value`` as an int that is ``at_least`` so large, or say why it is not one."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be >= {at_least}, got {value}")
    return int(value)


def flag(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False, or say that it is not."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def unmasked(name: str, value: object) -> None:
    """Say that an array has masked entries, which would silently be taken as numbers, if it has."""
    if isinstance(value, np.ma.MaskedArray) and (count := int(np.sum(value.mask))):
        raise ValueError(
            f"{name} must not have masked entries, got {count} of {value.size}; fill them, or "
            "leave out their rows"
        )


def one_of(name: str, value: str, options: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``options``, or list them."""
    options = tuple(options)
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}")
    return value


def float_tensor(name: str, value: object) -> Tensor:
    """Return a non-empty, finite, floating-point tensor; real numbers become float64."""
    if isinstance(value, Real) and not isinstance(value, bool):
        value = torch.tensor(float(value), dtype=torch.float64)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a floating-point tensor or a number, got {type(value).__name__}"
        )
    if value.dtype not in FLOATS:
        raise TypeError(
            f"{name} must be a floating-point tensor of 16 bits or more, got dtype {value.dtype}"
        )
    if value.numel() == 0:
        raise ValueError(f"{name} must not be empty, got shape {tuple(value.shape)}")
    # extremes instead of a mask: NaN propagates, and nothing of the tensor's size is made
    if not all(map(math.isfinite, torch.stack(torch.aminmax(value.detach())).tolist())):
        raise ValueError(f"{name} must be finite, got NaN or infinity among its entries")
    return value
