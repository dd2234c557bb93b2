"""What a user's activation must be, checked when it is first used."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from shoal.checks import real

if TYPE_CHECKING:
    from shoal.activations.base import Activation

__all__ = ["check_function", "declared_breaks", "innermost"]

_POINTS = torch.linspace(-5.9, 6.1, 97, dtype=torch.float64) + 0.0137


def declared_breaks(phi: "Activation") -> tuple[float, ...] | None:
    """The declared kinks, sorted and checked; ``None`` if they are to be found."""
    given: object = phi.kink_locations
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"kink_locations of {phi!r} must be a tuple of numbers, got {given!r}")
    return tuple(sorted({real(f"kink_locations of {phi!r}", x) for x in given}))


def innermost(phi: "Activation") -> "Activation":
    """The user's activation, of which others, such as its square, are made."""
    from shoal.activations.base import Activation

    parts = [value for value in vars(phi).values() if isinstance(value, Activation)]
    return innermost(parts[0]) if parts else phi


def check_function(phi: "Activation") -> None:
    """See that the function is elementwise and real, and the derivative its derivative.

    Of an activation that is made of another one, such as its square, the other one is seen first:
    what is wrong with it is told in the user's words.
    """
    from shoal.activations.base import Activation

    for name, value in vars(phi).items():
        if isinstance(value, Activation):
            check_function(value)
        if isinstance(value, Tensor):
            raise TypeError(
                f"{name} of {type(phi).__name__} must be a number, got a tensor: activations are "
                "values, and nothing is differentiated in their parameters"
            )
    _check_elementwise(phi)
    slope = _call(phi, "derivative", phi.derivative, _POINTS)
    _call(phi, "third derivative", lambda x: phi.derivative(x, 3), _POINTS)
    with torch.no_grad():
        wide, narrow = (
            (phi(_POINTS + h) - phi(_POINTS - h)).numpy() / (2 * h) for h in (1e-5, 0.5e-5)
        )
        size = float(phi(_POINTS).abs().max())
    scale = size + np.abs(narrow).max() + 1e-290
    conclusive = np.abs(wide - narrow) < 1e-5 * scale  # no kink within the step
    wrong = conclusive & ~(np.abs(narrow - slope.numpy()) <= 1e-6 * scale)
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(
            f"the derivative of {phi!r} is {float(slope[at]):.9g} at x = {float(_POINTS[at]):.4g}, "
            f"but its difference quotient is {narrow[at]:.9g}: correct first_derivative, or write "
            "function in differentiable torch operations that keep float64"
        )


def _check_elementwise(phi: "Activation") -> None:
    value = _call(phi, "function", phi.function, _POINTS)
    few = _call(phi, "function", phi.function, _POINTS.flip(0)[:31])
    size = float(value.nan_to_num(0.0, 0.0, 0.0).abs().max())
    if not torch.allclose(value.flip(0)[:31], few, rtol=0.0, atol=1e-12 * size, equal_nan=True):
        raise ValueError(f"function of {phi!r} must be elementwise and always give the same values")


def _call(phi: "Activation", name: str, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Evaluate a part of an activation, and say what is wrong with what comes back."""
    try:
        value: object = function(x.clone())
    except Exception as error:
        raise ValueError(
            f"{name} of {phi!r} fails on a float64 vector: {error}. It must be elementwise, in "
            "torch operations that autograd can differentiate, or first_derivative be given too"
        ) from error
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} of {phi!r} must return a tensor, got {type(value).__name__}")
    if value.shape != x.shape or value.dtype != x.dtype:
        raise ValueError(
            f"{name} of {phi!r} must return a tensor like its argument, {x.dtype} of shape "
            f"{tuple(x.shape)}, got {value.dtype} of shape {tuple(value.shape)}"
        )
    return value.detach()
