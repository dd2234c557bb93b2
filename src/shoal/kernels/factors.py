"""Vectors and matrices that operators are applied to, and what comes back."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.checks import float_tensor
from shoal.kernels.arguments import as_tensor

__all__ = ["checked_factor", "like_factor", "refuse_gradients"]


def checked_factor(name: str, other: Any, size: int, device: torch.device) -> Tensor:
    """Return a factor as columns of shape (size, q), or say what is wrong with it.

    Tensors must be on the device of the operator; arrays are copied there.

    Raises:
        TypeError: If it is no floating-point tensor or array.
        ValueError: If its shape or device does not fit, or gradients of it are wanted.
    """
    if isinstance(other, Tensor) and other.device != device:
        raise ValueError(f"{name} must be on the operator's device, {device}, got {other.device}")
    vectors = float_tensor(name, as_tensor(other, name))
    if vectors.dim() not in (1, 2) or vectors.shape[0] != size:
        raise ValueError(
            f"{name} must have {size} rows and at most two dimensions, "
            f"got shape {tuple(vectors.shape)}"
        )
    refuse_gradients({name: vectors}, "operators are not differentiated; detach() it")
    return vectors.detach().to(device).reshape(size, -1)


def like_factor(other: Any, result: Tensor) -> Any:
    """The result in the shape and kind of the factor."""
    shaped = result[:, 0] if other.ndim == 1 else result
    return shaped.cpu().numpy() if isinstance(other, np.ndarray) else shaped


def refuse_gradients(given: dict[str, Tensor | None], why: str) -> None:
    """Refuse tensors, by their names, of which gradients would silently be lost.

    Raises:
        ValueError: If one of them requires gradients where these are enabled.
    """
    for name, tensor in given.items():
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name} must not require gradients: {why}")
