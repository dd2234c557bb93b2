"""What ``torch.vmap`` does with a solve: one larger batch where it can, a loop where it must."""

from typing import Any

import torch
from torch import Tensor

from shoal.core.torch_internals import apply

__all__ = ["looped", "vectorized"]


def vectorized(
    operation: Any,
    count: int,
    in_dims: tuple[Any, ...],
    arguments: tuple[Any, ...],
    *,
    per_sample: tuple[int, ...],
) -> tuple[Any, Any]:
    """Apply an operation over a new dimension of some of its arguments.

    Args:
        operation: An ``autograd.Function``.
        count: The size of the new dimension.
        in_dims: Where it is in each argument, or ``None``.
        arguments: Tensors and others.
        per_sample: The arguments that have one row per sample. If only these are extended, their
            rows are solved together.
    """
    if any(d is not None for i, d in enumerate(in_dims) if i not in per_sample):
        return looped(operation, count, in_dims, arguments)
    flat = list(arguments)
    for i in per_sample:
        tensor = arguments[i]
        tensor = (
            tensor.expand(count, *tensor.shape)
            if in_dims[i] is None
            else tensor.movedim(in_dims[i], 0)
        )
        flat[i] = tensor.reshape(-1, *tensor.shape[2:])
    result = apply(operation, *flat)
    if isinstance(result, Tensor):
        return result.view(count, -1, *result.shape[1:]), 0
    return tuple(r.view(count, -1, *r.shape[1:]) for r in result), (0,) * len(result)


def looped(
    operation: Any, count: int, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Apply an operation once per entry of the new dimension."""
    results = [
        apply(
            operation,
            *(a if d is None else a.select(d, i) for a, d in zip(arguments, in_dims, strict=True)),
        )
        for i in range(count)
    ]
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])
