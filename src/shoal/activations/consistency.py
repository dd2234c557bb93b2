"""Whether the derivatives and bounds of a user's activation agree with its function."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from shoal.core.checks import real

if TYPE_CHECKING:
    from shoal.activations.base import Activation
    from shoal.activations.bounds import Evaluated

_POINTS = torch.linspace(-5.9, 6.1, 97, dtype=torch.float64) + 0.0137


def declared_breaks(phi: "Activation") -> tuple[float, ...] | None:
    """The declared kinks, sorted and checked; ``None`` if they are to be found."""
    declared: object = phi.kink_locations
    if declared is None:
        return None
    if isinstance(declared, str) or not isinstance(declared, Iterable):
        raise TypeError(f"kink_locations of {phi!r} must be a tuple of numbers, got {declared!r}")
    return tuple(sorted({real(f"kink_locations of {phi!r}", x) for x in declared}))


def innermost(phi: "Activation") -> "Activation":
    """The user's activation inside a composed one, such as its square."""
    from shoal.activations.base import Activation

    parts = [value for value in vars(phi).values() if isinstance(value, Activation)]
    return innermost(parts[0]) if parts else phi


def check_function(phi: "Activation") -> None:
    """Check that the function is elementwise and real, and that the derivative matches it.

    A composed activation, such as a square, has its parts checked first, so that errors name the
    user's activation.
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


def check_smoothness(phi: "Activation") -> None:
    """Check a user's bounds at a few points."""
    from shoal.activations.base import is_ours
    from shoal.activations.bounds import Smoothness

    phi = innermost(phi)
    if is_ours(type(phi)):
        return
    bounds: object = phi.smoothness()
    if not isinstance(bounds, Smoothness):
        raise TypeError(f"smoothness of {phi!r} must return a Smoothness, got {bounds!r}")
    for name, order, bound in (
        ("lipschitz", 1, bounds.lipschitz),
        ("curvature", 2, bounds.curvature),
    ):
        size = phi.derivative(_POINTS, order).abs()
        if not bool((size <= bound * (1 + 1e-9)).all()):
            at = int(size.argmax())
            raise ValueError(
                f"{name} in smoothness of {phi!r} must bound derivative {order}, got {bound:.9g}, "
                f"and it is {float(size[at]):.9g} at x = {float(_POINTS[at]):.4g}"
            )


def check_evaluated(phi: "Activation", x: Tensor, evaluated: "Evaluated") -> None:
    """Check a user's values and slopes against the function, up to the stated errors."""
    from shoal.activations.base import is_ours
    from shoal.activations.bounds import Evaluated

    if is_ours(type(innermost(phi))):
        return
    if not isinstance(evaluated, Evaluated):
        raise TypeError(f"evaluated of {phi!r} must return an Evaluated, got {evaluated!r}")
    plain = Evaluated.estimated(phi(x), phi.derivative(x), x)
    for name, value, other, error in zip(
        ("values", "slopes"),
        evaluated[:2],
        plain[:2],
        (evaluated.error + plain.error, evaluated.slope_error + plain.slope_error),
        strict=True,
    ):
        if not bool(((value - other).abs() <= error).all()):
            raise ValueError(
                f"{name} in evaluated of {phi!r} must be within their errors of the function's, "
                f"and are off by up to {float((value - other).abs().max()):.3g}"
            )


def _check_elementwise(phi: "Activation") -> None:
    value = _call(phi, "function", phi.function, _POINTS)
    few = _call(phi, "function", phi.function, _POINTS.flip(0)[:31])
    size = float(value.nan_to_num(0.0, 0.0, 0.0).abs().max())
    if not torch.allclose(value.flip(0)[:31], few, rtol=0.0, atol=1e-12 * size, equal_nan=True):
        raise ValueError(f"function of {phi!r} must be elementwise and always give the same values")


def _call(phi: "Activation", name: str, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Evaluate a part of an activation and check the result."""
    try:
        value: object = function(x.clone())
    except Exception as error:
        raise ValueError(
            f"{name} of {phi!r} fails on a float64 vector: {error}. It must be elementwise "
            "and use differentiable torch operations; otherwise define first_derivative, too"
        ) from error
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} of {phi!r} must return a tensor, got {type(value).__name__}")
    if value.shape != x.shape or value.dtype != x.dtype:
        raise ValueError(
            f"{name} of {phi!r} must return a tensor like its argument, {x.dtype} of shape "
            f"{tuple(x.shape)}, got {value.dtype} of shape {tuple(value.shape)}"
        )
    return value.detach()
