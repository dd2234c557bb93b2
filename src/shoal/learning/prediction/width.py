"""How wide a network must be to predict nearly as well as an infinitely wide one."""

import math
from dataclasses import replace
from typing import Any

from shoal.architectures import Architecture, ImplicitArchitecture
from shoal.core.checks import integer, real
from shoal.core.exceptions import AccuracyError
from shoal.kernels import kernel_function
from shoal.learning.prediction.subsampling import FEWEST, Subsampling
from shoal.learning.prediction.targets import checked_targets
from shoal.learning.regression.problem import byte_limit, checked_problem
from shoal.learning.regression.ridge_path import decomposed

_WIDEST = 2**40  # beyond which rounding errors of predictions count


def check_width(architecture: Architecture, width: int) -> None:
    """Say of what networks of finite width nothing is known."""
    integer("width", width, at_least=1)
    layers = getattr(architecture, "activations", (None, None))
    if not isinstance(architecture, ImplicitArchitecture) and len(layers) != 1:
        raise ValueError(
            "width is for one hidden layer or an equilibrium, since features of more layers depend "
            f"on each other, got {architecture!r}; with features of the layers below as x, give "
            "the last layer"
        )


def accurate_width(
    architecture: Architecture, x: Any, y: Any, *, excess: float, ridge: float
) -> int:
    """The width from which the predicted error is that of infinite width, but for a share.

    Args:
        architecture: One hidden layer, or an equilibrium; its readout is trained.
        x: Inputs of shape (n, p).
        y: Targets, or classes; see :func:`shoal.learning_curve`.
        excess: The share, above zero.
        ridge: Of the regression that trains the readout, on as many samples as these.

    Raises:
        ValueError: If an argument does not fit.
        AccuracyError: If the kernel matrix is singular, and the ridge too small for that; or the
            excess, for any width.
    """
    share = real("excess", excess, above=0.0)
    check_width(architecture, 1)
    problem = checked_problem(kernel_function(architecture), x, checked_targets(y)[0], ridge, "ck")
    whole = Subsampling(decomposed(problem, byte_limit(problem, None)), problem.ridge, False)
    if problem.size < FEWEST:
        raise ValueError(f"x must have at least {FEWEST} samples, got {problem.size}")
    if whole.limit < problem.size - 0.5:
        raise AccuracyError(
            f"the kernel matrix is singular within rounding: with a ridge of {problem.ridge:g} no "
            f"error is predicted for {problem.size} samples; take a larger ridge"
        )
    most = (1 + share) * whole.predict(problem.size, 0).test

    def good(width: int) -> bool:
        return replace(whole, width=width).predict(problem.size, 0).test <= most

    high = problem.size
    while not good(high):
        high *= 2
        if high > _WIDEST:
            raise AccuracyError(f"excess is too small: no width up to 2^40 has it, got {share:g}")
    low = high // 2
    while low and good(low):
        low, high = low // 2, low
    while high - low > max(1, math.isqrt(low) // 8):  # no finer than networks differ
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high
