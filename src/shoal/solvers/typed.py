"""Parts of PyTorch that we use, with the types that they lack."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

__all__ = ["apply", "is_transformed", "uncompiled", "vjp"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def apply(operation: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Apply a differentiable operation.

    Outside of ``torch.func`` this leaves out a look at the signature of its ``forward``, which
    takes longer than some of its matrix products.
    """
    if is_transformed(*arguments):
        return operation.apply(*arguments)
    return super(torch.autograd.Function, operation).apply(*arguments)  # type: ignore[misc]


def is_transformed(*arguments: Any) -> bool:
    """Whether a transform of ``torch.func`` is at work, or has left its mark on a tensor."""
    functorch = torch._C._functorch
    return functorch.peek_interpreter_stack() is not None or any(
        isinstance(a, Tensor) and functorch.is_functorch_wrapped_tensor(a) for a in arguments
    )


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
