r"""Covariances of pixels: of each pixel of an image with each of another.

Weights of a convolution see patches. With $H_{pq}$ the inner product of the features at pixel $p$
of one image and $q$ of another, they see $\mathcal P(H)$, the sum over both pixels' patches (see
:mod:`shoal.kernels.pixel_pairs`), and so do tangents. Activations act on each pair of pixels alone.
So a covariance is a field over pairs of pixels, and all that is new is that map of fields.

For residual networks that is Du 2018, Theorem D.1; its equation 6 sums over all pairs of a
patch's pixels where both must have moved by the same step, and lets the skip carry sums over
patches instead of features.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.architectures import ImageArchitecture
from shoal.gaussian import dual, dual_derivative
from shoal.gaussian.domain import within_bound
from shoal.gaussian.moments import mean_square
from shoal.kernels.calculi.own import SMALLEST, Own, Variances
from shoal.kernels.calculi.pairs import Pair, PairCalculus
from shoal.kernels.fixed_points import all_turns, solve_field
from shoal.kernels.pixel_pairs import PixelPairs
from shoal.kernels.recursions import Loop, Pushed, Scalar

__all__ = ["Images", "Pixels"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Images:
    """The calculus of single images: of each pixel with itself. shapes: (n, *sides).

    Each step is taken once, however often it is asked for: all blocks of pairs share the images.

    Attributes:
        points: The images. shape: (n, channels, *sides)
        pairs: The pairs of pixels with themselves.
    """

    points: Tensor
    pairs: PixelPairs
    _steps: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, architecture: ImageArchitecture, points: Tensor) -> "Images":
        """Images, with the patches of an architecture."""
        nowhere = torch.zeros(1, dtype=torch.int64)
        return cls(points, PixelPairs.of(architecture, points, nowhere))

    @cached_property
    def _start(self) -> Variances:
        return Variances(self.pairs.products(self.points, self.points)[:, 0])

    @cached_property
    def _own(self) -> Own:
        return Own(self._start.values, differentiable=False)

    def start(self, *, gated: bool) -> tuple[Variances, float]:  # noqa: ARG002
        """The images."""
        return self._start, 1.0

    def covariance(self, state: Variances) -> Tensor:
        """The variances."""
        return state.values

    def patches(self, field: Any) -> Any:
        """Sums over patches."""
        if isinstance(field, Tensor):
            return self._summed(field)
        return self._once(("patches", id(field)), lambda: Variances(self._summed(field.values)))

    def _summed(self, values: Tensor) -> Tensor:
        return self.pairs.patch_sum(values[:, None])[:, 0]

    def combine(self, terms: list[tuple[Scalar, Variances]], constant: Scalar = 0.0) -> Variances:
        """The weighted sum."""
        key = ("combine", constant, *((factor, id(state)) for factor, state in terms))
        return self._once(key, lambda: self._own.combine(terms, constant))

    def residual(self, below: Variances, pushed: Variances, skip: float, gain: float) -> Variances:
        """The sum of features and of what a layer makes of them."""
        key = ("residual", id(below), id(pushed), skip, gain)
        return self._once(key, lambda: self._own.residual(below, pushed, skip, gain))

    def push(self, phi: Activation, state: Variances, *, mean: bool) -> Pushed[Variances]:  # noqa: ARG002
        """Mean squares of an activation and of its derivative, and means."""
        return self._once(("push", phi, id(state)), lambda: self._own.push(phi, state, mean=True))

    def fixed_point(self, loop: Loop, injected: Variances) -> Variances:
        """The variances at equilibrium; the loop has one cell."""
        (cell,) = loop.cells
        factor = cell.weights.variance * cell.gain**2

        def equation(guess: Tensor) -> tuple[Tensor, Tensor]:
            square, growth = mean_square(cell.activation, guess.clamp(min=SMALLEST))
            return self._summed(factor * square) + injected.values, factor * growth

        def solved() -> Variances:
            unique = loop.contracts
            return Variances(solve_field(equation, injected.values, self._summed, unique=unique))

        return self._once(("fixed point", loop, id(injected)), solved)

    def turns(self, first: Tensor, ratio: Tensor) -> Tensor:
        """The sum of all turns of a loop."""
        return all_turns(first, lambda field: ratio * self._summed(field))

    def extremes(self, state: Variances) -> Tensor:
        """The smallest and the largest variance, empty pixels aside. shape: (2,)."""

        def found() -> Tensor:
            values = state.values
            return torch.stack(torch.aminmax(torch.where(values > 0, values, 1.0)))

        return self._once(("extremes", id(state)), found)

    def _once(self, key: tuple[Any, ...], step: Callable[[], T]) -> T:
        """What a step makes; it is kept, so that its number stays its own."""
        if key not in self._steps:
            self._steps[key] = step()
        found: T = self._steps[key]
        return found


@dataclass(frozen=True, eq=False)
class Pixels(PairCalculus):
    """The calculus of pairs of pixels. shapes: (pairs of images, displacements, *sides).

    Attributes:
        own: The images of both sides.
        index: The numbers of the images of each pair. shapes: (pairs,)
        pairs: The pairs of pixels.
    """

    own: Images
    index: tuple[Tensor, Tensor]
    pairs: PixelPairs

    @cached_property
    def same(self) -> Tensor:
        """Which are a pixel and itself: rounding has lost the angle between equal patches."""
        first, second = (self.own.points[i] for i in self.index)
        same = (first == second).flatten(1).all(1)[:, None] & (self.pairs.displacements == 0)
        return same.view(*same.shape, *[1] * len(self.pairs.sides))

    def start(self, *, gated: bool) -> tuple[Pair, float]:
        """The images."""
        first, second = (self.own.points[i] for i in self.index)
        return Pair(self.own.start(gated=gated)[0], self.pairs.products(first, second)), 1.0

    def patches(self, field: Any) -> Any:
        """Sums over the patches of both pixels."""
        if isinstance(field, Pair):
            return Pair(self.own.patches(field.own), self.pairs.patch_sum(field.covariance))
        return self.pairs.patch_sum(field)

    def push(self, phi: Activation, state: Pair, *, mean: bool) -> Pushed[Pair]:
        """Duals of an activation and of its derivative at all pairs of pixels."""
        own = self.own.push(phi, state.own, mean=mean).state
        points = _Points.of(
            self._both(state.own.values), state.covariance, self.own.extremes(state.own)
        )
        elsewhere = None
        if points.where is not None:
            mine, theirs = self._both(own.means)
            elsewhere = mine * theirs
        values = points.spread(dual(phi, *points.triple), elsewhere)
        # zero where it only multiplies zeros
        nothing = None if elsewhere is None else torch.zeros_like(elsewhere)
        return Pushed(
            Pair(own, values),
            lambda: points.spread(dual_derivative(phi, *points.triple), nothing),
        )

    def fixed_point(self, loop: Loop, injected: Pair) -> Pair:
        """The covariances at equilibrium; the loop has one cell."""
        own = self.own.fixed_point(loop, injected.own)

        def equation(guess: Tensor) -> tuple[Tensor, Tensor]:
            value, slope = loop(self, self._bounded(Pair(own, guess)), injected)
            return value.covariance, slope

        start = self._bounded(Pair(own, injected.covariance)).covariance
        summed, unique = self.pairs.patch_sum, loop.contracts
        return Pair(own, solve_field(equation, start, summed, unique=unique))

    def turns(self, first: Tensor, ratio: Tensor) -> Tensor:
        """The sum of all turns of a loop."""
        return all_turns(first, lambda field: ratio * self.pairs.patch_sum(field))

    def _both(self, values: Tensor | float) -> tuple[Tensor, Tensor]:
        assert isinstance(values, Tensor)
        i, j = self.index
        return values[i, None], self.pairs.of_partner(values[j])


class _Points(NamedTuple):
    """Where duals are wanted: all pairs of pixels neither of which is empty.

    Attributes:
        triple: Variances, the partners' variances, and covariances. Those at the end stand for the
            extreme variances of all images: duals make tables for the range that they see, and all
            blocks shall share them.
        where: Which pairs of pixels they belong to; ``None`` for all.
        shape: That of all pairs of pixels.
    """

    triple: tuple[Tensor, ...]
    where: Tensor | None
    shape: torch.Size

    @classmethod
    def of(
        cls, variances: tuple[Tensor, Tensor], covariance: Tensor, extremes: Tensor
    ) -> "_Points":
        """Those of some pairs of pixels."""
        triple = torch.broadcast_tensors(*variances, within_bound(*variances, covariance))
        empty = any(bool((variance == 0).any()) for variance in variances)
        where = (triple[0] > 0) & (triple[1] > 0) if empty else None
        chosen = (t.reshape(-1) if where is None else t[where] for t in triple)
        ends = (extremes, extremes, torch.zeros_like(extremes))
        joined = tuple(torch.cat(both) for both in zip(chosen, ends, strict=True))
        return cls(joined, where, covariance.shape)

    def spread(self, found: Tensor, elsewhere: Tensor | None) -> Tensor:
        """What was found at the points, and what is elsewhere."""
        found = found[:-2]
        if self.where is None:
            return found.view(self.shape)
        assert elsewhere is not None
        return elsewhere.masked_scatter(self.where, found)
