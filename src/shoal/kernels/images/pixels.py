r"""Covariances of pixels: of each pixel of an image with each of another.

Weights of a convolution see patches. With $H_{pq}$ the inner product of the features at pixel $p$
of one image and $q$ of another, they see $\mathcal P(H)$, the sum over both pixels' patches, and
so do tangents. Activations act on each pair of pixels alone. So a covariance is a field over pairs
of pixels, and all that is new is that map of fields. The patches at $p$ and $q$ have the inner
product $\sum_k \langle x_{p+k}, x'_{q+k} \rangle$: both move together, and $d = q - p$ stays. So
pairs of different displacements never meet, and any set of displacements can be computed without
the others. Taken modulo the sides of the image, there are as many displacements as pixels, each
with one pair per pixel.

For residual networks that is Du 2018, Theorem D.1; its equation 6 sums over all pairs of a
patch's pixels where both must have moved by the same step, and lets the skip carry sums over
patches instead of features.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from shoal.activations import Activation, Identity
from shoal.architectures import ImageArchitecture
from shoal.architectures.images import patch_gain
from shoal.architectures.layers import squared_gain
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.gaussian import dual, dual_derivative
from shoal.gaussian.domain import within_bound
from shoal.gaussian.moments import slope_square
from shoal.kernels.fixed_points import Equation, solve_field, solve_linear_field
from shoal.kernels.pairs import (
    SMALLEST,
    PairCalculus,
    PairState,
    SingleInputs,
    Variances,
    mean_squares,
)
from shoal.kernels.recursions import ActivationOutput, CellLoop, Scalar

T = TypeVar("T")

_ROUNDING = 1e-15  # of covariances, before iterations of the loop add up
_LOST = 1e-2  # the share of the NTK of nearly parallel images that rounding may decide


@dataclass(frozen=True, eq=False)
class PixelPairs:
    """The pairs $(p, p + d)$ for some displacements $d$, modulo the sides.

    Attributes:
        sides: The pixels along each axis of the images.
        patch_size: The odd side of a patch.
        padding: The values beyond the border.
        displacements: The numbers of the pixels that the first one is displaced to.
        share: The weight of a pair of pixels in the sum over a patch.
    """

    sides: tuple[int, ...]
    patch_size: int
    padding: Literal["zeros", "circular"]
    displacements: Tensor
    share: float = 1.0

    @classmethod
    def for_displacements(
        cls, architecture: ImageArchitecture, points: Tensor, displacements: Tensor
    ) -> "PixelPairs":
        """The pairs of some displacements in images, with the patches of an architecture."""
        sides, size = tuple(points.shape[2:]), architecture.patch_size
        share = size ** -len(sides) if architecture.averaged else 1.0
        return cls(sides, size, architecture.padding, displacements.to(points.device), share)

    @cached_property
    def partner(self) -> Tensor:
        """The number of each pixel's partner. shape: (displacements, *sides)."""
        number = torch.zeros((), dtype=torch.int64, device=self.displacements.device)
        for axis, side in enumerate(self.sides):
            number = number * side + self._along(axis, self._places(axis)[1])
        return number

    def at_partners(self, images: Tensor) -> Tensor:
        """The values of images at the partners.

        Args:
            images: One value per pixel. shape: (pairs, *sides)

        Returns:
            Shape: (pairs, displacements, *sides).
        """
        return images.flatten(1)[:, self.partner]

    def products(self, first: Tensor, second: Tensor) -> Tensor:
        """Inner products of pixels over channels, in float64.

        Args:
            first: Images. shape: (pairs, channels, *sides)
            second: Their partners.

        Returns:
            Shape: (pairs, displacements, *sides).
        """
        products = torch.zeros((), dtype=torch.float64, device=first.device)
        for mine, theirs in zip(first.unbind(1), second.unbind(1), strict=True):
            products = products + mine.double()[:, None] * self.at_partners(theirs.double())
        return products

    def patch_sum(self, values: Tensor) -> Tensor:
        """Sums over the patches of both pixels, axis by axis; beyond the border there is nothing.

        Args:
            values: Values of the pairs. shape: (pairs, displacements, *sides)
        """
        for axis, inside in enumerate(self._pairs_inside):
            # in one order for all displacements: equal values stay equal to the last bit
            shifted = self._shifted(values, axis, inside)
            total = next(shifted).clone()
            for neighbors in shifted:
                total += neighbors
            values = total
        return values if self.share == 1 else self.share * values

    def _shifted(self, values: Tensor, axis: int, inside: dict[int, Tensor]) -> Iterator[Tensor]:
        """The values at the neighbors along an axis, one after the other."""
        reach, side = self.patch_size // 2, self.sides[axis]
        if self.padding == "circular":
            yield from (torch.roll(values, -k, 2 + axis) for k in inside)
        elif self._any_displaced:
            yield from (torch.roll(values, -k, 2 + axis) * within for k, within in inside.items())
        else:  # pixels and themselves leave the images together
            around = [0, 0] * len(self.sides)
            around[-2 * axis - 2 : (-2 * axis) or None] = [reach, reach]
            padded = torch.nn.functional.pad(values, around)
            yield from (padded.narrow(2 + axis, k + reach, side) for k in inside)

    @cached_property
    def _any_displaced(self) -> bool:
        """Whether some pixels are not their own partners."""
        return bool(self.displacements.any())

    @property
    def gain(self) -> float:
        """The norm of a sum over patches; see ``patch_gain``."""
        return patch_gain(self.sides, self.patch_size, self.padding, self.share)

    @cached_property
    def _pairs_inside(self) -> list[dict[int, Tensor]]:
        """For each axis and step within a patch, the pairs whose pixels both stay inside."""
        reach, inside = self.patch_size // 2, []
        for axis, side in enumerate(self.sides):
            places, steps = self._places(axis), {}
            for k in range(-reach, reach + 1):
                if self.padding == "circular":
                    within = torch.ones_like(places[1], dtype=torch.bool)
                else:
                    within = ((places + k >= 0) & (places + k < side)).all(0)
                steps[k] = self._along(axis, within)
            inside.append(steps)
        return inside

    def _places(self, axis: int) -> Tensor:
        """Places of pixels and partners along an axis. shape: (2, displacements, side)."""
        side, below = self.sides[axis], math.prod(self.sides[axis + 1 :])
        step = self.displacements[:, None] // below % side
        place = torch.arange(side, device=step.device)
        return torch.stack(torch.broadcast_tensors(place, (place + step) % side))

    def _along(self, axis: int, values: Tensor) -> Tensor:
        """Values of the pixels of one axis, to be broadcast along the others."""
        shape = [1] * len(self.sides)
        shape[axis] = self.sides[axis]
        return values.view(len(self.displacements), *shape)


