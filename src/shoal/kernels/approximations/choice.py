"""Which surface serves the kernel matrix of some inputs."""

import logging
import math

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.panels import breaks, reach
from shoal.core.exceptions import AccuracyError
from shoal.kernels.approximations.surface import Surface, angular_surface, norm_span, surface
from shoal.kernels.approximations.typical_angles import typical_angles
from shoal.kernels.function import KernelFunction
from shoal.kernels.inputs import Inputs

_LOGGER = logging.getLogger(__name__)

TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-7}
ANGULAR_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-8}
_ONE_NORM = {torch.float64: 1e-13, torch.float32: 1e-6}  # spread of norms that count as one
_NORM_STEPS = {torch.float64: 2**44, torch.float32: 2**24}  # of a common norm, in each octave
_SMOOTH = 0.25  # angles from 0 and π, from which on kinks do no harm where norms differ
_MANY = 100_000  # pairs that deserve a word if computed one by one


def chosen_surface(
    function: KernelFunction, left: Inputs, right: Inputs, few: int
) -> tuple[Surface | None, Surface | None]:
    """The surface for nearly all entries, and one for all others; ``None`` for those one by one.

    Args:
        function: The kernels.
        left: The inputs of the rows.
        right: Those of the columns; the same object if the matrix is symmetric.
        few: Pairs of different norms that are computed one by one.
    """
    dtype = left.points.dtype
    norms = torch.cat([left.norm, right.norm])
    norms = norms[norms > 0]
    if not len(norms) or (right is left and len(left) == 1):  # no angle, or none but its own
        return None, None
    squared_norm = common_norm(function, norms, dtype)
    pairs = len(left) * (len(left) + 1) // 2 if right is left else len(left) * len(right)
    try:
        if squared_norm is not None:
            tolerance = ANGULAR_TOLERANCE[dtype]
            wide = angular_surface(function, squared_norm, tolerance)
            return wide.restricted(typical_angles(left, right), tolerance), wide
        if pairs <= few:
            return None, None
        low, high = typical_angles(left, right)
        if _has_kinks(function):
            low, high = max(low, _SMOOTH), min(high, math.pi - _SMOOTH)
        if low < high:
            return surface(function, norm_span(norms), (low, high), TOLERANCE[dtype], pairs), None
    except AccuracyError as error:
        _LOGGER.log(
            logging.WARNING if pairs > _MANY else logging.INFO,
            "the entries of the kernel of %r are computed one by one, which is slow: %s",
            function.architecture,
            error,
        )
    return None, None


def _has_kinks(function: KernelFunction) -> bool:
    """Whether an activation is not analytic, so that kernels change fast next to 0 and π."""
    activations = {cell.activation for cell in function.architecture.layers(function.width).cells}
    return any(_breaks(phi) for phi in activations)


def _breaks(phi: Activation) -> bool:
    return bool(breaks(phi, reach(phi)))


def common_norm(function: KernelFunction, norms: Tensor, dtype: torch.dtype) -> float | None:
    """The squared norm of all inputs, or one if norms are but factors; ``None`` if they differ."""
    if function.architecture.positively_homogeneous:
        return 1.0
    smallest, largest = (float(end) for end in torch.aminmax(norms))
    one = largest > 0 and largest - smallest <= _ONE_NORM[dtype] * largest
    return shared_norm(norms, dtype) ** 2 if one else None


def shared_norm(norms: Tensor, dtype: torch.dtype) -> float:
    """The mean of norms that count as one, rounded: another batch of them has the same series."""
    fraction, exponent = math.frexp(float(norms.mean()))
    return math.ldexp(round(fraction * _NORM_STEPS[dtype]) / _NORM_STEPS[dtype], exponent)
