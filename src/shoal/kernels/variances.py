"""Tensors that stand for the variances of an architecture."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from shoal.architectures import Architecture
from shoal.core.checks import float_tensor, shown

__all__ = ["Variances", "checked_variances", "with_values"]

Variances = tuple[tuple[str, Tensor], ...]


def checked_variances(
    architecture: Architecture, variances: Mapping[str, Tensor] | None
) -> Variances:
    """Return names and scalar tensors, or say what is wrong with them."""
    if variances is None:
        return ()
    if not isinstance(variances, Mapping):
        raise TypeError(f"variances must map names to scalar tensors, got {variances!r}")
    known = ", ".join(map(repr, architecture.variances)) or "none"
    for name, value in variances.items():
        if name not in architecture.variances:
            raise ValueError(
                f"variances must be among those of {type(architecture).__name__} ({known}), "
                f"got {name!r}"
            )
        if not isinstance(value, Tensor) or value.dim():
            raise TypeError(
                f"variances[{name!r}] must be a floating-point tensor of shape (), "
                f"got {shown(value)}"
            )
        float_tensor(f"variances[{name!r}]", value)
    return tuple(variances.items())


def with_values(architecture: Architecture, variances: Variances) -> Architecture:
    """The architecture with the values of the tensors, which it checks."""
    if not variances:
        return architecture
    return replace(architecture, **{name: float(value.detach()) for name, value in variances})
