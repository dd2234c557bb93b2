"""Parts of PyTorch that we use, with the types that they lack."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

__all__ = ["apply", "uncompiled", "vjp"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def apply(operation: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Apply a differentiable operation."""
    return operation.apply(*arguments)


def vjp(
    function: Callable[..., Tensor], *primals: Tensor
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
    """The value of a function, and the product with its transposed Jacobian."""
    return cast(
        "tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]",
        torch.func.vjp(function, *primals),
    )


def uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keep a loop of unknown length out of ``torch.compile``; what surrounds it is compiled."""
    return cast("Callable[_P, _R]", torch.compiler.disable(function))