@dataclass(frozen=True, eq=False)
class Images:
    """The calculus of single images: of each pixel with itself. shapes: (n, *sides).

    Each step is computed once and cached: all blocks of pairs share the images.

    Attributes:
        points: The images. shape: (n, channels, *sides)
        pairs: The pairs of pixels with themselves.
        differentiable: Whether autograd may ask for derivatives, of the first order.
    """

    points: Tensor
    pairs: PixelPairs
    differentiable: bool = False
    _steps: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)

    @classmethod
    def for_architecture(
        cls, architecture: ImageArchitecture, points: Tensor, *, differentiable: bool = False
    ) -> "Images":
        """Images, with the patches of an architecture."""
        nowhere = torch.zeros(1, dtype=torch.int64)
        return cls(
            points, PixelPairs.for_displacements(architecture, points, nowhere), differentiable
        )

    @cached_property
    def _start(self) -> Variances:
        return Variances(self.pairs.products(self.points, self.points)[:, 0])

    @cached_property
    def _calculus(self) -> SingleInputs:
        return SingleInputs(self._start.values, differentiable=self.differentiable)

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
        return self._once(key, lambda: self._calculus.combine(terms, constant))

    def residual(self, below: Variances, pushed: Variances, skip: float, gain: float) -> Variances:
        """The sum of features and of a layer's output."""
        key = ("residual", id(below), id(pushed), skip, gain)
        return self._once(key, lambda: self._calculus.residual(below, pushed, skip, gain))

    def apply_activation(
        self,
        phi: Activation,
        state: Variances,
        *,
        mean: bool,  # noqa: ARG002
    ) -> ActivationOutput[Variances]:
        """Mean squares of an activation and of its derivative, and means."""
        return self._once(
            ("push", phi, id(state)), lambda: self._calculus.apply_activation(phi, state, mean=True)
        )

    def fixed_point(self, loop: CellLoop, injected: Variances) -> Variances:
        """The variances at equilibrium; the loop has one cell."""
        (cell,) = loop.cells
        factor = cell.weights.variance * cell.gain**2

        def equation(guess: Tensor) -> tuple[Tensor, Tensor]:
            square, growth = mean_squares(cell.activation, guess)
            return self._summed(factor * square) + injected.values, factor * growth

        def solved() -> Variances:
            unique = self._is_unique(loop, equation)
            if not unique and cell.activation.positively_homogeneous:
                _check_empty(injected.values)
            solution = solve_field(
                equation,
                injected.values,
                self.largest(injected),
                self._summed,
                unique=unique,
                differentiable=self.differentiable,
            )
            return Variances(solution)

        return self._once(("fixed point", loop, id(injected)), solved)

    def _is_unique(self, loop: CellLoop, equation: Equation) -> bool:
        """Whether the equation certainly has one solution; the slope decides for a linear one."""
        gain = squared_gain(loop.cells)
        if loop.cells[0].activation.positively_homogeneous:
            gain = float(equation(torch.ones_like(self._start.values[:1]))[1].detach().max())
        return gain * self.pairs.gain < 1

    def sum_iterations(self, first: Tensor, ratio: Tensor) -> Tensor:
        """The sum of the contributions of all iterations of a loop."""
        return solve_linear_field(first, ratio, self._summed, differentiable=self.differentiable)

    def largest_slope(self, phi: Activation) -> float:
        """The largest mean square of an activation's derivative at all pixels."""
        if phi.positively_homogeneous:  # the same at all variances
            return float(slope_square(phi, torch.ones((), dtype=torch.float64)))
        return float(phi.lipschitz**2)

    def largest(self, state: Variances) -> Tensor:
        """The largest variance of each image. shape: (n,)."""
        values = state.values.detach()
        return self._once(("largest", id(state)), lambda: values.flatten(1).amax(1))

    def extremes(self, state: Variances) -> Tensor:
        """The smallest and the largest variance, empty pixels aside. shape: (2,)."""

        def aminmax() -> Tensor:
            values = state.values.detach()
            return torch.stack(torch.aminmax(torch.where(values > 0, values, 1.0)))

        return self._once(("extremes", id(state)), aminmax)

    def _once(self, key: tuple[Any, ...], step: Callable[[], T]) -> T:
        """The result of a step, cached, so that its ``id`` stays unique."""
        key = (torch.is_grad_enabled(), *key)
        if key not in self._steps:
            self._steps[key] = step()
        result: T = self._steps[key]
        return result


