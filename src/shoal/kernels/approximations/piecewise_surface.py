r"""Kernels of inputs of one norm where one series in the angle does not do.

An activation that is rounded off on a small scale $\varepsilon$ has a kernel that changes its
character at $\theta \approx \varepsilon$ and $\pi - \varepsilon$. At any other angle it is analytic
as far as the nearer of these, so that few terms are enough for each octave of the distance from
0 or π. An octave is made when enough pairs ask for it.
"""

import logging
import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError
from shoal.kernels.approximations.surface import (
    ANY_ANGLE,
    Span,
    Surface,
    diagonal,
    one_norm_surface,
)
from shoal.kernels.calculi import HalfAngle
from shoal.kernels.function import KernelFunction
from shoal.numerics import fit

_LOGGER = logging.getLogger(__name__)

_DEGREE = 128
_CHECKS = 24  # angles, off the grid, at which the error is measured
_LAST = -15  # the octaves from 2^-15 down count as one
_FEW = 40  # pairs of an octave that are computed one by one


@dataclass(frozen=True)
class PiecewiseSurface:
    """Both kernels at all angles, divided by their diagonals, like a ``Surface``.

    Attributes:
        function: The kernels.
        squared_norm: That of all inputs; any if the kernels are positively homogeneous.
        tolerance: Relative to the diagonal.
    """

    function: KernelFunction
    squared_norm: float
    tolerance: float
    angles = ANY_ANGLE

    def pairs(self, left: Tensor, right: Tensor, angle: Tensor) -> Tensor:
        """Values at single pairs, given their features and angles. shape: (2, n)."""
        obtuse = angle > math.pi / 2
        distance = torch.where(obtuse, math.pi - angle, angle)
        octave = distance.log2().floor().clamp(_LAST, 0)
        number = torch.where(obtuse, 1 - octave, octave).long()  # 1, 2, ... towards π
        values = angle.new_empty(2, len(angle))
        for k in number.unique().tolist():
            here = number == k
            part = self._octave(k) if int(here.sum()) > _FEW else None
            if part is None:
                values[:, here] = _values(self.function, self.squared_norm, angle[here])
            else:
                values[:, here] = part.pairs(left[here], right[here], angle[here])
        return values

    def _octave(self, number: int) -> Surface | None:
        exponent = min(number, 1 - number)
        span = (0.0 if exponent == _LAST else 2.0**exponent, min(2.0 ** (exponent + 1), 1.6))
        if number > 0:
            span = (math.pi - span[1], math.pi - span[0])
        try:
            return part_surface(self.function, self.squared_norm, span, self.tolerance)
        except AccuracyError as error:
            _LOGGER.info("no series for %r: %s", self.function.architecture, error)
            return None


@cached
def part_surface(
    function: KernelFunction, squared_norm: float, angles: Span, tolerance: float
) -> Surface:
    """The surface for inputs of one norm and a range of angles; kept for later calls.

    Raises:
        AccuracyError: If the kernel is too rough at these angles.
    """
    found = fit(
        partial(_values, function, squared_norm),
        (angles,),
        tolerance=tolerance,
        max_degree=_DEGREE,
        check_points=_CHECKS,
    )
    return one_norm_surface(found, _own(function, squared_norm))


def _values(function: KernelFunction, squared_norm: float, angle: Tensor) -> Tensor:
    """Both kernels by their scalar equations, divided by their diagonals. shape: (2, n)."""
    kernels = function.at_cosines(squared_norm, HalfAngle.of(angle))
    own = _own(function, squared_norm).to(angle.device)
    return torch.stack(tuple(kernels)) / torch.where(own == 0, 1.0, own)[:, None]


@cached
def _own(function: KernelFunction, squared_norm: float) -> Tensor:
    return diagonal(function, torch.tensor([squared_norm], dtype=torch.float64).sqrt())[:, 0]
