"""A kernel matrix to first order: which surface tells derivatives of its entries, and which not."""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from shoal.core.exceptions import AccuracyError
from shoal.kernels.approximations.choice import ANGULAR_TOLERANCE, TOLERANCE
from shoal.kernels.approximations.surface import Span, Surface, norm_span, surface
from shoal.kernels.backends import (
    DifferentiableBlock,
    DifferentiableFactors,
    Entries,
    Factors,
    extremes,
)
from shoal.kernels.gradients.derivatives import (
    differentiable_angular_surface,
    own_derivatives,
    pair_derivatives,
)
from shoal.kernels.gradients.variance_changes import variances_from_inputs
from shoal.kernels.gradients.variance_slopes import slope_surface
from shoal.kernels.inputs import Inputs, pair_angles
from shoal.kernels.plan import (
    FEW_PAIRS,
    INSET,
    Plan,
)
from shoal.kernels.strips import Strip
from shoal.numerics import differentiate

_LOGGER = logging.getLogger(__name__)

_PAIRS = 1 << 14  # pairs that are differentiated together


@dataclass(frozen=True, eq=False)
class Derivatives:
    """A matrix to first order.

    Attributes:
        plan: How the matrix is computed.
        names: Of the variances in which it is differentiated.
        limit: Bytes that a strip of rows may take.
    """

    plan: Plan
    names: tuple[str, ...]
    limit: int | None

    def knows(self, strip: Strip, cosine: Tensor) -> bool:
        """Whether the surface knows all entries to first order."""
        if self.surface is None:
            return False
        norms = self.plan.left.norm[strip.rows], self.plan.right.norm[strip.columns]
        return self.surface.knows(extremes(cosine)) and all(bool(norm.all()) for norm in norms)

    def single(self, strip: Strip, cosine: Tensor) -> Tensor:
        """Which entries the surface does not know to first order."""
        if self.surface is None:
            return torch.ones_like(cosine, dtype=torch.bool)
        least, most = self.surface.cosines
        single = (cosine > most) | (cosine < least)
        single |= (self.plan.left.norm[strip.rows] == 0)[:, None]
        return single.logical_or_(self.plan.right.norm[strip.columns] == 0)

    def block(self, strip: Strip, cosine: Tensor) -> DifferentiableBlock:
        """A strip as entries of the surface."""
        assert self.surface is not None
        factors = self.factors[0][strip.rows], self.factors[1][strip.columns]
        return DifferentiableBlock(self.surface, *factors, cosine)

    def entries(
        self, strip: Strip, cosine: Tensor
    ) -> Iterator[tuple[slice, DifferentiableBlock, Entries]]:
        """Some rows of a strip at a time, by the surface."""
        if self.surface is None:
            return
        block = self.block(strip, cosine)
        for part, entries in self.plan.backend.derivatives(block):
            yield part, block._replace(rows=block.rows[part], cosine=cosine[part]), entries

    def pairs(self, i: Tensor, j: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor, Tensor]]:
        """Some pairs at a time: which, rows, columns, angles, :func:`pair_derivatives`."""
        left, right = self.plan.left, self.plan.right
        for start in range(0, len(i), _PAIRS):
            some = slice(start, start + _PAIRS)
            rows, columns = i[some], j[some]
            cosine = (left.unit[rows] * right.unit[columns]).sum(-1)
            angle = pair_angles(left, right, rows, columns, cosine)
            slopes = pair_derivatives(self.plan, self.names, rows, columns, angle)
            yield some, rows, columns, angle, slopes

    @cached_property
    def surface(self) -> Surface | None:
        """The surface and its derivative in a norm; ``None`` if pairs are taken one by one."""
        plan, architecture = self.plan, self.plan.function.architecture
        few = plan.pairs < FEW_PAIRS and not architecture.positively_homogeneous
        if plan.surface is None or few:
            return None
        try:
            found = self._surface(plan.surface, plan.angles(self.limit))
            self._slopes(found.angles)
        except AccuracyError as error:
            level = logging.WARNING if plan.pairs > _PAIRS else logging.INFO
            _LOGGER.log(level, "gradients are computed pair by pair, which is slow: %s", error)
            return None
        return found

    def _surface(self, chosen: Surface, angles: Span) -> Surface:
        """The one for these angles if there is one, or that of the values."""
        plan, dtype = self.plan, self.plan.left.points.dtype
        if plan.squared_norm is not None:
            tolerance = ANGULAR_TOLERANCE[dtype]
            return differentiable_angular_surface(
                plan.function, plan.squared_norm, angles, tolerance
            )
        if angles[0] >= chosen.angles[0] and angles[1] <= chosen.angles[1]:
            return chosen
        norms = torch.cat([plan.left.norm, plan.right.norm])
        span = norm_span(norms[norms > 0])
        try:
            return surface(plan.function, span, angles, TOLERANCE[dtype], plan.pairs)
        except AccuracyError as error:
            _LOGGER.info("entries at rare angles are differentiated one by one: %s", error)
            return chosen

    @cached_property
    def slopes(self) -> list[Surface]:
        """Surfaces of the derivatives in variances; none if those in the inputs tell them."""
        return [] if self.surface is None else self._slopes(self.surface.angles)

    def _slopes(self, angles: Span) -> list[Surface]:
        """Surfaces of the derivatives in variances at some angles."""
        if variances_from_inputs(self.plan.function, self.names):
            return []
        inside = max(angles[0], INSET), min(angles[1], math.pi - INSET)
        return [slope_surface(self.plan, name, inside) for name in self.names]

    @cached_property
    def own(self) -> Tensor:
        """Own kernels of the rows with derivatives, see :func:`own_derivatives`."""
        return own_derivatives(self.plan, self.names, self.plan.left.norm)

    @cached_property
    def factors(self) -> tuple[DifferentiableFactors, DifferentiableFactors]:
        """What rows and columns contribute."""
        left = self._factors_of(self.plan.left)
        return left, left if self.plan.symmetric else self._factors_of(self.plan.right)

    def _factors_of(self, inputs: Inputs) -> DifferentiableFactors:
        chosen, dtype = self.surface, inputs.points.dtype
        assert chosen is not None
        norm = torch.where(inputs.norm > 0, inputs.norm, inputs.norm.max().clamp(min=1e-100))
        known = inputs is self.plan.left and bool((norm == inputs.norm).all())
        own = self.own if known else own_derivatives(self.plan, (), norm)
        scale = own[0].sqrt()[:, :, None]
        values = scale * chosen.features(norm)
        slopes = values  # at inputs of one norm, the series itself is differentiated
        if chosen.radial is None:
            low, high = chosen.norms or (0.0, 1.0)
            basis = differentiate(chosen.basis) * (2 / (high - low) / math.log(2))
            features = replace(chosen, basis=basis).features(norm)
            slopes = scale * features + (own[1] / own[0] / 2)[:, :, None] * values
        plain = Factors(own[0].sqrt().to(dtype), chosen.features(norm).to(dtype))
        return DifferentiableFactors(values.to(dtype), slopes.to(dtype), norm, own[0, 0], plain)
