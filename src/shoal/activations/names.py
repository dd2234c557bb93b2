"""Activations by other names, such as ``leakyrelu:0.1`` or a module of PyTorch, and as text."""

import dataclasses
import hashlib
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn

from shoal.activations.affine import Affine
from shoal.activations.base import Activation, is_ours
from shoal.activations.piecewise import ELU, HardTanh, Identity, LeakyReLU, ReLU
from shoal.activations.piecewise_polynomial import PiecewisePolynomial
from shoal.activations.smooth import GELU, Mish, Sigmoid, Softplus, Swish, Tanh
from shoal.core.files import stated_fields

ActivationLike: TypeAlias = Activation | str | nn.Module
"""The types that architectures accept as an activation."""

SELU = Affine(ELU(1.6732632423543772), scale=1.0507009873554805)  # Klambauer 2017
_ALIASES: dict[str, Activation] = {"silu": Swish(), "selu": SELU}


def _hard_tanh(module: Any) -> Activation | None:
    return HardTanh(module.max_val) if module.max_val == -module.min_val else None


_MODULES: dict[type[nn.Module], Callable[[Any], Activation | None]] = {
    nn.ReLU: lambda _: ReLU(),
    nn.LeakyReLU: lambda module: LeakyReLU(module.negative_slope),
    nn.Tanh: lambda _: Tanh(),
    nn.Hardtanh: _hard_tanh,
    nn.SiLU: lambda _: Swish(),
    nn.Mish: lambda _: Mish(),
    nn.GELU: lambda module: GELU() if module.approximate == "none" else None,
    nn.Softplus: lambda module: Softplus() if module.beta == 1 else None,
    nn.Sigmoid: lambda _: Sigmoid(),
    nn.ELU: lambda module: ELU(module.alpha),
    nn.SELU: lambda _: SELU,
    nn.Identity: lambda _: Identity(),
}


def as_activation(argument: str, value: object) -> Activation:
    """An activation, given as such, by name, or as a module of PyTorch.

    Args:
        argument: The name of the argument in errors.
        value: The value.

    Raises:
        TypeError: If it is none of them.
        ValueError: If the name is unknown, or a module has options that no activation has.

    Example:
        >>> import torch
        >>> as_activation("activation", "silu"), as_activation("activation", torch.nn.ELU(0.5))
        (Swish(), ELU(alpha=0.5))
    """
    if isinstance(value, Activation):
        return value
    if isinstance(value, str):
        return parse_activation(value, argument=argument)
    if isinstance(value, nn.Module) and type(value) in _MODULES:
        activation = _MODULES[type(value)](value)
        if activation is None:
            raise ValueError(
                f"{argument} {value!r} has options that no activation here has; subclass Activation"
            )
        return activation
    raise TypeError(
        f"{argument} must be an Activation, such as ReLU(), its name, such as 'relu', or one of "
        f"the modules {', '.join(kind.__name__ for kind in _MODULES)} of torch.nn, got {value!r}"
    )


def known_activations() -> dict[str, type[Activation]]:
    """The activations that a name and a few numbers can mean, by their names in small letters."""
    from shoal import activations  # the package that holds this module

    members = (getattr(activations, name) for name in activations.__all__)
    return {
        value.__name__.lower(): value
        for value in members
        if isinstance(value, type)
        and issubclass(value, Activation)
        and value not in (Activation, Affine, PiecewisePolynomial)
    }


def activation_names() -> str:
    """All that ``parse_activation`` knows, in alphabetical order."""
    return ", ".join(sorted([*known_activations(), *_ALIASES]))


def parse_activation(text: str, *, argument: str = "activation") -> Activation:
    """The activation of a name, with numbers after a colon where it takes some.

    Args:
        text: The name in letters of any size, and the numbers.
        argument: The name of the argument in errors.

    Raises:
        ValueError: If the name is unknown, or the numbers do not suit it.

    Example:
        >>> parse_activation("tanh"), parse_activation("leakyrelu:0.1")
        (Tanh(), LeakyReLU(slope=0.1))
        >>> parse_activation("hermite:0,1,0.5")
        Hermite(coefficients=(0.0, 1.0, 0.5), scale=1.0)
    """
    name, colon, arguments = text.partition(":")
    name = name.strip()
    plain = name.lower().replace("_", "")
    if plain in _ALIASES and not colon:
        return _ALIASES[plain]
    kind = known_activations().get(plain)
    if kind is None:
        raise ValueError(f"{argument} must be one of {activation_names()}, got {name!r}")
    try:
        numbers = tuple(float(part) for part in arguments.split(",")) if colon else ()
    except ValueError:
        raise ValueError(
            f"{argument} must have numbers after its colon, as in leakyrelu:0.1, got {text!r}"
        ) from None
    fields = [field.name for field in dataclasses.fields(kind)]
    try:
        return kind(numbers) if "coefficients" in fields and numbers else kind(*numbers)  # type: ignore[call-arg]
    except (TypeError, ValueError) as error:
        takes = ", ".join(fields) if fields else "no numbers"
        reason = f": {error}" if isinstance(error, ValueError) else ""
        raise ValueError(f"{argument} {name} takes {takes}, got {text!r}{reason}") from None


def description(value: object) -> str:
    """A text that determines the numbers of an activation or architecture, in every process.

    For a user's activation, a checksum of its values is added, to nine digits.

    Args:
        value: An activation, an architecture, a solver, or one of their parts.

    Example:
        >>> from shoal.activations import LeakyReLU
        >>> description(LeakyReLU(0.1))
        'LeakyReLU(slope=0.1)'
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [f"{name}={description(entry)}" for name, entry in stated_fields(value).items()]
        if isinstance(value, Activation) and not is_ours(type(value)):
            parts.append(f"values {_checksum(value)}")
        return f"{type(value).__qualname__}({', '.join(parts)})"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(description, value))})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))  # functions and the like by their names


@torch.no_grad()
def _checksum(phi: Activation) -> str:
    """A checksum of the values at some points from -11 to 11, which are no kinks."""
    x = (torch.arange(64, dtype=torch.float64, device="cpu") - 31.5) * (2**0.5 / 4)
    digits = [f"{v + 0.0:.9f}" if abs(v) < 1 else f"{v:.9e}" for v in phi(x).tolist()]
    return hashlib.sha256(" ".join(digits).encode()).hexdigest()[:16]