@dataclass(frozen=True, eq=False)
class Pixels(PairCalculus):
    """The calculus of pairs of pixels. shapes: (pairs of images, displacements, *sides).

    Attributes:
        singles: The calculus of the images of both sides.
        index: The numbers of the images of each pair. shapes: (pairs,)
        pairs: The pairs of pixels.
    """

    singles: Images
    index: tuple[Tensor, Tensor]
    pairs: PixelPairs

    @cached_property
    def same(self) -> Tensor:
        """Which pairs are a pixel and itself, whose angle rounding would lose."""
        first, second = (self.singles.points[i] for i in self.index)
        same = (first == second).flatten(1).all(1)[:, None] & (self.pairs.displacements == 0)
        return same.view(*same.shape, *[1] * len(self.pairs.sides))

    def start(self, *, gated: bool) -> tuple[PairState, float]:
        """The images."""
        first, second = (self.singles.points[i] for i in self.index)
        return PairState(
            self.singles.start(gated=gated)[0], self.pairs.products(first, second)
        ), 1.0

    def patches(self, field: Any) -> Any:
        """Sums over the patches of both pixels."""
        if isinstance(field, PairState):
            return PairState(
                self.singles.patches(field.variances), self.pairs.patch_sum(field.covariance)
            )
        return self.pairs.patch_sum(field)

    def apply_activation(
        self, phi: Activation, state: PairState, *, mean: bool
    ) -> ActivationOutput[PairState]:
        """Duals of an activation and of its derivative at all pairs of pixels."""
        pushed = self.singles.apply_activation(phi, state.variances, mean=mean)
        variances, extremes = (
            self.side_values(state.variances.values),
            self.singles.extremes(state.variances),
        )
        if self.singles.differentiable:  # with derivatives at empty pixels, too
            least = 1e-24 * extremes[1]
            variances = variances[0].clamp(min=least), variances[1].clamp(min=least)
        arguments = _DualArguments.for_pairs(variances, state.covariance, extremes)
        elsewhere = None
        if arguments.where is not None:
            mine, theirs = self.side_values(pushed.state.means)
            elsewhere = mine * theirs
        values = arguments.spread(dual(phi, *arguments.triple), elsewhere)

        def slope() -> Tensor:
            # zero where it only multiplies zeros
            zeros = None if elsewhere is None else torch.zeros_like(elsewhere)
            slopes = arguments.spread(_slopes(phi, arguments.triple), zeros)
            if not self.singles.differentiable:
                return slopes
            return torch.where(self.same, self.side_values(pushed.slope())[0], slopes)

        pair = PairState(pushed.state, values)
        return ActivationOutput(self._bounded(pair) if self.singles.differentiable else pair, slope)

    def fixed_point(self, loop: CellLoop, injected: PairState) -> PairState:
        """The covariances at equilibrium; the loop has one cell."""
        variances = self.singles.fixed_point(loop, injected.variances)

        def equation(guess: Tensor) -> tuple[Tensor, Tensor]:
            value, slope = loop(self, self._bounded(PairState(variances, guess)), injected)
            if self._any_same:  # known covariances do not change with the guess
                slope = torch.where(self.same, 0.0, slope)
            return value.covariance, slope

        size = self.singles.largest(variances).sqrt()
        solution = solve_field(
            equation,
            self._bounded(PairState(variances, injected.covariance)).covariance,
            size[self.index[0]] * size[self.index[1]],
            self.pairs.patch_sum,
            unique=self._is_unique(loop),
            differentiable=self.singles.differentiable,
        )
        self._check_angles(loop, variances, solution.detach())
        return self._bounded(PairState(variances, solution))

    def _check_angles(self, loop: CellLoop, variances: Variances, covariance: Tensor) -> None:
        r"""Refuse covariances that do not resolve the angles that the NTK depends on.

        With a gain $g$, rounding moves $1 - \cos\theta \approx \theta^2/2$ by $\epsilon/(1 - g)$,
        and all iterations add up to $1/(1 - g + \theta/\pi)$ for the ReLU.
        """
        (cell,) = loop.cells
        margin = 1 - self._gain(loop)
        bent = cell.activation.positively_homogeneous and cell.activation.kinks
        if not bent or margin <= 0 or 2 * _ROUNDING / margin <= (math.pi * margin * _LOST) ** 2:
            return
        a, b = (
            values.detach().clamp(min=SMALLEST).sqrt()
            for values in self.side_values(variances.values)
        )
        angle = (2 * (1 - covariance / (a * b)).clamp(min=0.0)).sqrt()
        moved = (angle.square() + 2 * _ROUNDING / margin).sqrt() - angle
        lost = moved / (math.pi * margin + angle)
        largest = float(torch.where(self.same | (covariance == 0), 0.0, lost).max())
        if largest > _LOST:
            raise AccuracyError(
                "the NTK of nearly parallel images is lost in rounding: recurrent_variance is at "
                f"{1 - margin:.8g} of the edge of existence, where it is known up to a share of "
                f"{largest:.1g} only; lower recurrent_variance"
            )

    def _is_unique(self, loop: CellLoop) -> bool:
        r"""Whether the equation certainly has one solution at given variances.

        $|\mathbb E[\varphi'(u)\varphi'(v)]|$ is at most the larger mean square of $\varphi'$.
        """
        return self._gain(loop) < 1

    def _gain(self, loop: CellLoop) -> float:
        """A bound of the factor by which an iteration multiplies changes."""
        (cell,) = loop.cells
        slope = self.singles.largest_slope(cell.activation)
        gain = squared_gain((replace(cell, activation=Identity()),)) * slope
        return min(gain, squared_gain(loop.cells)) * self.pairs.gain

    def sum_iterations(self, first: Tensor, ratio: Tensor) -> Tensor:
        """The sum of the contributions of all iterations of a loop."""
        differentiable = self.singles.differentiable
        return solve_linear_field(first, ratio, self.pairs.patch_sum, differentiable=differentiable)

    def side_values(self, values: Tensor | float) -> tuple[Tensor, Tensor]:
        """The values at the pixels, and at their partners."""
        assert isinstance(values, Tensor)
        i, j = self.index
        return values[i, None], self.pairs.at_partners(values[j])


