"""Parts of PyTorch that we use, with the types that they lack."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

__all__ = [
    "apply",
    "full_precision",
    "has_gradient",
    "in_full_precision",
    "is_transformed",
    "uncompiled",
    "vjp",
]

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


def full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """Where autocast is off on the tensor's device: tolerances are those of the dtype at hand."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if _autocast(kind) else nullcontext()


def in_full_precision(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn autocast off in a function, on the device of the first tensor that it is given."""

    @functools.wraps(function)
    def wrapped(*arguments: _P.args, **options: _P.kwargs) -> _R:
        first = next((a for a in arguments if isinstance(a, Tensor)), None)
        if first is None or not _autocast(first.device.type):
            return function(*arguments, **options)
        with full_precision(first):
            return function(*arguments, **options)

    return wrapped


def _autocast(kind: str) -> bool:
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def has_gradient(tensor: Tensor) -> bool:
    """Whether autograd, in either mode and at any level of ``torch.func``, follows a tensor."""
    functorch = torch._C._functorch
    tangent = None
    if not functorch.is_batchedtensor(tensor):  # of which forward mode tells nothing here
        tangent = torch.autograd.forward_ad.unpack_dual(tensor, level=0).tangent
    if tensor.requires_grad or tangent is not None:
        return True
    top = functorch.peek_interpreter_stack()
    if top is None:
        return False
    if functorch.maybe_get_level(tensor) == top.level():
        tensor = functorch.get_unwrapped(tensor)
    with temporarily_pop_interpreter_stack():
        return has_gradient(tensor)


def vjp(
    function: Callable[..., Tensor], *primals: Tensor
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
    """The value of a function, and the product with its transposed Jacobian."""
    return cast(
        "tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]",
        torch.func.vjp(function, *primals),
    )


def uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keep a loop of unknown length out of ``torch.compile``; what surrounds it is compiled.

    Like ``torch.compiler.disable``, which would import the compiler at once: 40% of the time that
    importing shoal takes. This imports it with the first call.
    """
    return cast("Callable[_P, _R]", _disable_dynamo(function))
