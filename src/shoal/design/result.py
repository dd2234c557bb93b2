"""What a design is."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.architectures import Architecture

__all__ = ["Design"]


@dataclass(frozen=True)
class Design:
    """An explicit network designed to have the kernel of another one.

    Attributes:
        architecture: The designed network, for ``build``, ``kernel`` and all else.
        match: Which kernel was matched, ``"ck"`` or ``"ntk"``.
        method: ``"moments"`` or ``"sphere"``.
        target: The numbers that were to be matched, by name.
        obtained: What the designed network has instead of them.
        residual: The largest difference that is left. For ``"sphere"``: between the kernels of
            inputs whose angle has a cosine of at most 0.95 in size, relative to the diagonal.
        errors: Differences in other places, by name, relative to the diagonal.
        feasible: Whether a network of the wanted kind has the target's numbers.
        explanation: All of this in words.
    """

    architecture: Architecture
    match: str
    method: str
    target: Mapping[str, float] = field(hash=False)
    obtained: Mapping[str, float] = field(hash=False)
    residual: float
    errors: Mapping[str, float] = field(hash=False)
    feasible: bool
    explanation: str