def _check_empty(injected: Tensor) -> None:
    r"""Refuse inputs of a loop with linear variances and a gain of one or more.

    $\Lambda = g P \Lambda + \beta$ has no solution $\Lambda \ge 0$ otherwise: with Perron's vector
    $v$ of $P$, $(1 - g \rho) \langle v, \Lambda \rangle = \langle v, \beta \rangle > 0$.
    """
    if bool(injected.detach().any()):
        raise ConvergenceError(
            "the fixed point of the covariance of pixels does not exist: recurrent_variance times "
            "the mean square of the activation at unit variance, times the gain of the patches "
            "(patch_gain of the architecture), must be below 1"
        )


def _slopes(phi: Activation, triple: tuple[Tensor, ...]) -> Tensor:
    r"""$\mathbb{E}[\varphi'(u)\varphi'(v)]$, with derivatives.

    With kinks these are infinite where $u = \pm v$, with a change of sign: the mean is taken.
    """
    a, b, c = triple
    if not phi.kinks or not any(t.requires_grad for t in triple):
        return dual_derivative(phi, a, b, c)
    with torch.no_grad():
        values, near = dual_derivative(phi, a, b, c), c.square() > (1 - 1e-12) * a * b
        same = near & (c > 0)
    separate = dual_derivative(
        phi, *(torch.where(near, v, t) for t, v in ((a, 1.0), (b, 1.0), (c, 0.0)))
    )
    diagonal = slope_square(phi, torch.where(same, (a + b) / 2, 1.0))
    parallel = values + diagonal - diagonal.detach()
    return torch.where(near, torch.where(same, parallel, values), separate)


