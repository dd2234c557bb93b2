"""The conjugate kernel of chosen features of a module."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from shoal.networks.module_inputs import ModuleInputs

Features = str | Callable[..., Tensor]

_SAMPLES = 256  # that are evaluated at once


def feature_kernel(
    module: Module,
    features: Features,
    x1: ModuleInputs,
    x2: ModuleInputs | None,
    *,
    diag: bool,
    forward: Callable[..., object],
) -> Tensor:
    """Inner products of features of inputs.

    Args:
        module: Any module.
        features: A function of inputs, or the name of a submodule whose output they are.
        x1: Inputs.
        x2: Other inputs; ``x1`` again by default.
        diag: Whether to take each input with itself, or with its partner.
        forward: Evaluates the module.
    """
    if isinstance(features, str):
        read = _output_of(module, features, forward)
    elif callable(features):
        read = features
    else:
        raise TypeError(f"features must be a function or the name of a submodule, got {features!r}")
    left = _evaluate(read, x1)
    return inner_products(left, left if x2 is None else _evaluate(read, x2), diag=diag)


def inner_products(left: Tensor, right: Tensor, *, diag: bool) -> Tensor:
    """Inner products of all rows, or of each with its partner."""
    return (left * right).sum(1) if diag else left @ right.T


@torch.no_grad()
def _evaluate(read: Callable[..., Tensor], x: ModuleInputs) -> Tensor:
    """The features of all inputs, as rows."""
    found = []
    for start in range(0, len(x), _SAMPLES):
        part = x[slice(start, start + _SAMPLES)]
        features = part.given_to(read)
        if not isinstance(features, Tensor) or not features.is_floating_point():
            raise TypeError(f"features must be a tensor of real numbers, got {features!r}")
        if not features.dim() or len(features) != len(part):
            raise ValueError(
                f"features must have a row for each of {len(part)} samples, got shape "
                f"{tuple(features.shape)}"
            )
        found.append(features.flatten(1) if features.dim() > 1 else features[:, None])
    return torch.cat(found)


def _output_of(module: Module, name: str, forward: Callable[..., object]) -> Callable[..., Tensor]:
    """What a submodule returns when the module is evaluated."""
    names = [known for known, _ in module.named_modules() if known]
    if name not in names:
        raise ValueError(
            f"features must be a function or one of the submodules {', '.join(names) or '(none)'}, "
            f"got {name!r}"
        )

    def read(*arguments: Any, **named: Any) -> Tensor:
        seen: list[Tensor] = []
        hook = module.get_submodule(name).register_forward_hook(
            lambda _, __, output: seen.append(output)
        )
        try:
            forward(*arguments, **named)
        finally:
            hook.remove()
        if len(seen) != 1:
            raise ValueError(
                f"features must be a submodule that is used once, got {name!r}, which is used "
                f"{len(seen)} times: give a function"
            )
        return seen[0]

    return read
