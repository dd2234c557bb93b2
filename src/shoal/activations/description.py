"""What decides the numbers of activations, and of all that is made of them, as text.

A ``repr`` does not say it: that of a class which is no dataclass shows none of its attributes, that
of another may hold an address. Fingerprints and checkpoints use this instead.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.activations.base import Activation, is_ours
from shoal.core.fields import stated_fields
from shoal.core.files import checksum

_MANY = 64  # entries of a sequence, above which a checksum stands for them
_POINTS = 64
_SPACING = 2**0.5 / 4  # of the points, which reach from -11 to 11; no kink lies on one
_CODE = (property, classmethod, staticmethod)


def description(value: object) -> str:
    """All that decides the numbers of an activation or architecture; the same in every process.

    Dataclasses are shown with their fields and what other attributes they have, classes that are
    not shoal's also with those of the class. What the function of such an activation is, only its
    values can tell: a checksum of them is added, of nine digits, which no platform rounds away.

    Args:
        value: An activation, an architecture, a solver, or what these are made of.

    Example:
        >>> from shoal.activations import LeakyReLU
        >>> description(LeakyReLU(0.1))
        'LeakyReLU(slope=0.1)'
    """
    if isinstance(value, Tensor | np.ndarray):
        tensor = torch.as_tensor(value).detach().cpu()
        return f"{type(value).__name__}{tuple(tensor.shape)} {checksum({}, {'': tensor})}"
    if is_dataclass(value) and not isinstance(value, type):
        parts = [f"{name}={description(entry)}" for name, entry in _attributes(value).items()]
        if isinstance(value, Activation) and not is_ours(type(value)):
            parts.append(f"values {_values(value)}")
        return f"{type(value).__qualname__}({', '.join(parts)})"
    if isinstance(value, Mapping):
        return _sequence("{}", sorted(f"{k!r}: {description(v)}" for k, v in value.items()))
    if isinstance(value, set | frozenset):
        return _sequence("{}", sorted(map(description, value)))
    if isinstance(value, list):
        return _sequence("[]", map(description, value))
    if isinstance(value, tuple):
        return _sequence("()", map(description, value))
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))  # functions and the like by their names


def _attributes(value: Any) -> dict[str, Any]:
    """Fields first, then what else was set; of classes that are not shoal's, their attributes."""
    found = stated_fields(value)
    named = {field.name for field in fields(value)}
    others = getattr(value, "__dict__", {}).keys() - named
    found |= {name: vars(value)[name] for name in sorted(others)}
    for cls in type(value).__mro__:
        if is_ours(cls) or cls is object:
            continue
        for name, entry in sorted(vars(cls).items()):
            code = callable(entry) or isinstance(entry, _CODE)
            if name not in found and not code and not name.startswith(("__", "_abc_")):
                found[name] = entry
    return found


def _sequence(brackets: str, parts: Iterable[str]) -> str:
    entries = list(parts)
    text = ", ".join(entries)
    if len(entries) > _MANY:
        text = f"{len(entries)} entries {hashlib.sha256(text.encode()).hexdigest()}"
    comma = "," if brackets == "()" and len(entries) == 1 else ""
    return f"{brackets[0]}{text}{comma}{brackets[1]}"


@torch.no_grad()
def _values(phi: Activation) -> str:
    """A checksum of the values at some points."""
    x = (torch.arange(_POINTS, dtype=torch.float64, device="cpu") - (_POINTS - 1) / 2) * _SPACING
    # beyond these digits, elementary functions differ from one processor to the next
    digits = [f"{v + 0.0:.9f}" if abs(v) < 1 else f"{v:.9e}" for v in phi(x).tolist()]
    return hashlib.sha256(" ".join(digits).encode()).hexdigest()[:16]