class _DualArguments(NamedTuple):
    """The arguments of duals: all pairs of pixels that are not empty.

    Attributes:
        triple: Variances, the partners' variances, and covariances. The last two are at the
            extreme variances of all images: duals make tables for the range of their arguments,
            and all blocks share them.
        where: A mask of the pairs of pixels; ``None`` for all.
        shape: The shape of all pairs of pixels.
    """

    triple: tuple[Tensor, ...]
    where: Tensor | None
    shape: torch.Size

    @classmethod
    def for_pairs(
        cls, variances: tuple[Tensor, Tensor], covariance: Tensor, extremes: Tensor
    ) -> "_DualArguments":
        """The arguments at some pairs of pixels."""
        triple = torch.broadcast_tensors(*variances, within_bound(*variances, covariance))
        empty = any(bool((variance == 0).any()) for variance in variances)
        where = (triple[0] > 0) & (triple[1] > 0) if empty else None
        chosen = (t.reshape(-1) if where is None else t[where] for t in triple)
        ends = (extremes, extremes, torch.zeros_like(extremes))
        joined = tuple(torch.cat(both) for both in zip(chosen, ends, strict=True))
        return cls(joined, where, covariance.shape)

    def spread(self, values: Tensor, elsewhere: Tensor | None) -> Tensor:
        """The values at the points, and other values elsewhere."""
        values = values[:-2]
        if self.where is None:
            return values.view(self.shape)
        assert elsewhere is not None
        return elsewhere.masked_scatter(self.where, values)
