r"""A kernel matrix to first order: what its surface says of derivatives in norms and angles."""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from shoal.approximation import differentiate
from shoal.exceptions import AccuracyError
from shoal.kernels.inputs import CLOSE, Inputs
from shoal.kernels.plan import ANGULAR_TOLERANCE, FEW_PAIRS, TOLERANCE, Plan, shared_norm
from shoal.kernels.slopes import Slopes, angular_slopes, own_slopes
from shoal.kernels.sources import has_sources
from shoal.kernels.surface import Span, norm_span, surface

__all__ = ["Lines", "Weights", "own_lines"]

_LOGGER = logging.getLogger(__name__)

_GRID = 8  # ranges of angles end at multiples of 1/8
_INSET = 1e-3  # and not at 0 and π, where derivatives in norms and variances are lost


@dataclass(frozen=True, eq=False)
class Lines:
    """One matrix and its derivatives.

    Attributes:
        plan: How the matrix is computed.
        names: Of the variances in which it is differentiated.
        strips: Which rows are computed together.
    """

    plan: Plan
    names: tuple[str, ...]
    strips: Callable[[Plan], Iterator[slice]]

    def special(self, cosine: Tensor, rows: slice, columns: slice) -> Tensor:
        """Where the slopes do not know an entry."""
        if self.slopes is None:
            return torch.ones_like(cosine, dtype=torch.bool)
        low, high = self.slopes.angles
        most, least = min(math.cos(low), 1 - CLOSE), max(math.cos(high), CLOSE - 1)
        special = (cosine > most) | (cosine < least)
        special |= (self.plan.left.norm[rows] == 0)[:, None]
        return special.logical_or_(self.plan.right.norm[columns] == 0)

    @cached_property
    def slopes(self) -> Slopes | None:
        """The surface and its derivatives; ``None`` if pairs are differentiated one by one."""
        try:
            if self.names and not has_sources(self.plan.function.architecture):
                return None
            return _slopes(self.plan, self._angles())
        except AccuracyError as error:
            _LOGGER.warning("gradients are computed pair by pair, which is slow: %s", error)
            return None

    def _angles(self) -> Span:
        """A range that holds all angles but those near 0 and π, rounded outwards."""
        plan = self.plan
        ends = [0.0, 0.0]
        for rows in self.strips(plan):
            start = plan.columns_from(rows.start)
            cosine = plan.left.unit[rows] @ plan.right.unit[start:].T
            cosine.masked_fill_(cosine.abs() > 1 - CLOSE, 0.0)
            found = torch.aminmax(cosine)
            ends = [min(ends[0], float(found[0])), max(ends[1], float(found[1]))]
        low = math.floor(math.acos(ends[1]) * _GRID) / _GRID
        high = math.ceil(math.acos(ends[0]) * _GRID) / _GRID
        return max(low, _INSET), min(high, math.pi - _INSET)

    @cached_property
    def sides(self) -> tuple["Weights", "Weights"]:
        """What rows and columns contribute."""
        left = self._weights(self.plan.left)
        return left, left if self.plan.symmetric else self._weights(self.plan.right)

    def _weights(self, inputs: Inputs) -> "Weights":
        slopes, dtype = self.slopes, inputs.points.dtype
        assert slopes is not None
        norm = torch.where(inputs.norm > 0, inputs.norm, inputs.norm.max().clamp(min=1e-100))
        own = own_lines(self.plan, (), norm)
        scale = own[0].sqrt()[:, :, None]
        weights = scale * slopes.surface.features(norm)
        rise = weights  # at inputs of one norm, the series itself is differentiated
        if slopes.radial is None:
            low, high = slopes.surface.norms or (0.0, 1.0)
            basis = differentiate(slopes.surface.basis) * (2 / (high - low) / math.log(2))
            features = replace(slopes.surface, basis=basis).features(norm)
            rise = scale * features + (own[1] / own[0] / 2)[:, :, None] * weights
        return Weights(weights.to(dtype), rise.to(dtype), norm, own[0, 0])


@dataclass(frozen=True, eq=False)
class Weights:
    """What rows or columns contribute.

    Attributes:
        weights: Their weights. shape: (2, n, rank)
        slopes: The derivatives of these in the logarithms of the norms, of the same shape.
        norm: Norms, those of zero replaced. shape: (n,)
        own: Conjugate kernels of inputs with themselves. shape: (n,)
    """

    weights: Tensor
    slopes: Tensor
    norm: Tensor
    own: Tensor

    def __getitem__(self, part: slice) -> "Weights":
        return Weights(self.weights[:, part], self.slopes[:, part], self.norm[part], self.own[part])


def own_lines(plan: Plan, names: tuple[str, ...], norm: Tensor) -> Tensor:
    """:func:`own_slopes`, at one norm where there is but one."""
    one = plan.surface is not None and plan.surface.norms is None
    if one and not plan.function.architecture.positively_homogeneous:
        common = norm.new_full((1,), _common_norm(plan))
        norm = torch.where(norm > common / 2, common, norm)  # the others stand for zero
    return own_slopes(plan.function, names, norm)


def _common_norm(plan: Plan) -> float:
    """That of all inputs but zero."""
    norms = torch.cat([plan.left.norm, plan.right.norm])
    return shared_norm(norms[norms > 0], plan.left.points.dtype)


def _slopes(plan: Plan, angles: Span) -> Slopes | None:
    """The derivatives that suit a plan."""
    function, left, right = plan.function, plan.left, plan.right
    homogeneous = function.architecture.positively_homogeneous
    pairs = len(left) * (len(left) + 1) // 2 if plan.symmetric else len(left) * len(right)
    if plan.surface is None or (pairs < FEW_PAIRS and not homogeneous):
        return None
    norms, dtype = torch.cat([left.norm, right.norm]), left.points.dtype
    if plan.surface.norms is None:
        square = 1.0 if homogeneous else _common_norm(plan) ** 2
        return angular_slopes(function, square, angles, ANGULAR_TOLERANCE[dtype])
    chosen, (low, high) = plan.surface, plan.surface.angles
    if angles[0] < low or angles[1] > high:
        try:
            chosen = surface(function, norm_span(norms[norms > 0]), angles, TOLERANCE[dtype], pairs)
        except AccuracyError as error:
            _LOGGER.info("entries at rare angles are differentiated one by one: %s", error)
    return Slopes(chosen)
