"""Covariances of single inputs, by integrals of one variable, and of single pairs of inputs."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.closed_forms import correlation
from shoal.gaussian import dual, dual_derivative
from shoal.gaussian.domain import within_bound
from shoal.gaussian.dual import Duals
from shoal.gaussian.moments import mean as activation_mean
from shoal.gaussian.moments import mean_square, slope_square
from shoal.kernels.fixed_points import solve
from shoal.kernels.recursions import ActivationOutput, CellLoop, Scalar, VectorCalculus

SMALLEST = 1e-300  # a variance of zero
_ROUNDING = 1e-14  # of sums of series, relative to their bound


@dataclass(frozen=True, eq=False)
class Variances:
    """Variances of features.

    Attributes:
        values: The variances. shape: (n,)
        means: Means of the features, times the root of the width.
    """

    values: Tensor
    means: Tensor | float = 0.0


@dataclass(frozen=True, eq=False)
class SingleInputs(VectorCalculus):
    """The calculus of single inputs.

    Attributes:
        squared_norms: Squared norms of the inputs, in float64. shape: (n,)
        differentiable: Whether autograd may ask for derivatives.
    """

    squared_norms: Tensor
    differentiable: bool

    def start(self, *, gated: bool) -> tuple[Variances, Tensor | float]:
        """The squared norms, or ones."""
        if gated:
            return Variances(torch.ones_like(self.squared_norms)), self.squared_norms
        return Variances(self.squared_norms), 1.0

    def covariance(self, state: Variances) -> Tensor:
        """The variances."""
        return state.values

    def combine(self, terms: list[tuple[Scalar, Variances]], constant: Scalar = 0.0) -> Variances:
        """The weighted sum."""
        total = weighted([(factor, s.values) for factor, s in terms], constant)
        return Variances(total)

    def residual(self, below: Variances, pushed: Variances, skip: float, gain: float) -> Variances:
        """The sum of features and of a layer's output."""
        cross = 2 * skip * gain * below.means * pushed.means
        values = skip**2 * below.values + cross + gain**2 * pushed.values
        return Variances(values, skip * below.means + gain * pushed.means)

    def apply_activation(
        self, phi: Activation, state: Variances, *, mean: bool
    ) -> ActivationOutput[Variances]:
        """Mean squares of an activation and of its derivative."""
        variance = state.values

        def slope() -> Tensor:
            if self.differentiable:
                return slope_square(phi, variance.clamp(min=SMALLEST))
            return dual_derivative(phi, variance, variance, variance)

        return ActivationOutput(self.squares(phi, variance, mean=mean), slope)

    def squares(self, phi: Activation, variance: Tensor, *, mean: bool) -> Variances:
        """Mean squares, and means, of an activation alone."""
        positive = variance.clamp(min=SMALLEST)
        means = (
            torch.where(variance > 0, activation_mean(phi, positive), phi(0 * positive))
            if mean
            else 0.0
        )
        if self.differentiable:  # duals of kinks have no second derivatives where u = v
            return Variances(mean_squares(phi, variance)[0], means)
        # by the formula of pairs, so that cosines of ±1 stay so to the last bit
        return Variances(dual(phi, variance, variance, variance), means)

    def fixed_point(self, loop: CellLoop, injected: Variances) -> Variances:
        """The variances at equilibrium."""
        values = fixed_variance(loop, injected.values, differentiable=self.differentiable)
        return Variances(values)

    def angle(self, state: Variances) -> tuple[Tensor, Tensor]:
        """An angle of zero for all, and the variances."""
        return state.values.new_zeros(()), state.values


def mean_squares(phi: Activation, variance: Tensor) -> tuple[Tensor, Tensor]:
    """The mean square of an activation and its derivative in the variance, which may be zero."""
    linear = phi.positively_homogeneous
    return mean_square(phi, variance if linear else variance.clamp(min=SMALLEST))


def weighted(terms: list[tuple[Scalar, Tensor]], constant: Scalar) -> Tensor:
    """A sum of tensors with factors, and a constant."""
    (factor, value), *further_terms = terms
    total = factor * value + constant
    for factor, value in further_terms:
        total = total + factor * value
    return total


def fixed_variance(loop: CellLoop, injected: Tensor, *, differentiable: bool) -> Tensor:
    r"""Solve $\Lambda = \sigma_a^2\,\mathbb{E}[\varphi(\sqrt{\Lambda}\xi)^2] + \beta$ elementwise.

    Args:
        loop: The cells; several of them are passed in turn.
        injected: $\beta$, float64.
        differentiable: Whether autograd may ask for derivatives of the solution.

    Returns:
        The fixed point that the iteration from $\beta$ reaches; the only one if the squared gain of
        the loop is below one.

    Raises:
        ConvergenceError: If the iteration does not converge: the kernel may not exist.
    """
    if differentiable:
        return _solved(loop, injected, differentiable=True)
    distinct, inverse = injected.unique(return_inverse=True)
    return _solved(loop, distinct, differentiable=False)[inverse]


def loop_variance(loop: CellLoop, injected: float) -> float:
    """The variance around a loop, for one injected number."""
    value = torch.tensor(injected, dtype=torch.float64)
    return float(fixed_variance(loop, value, differentiable=False))


def _solved(loop: CellLoop, injected: Tensor, *, differentiable: bool) -> Tensor:
    """The variances around a loop, by one equation per element."""
    recurrent = loop.cells[0].weights.variance

    def equation(guess: Tensor) -> tuple[Tensor, Tensor]:
        value, rate = _iterate(loop, guess)
        return recurrent * value + injected, recurrent * rate

    return solve(
        equation,
        injected,
        injected,
        "variance",
        differentiable=differentiable,
        unique=loop.contracts,
    )


def _iterate(loop: CellLoop, variance: Tensor) -> tuple[Tensor, Tensor]:
    """The variance of features once around the loop, and its derivative."""
    rate = torch.ones_like(variance)
    for place, cell in enumerate(loop.cells):
        if place:
            variance = cell.weights.variance * variance + cell.bias_variance
            rate = cell.weights.variance * rate
        value, growth = mean_squares(cell.activation, variance)
        variance, rate = cell.gain**2 * value, cell.gain**2 * growth * rate
    return variance, rate


@dataclass(frozen=True, eq=False)
class PairState:
    """Variances at all different norms, and covariances of the pairs."""

    variances: Variances
    covariance: Tensor


class PairCalculus(ABC):
    """Base class of the calculi of pairs."""

    singles: Any
    same: Any

    @abstractmethod
    def side_values(self, values: Tensor | float) -> tuple[Tensor, Tensor]:
        """The values of the first and of the second of each pair."""

    def covariance(self, state: PairState) -> Tensor:
        """The covariances."""
        return state.covariance

    def combine(self, terms: list[tuple[Scalar, PairState]], constant: Scalar = 0.0) -> PairState:
        """The weighted sum."""
        variances = self.singles.combine([(factor, s.variances) for factor, s in terms], constant)
        total = weighted([(factor, s.covariance) for factor, s in terms], constant)
        return self._bounded(PairState(variances, total))

    def residual(self, below: PairState, pushed: PairState, skip: float, gain: float) -> PairState:
        """The sum of features and of a layer's output."""
        variances = self.singles.residual(below.variances, pushed.variances, skip, gain)
        total = skip**2 * below.covariance + gain**2 * pushed.covariance
        if skip:
            (m, n), (p, q) = (self.side_values(s.variances.means) for s in (below, pushed))
            total = total + skip * gain * (m * q + n * p)
        return self._bounded(PairState(variances, total))

    def _bounded(self, pair: PairState) -> PairState:
        """Covariances of inputs with themselves are their variances."""
        if self.same is None or not self._any_same:
            return pair
        variances = self.side_values(pair.variances.values)[0]
        return PairState(pair.variances, torch.where(self.same, variances, pair.covariance))

    @cached_property
    def _any_same(self) -> bool:
        return self.same is not None and bool(self.same.any())


@dataclass(frozen=True, eq=False)
class Pairs(PairCalculus, VectorCalculus):
    r"""The calculus of pairs with $a = \|x\|^2$, $b = \|x'\|^2$, $c = \langle x, x' \rangle$.

    Equal norms have one variance, to the last bit, and an input and itself have it as their
    covariance. (Where derivatives are wanted, $a$, $b$ and $c$ are apart.)

    Attributes:
        singles: The calculus of the distinct norms; of $a$ and $b$ where derivatives are wanted.
        products: $c$.
        places: Numbers of the norms of both inputs. shape: (2, ...), broadcastable to the pairs
        same: Which pairs are an input and itself. Both are ``None`` where derivatives are wanted.
    """

    singles: SingleInputs
    products: Tensor
    places: Tensor | None = None
    same: Tensor | None = None
    _variance_cache: dict[tuple[Activation, int, bool], tuple[Tensor, Variances]] = field(
        default_factory=dict, repr=False
    )
    _duals_cache: dict[tuple[Activation, int], Duals] = field(default_factory=dict, repr=False)

    @classmethod
    def from_products(cls, a: Tensor, b: Tensor, c: Tensor, *, differentiable: bool) -> "Pairs":
        """The pairs of some norms and products, in float64."""
        a, b, c = torch.broadcast_tensors(a, b, c)
        norms = torch.stack([a, b])
        if differentiable:
            return cls(SingleInputs(norms, differentiable=True), c)
        for dim in range(1, norms.ndim):
            if a.stride(dim - 1) == b.stride(dim - 1) == 0:  # all covariances of a pair of norms
                norms = norms.narrow(dim, 0, 1)
        distinct, places = norms.unique(return_inverse=True)
        return cls(SingleInputs(distinct, differentiable=False), c, places, (a == b) & (c == a))

    @property
    def differentiable(self) -> bool:
        """Whether autograd may ask for derivatives."""
        return self.singles.differentiable

    def start(self, *, gated: bool) -> tuple[PairState, Tensor | float]:
        """The inputs, or their directions."""
        variances, scale = self.singles.start(gated=gated)
        if not isinstance(scale, Tensor):
            return PairState(variances, self.products), 1.0
        first, second = self.side_values(scale.clamp(min=SMALLEST).sqrt())
        cosine = self.products / (first * second)
        one = torch.ones_like(cosine)
        pair = self._bounded(PairState(variances, within_bound(one, one, cosine)))
        first, second = self.side_values(scale)
        return pair, first.sqrt() * second.sqrt()

    def apply_activation(
        self, phi: Activation, state: PairState, *, mean: bool
    ) -> ActivationOutput[PairState]:
        """Duals of an activation and of its derivative."""
        variances = self._propagate_variances(phi, state.variances, mean=mean)
        if self.places is None:
            triple = *self.side_values(state.variances.values), state.covariance
            return ActivationOutput(
                PairState(variances, dual(phi, *triple)), lambda: dual_derivative(phi, *triple)
            )
        value, slope = self._duals(phi, state.variances.values)(state.covariance)
        value = _parallel(value, *self.side_values(variances.values))
        return ActivationOutput(self._bounded(PairState(variances, value)), slope)

    def fixed_point(self, loop: CellLoop, injected: PairState) -> PairState:
        """The covariances at equilibrium, one equation per pair."""
        variances = self.singles.fixed_point(loop, injected.variances)
        if self.same is None or not self._any_same:
            return PairState(variances, self._solve_covariances(loop, variances, injected))
        variance = self.side_values(variances.values)[0].expand_as(self.same)
        if bool(self.same.all()):
            return PairState(variances, variance)
        different = PairState(injected.variances, torch.where(self.same, 0.0, injected.covariance))
        solved = replace(self, same=None)._solve_covariances(loop, variances, different)
        return PairState(variances, torch.where(self.same, variance, solved))

    def _solve_covariances(
        self, loop: CellLoop, variances: Variances, injected: PairState
    ) -> Tensor:
        a, b = self.side_values(variances.values)

        def equation(guess: Tensor) -> tuple[Tensor, Tensor]:
            inner = PairState(variances, within_bound(a, b, guess))
            value, slope = loop(self, inner, injected)
            return value.covariance, slope

        start, size = injected.covariance, a.sqrt() * b.sqrt()
        if loop.contracts:  # wherever it starts: the correlation that is injected
            roots = [t.sqrt() for t in self.side_values(injected.variances.values)]
            start = start.detach() * torch.nan_to_num(size / (roots[0] * roots[1])).detach()
        solution = solve(
            equation,
            start,
            size,
            "covariance",
            differentiable=self.differentiable,
            unique=loop.contracts,
        )
        return within_bound(a, b, solution)

    def angle(self, state: PairState) -> tuple[Tensor, Tensor]:
        """The angles of features, and the products of their norms."""
        a, b = self.side_values(state.variances.values)
        cosine, sine = correlation(a.clamp(min=SMALLEST), b.clamp(min=SMALLEST), state.covariance)
        return torch.atan2(sine, cosine), a.sqrt() * b.sqrt()

    def side_values(self, values: Tensor | float) -> tuple[Tensor, Tensor]:
        """The values of the first and of the second inputs."""
        if not isinstance(values, Tensor):
            values = torch.full_like(self.singles.squared_norms, values)
        both = values if self.places is None else values[self.places]
        return both[0], both[1]

    def _propagate_variances(
        self, phi: Activation, variances: Variances, *, mean: bool
    ) -> Variances:
        """Variances after an activation, cached: solving for covariances does not change them."""
        # the tensor is kept too, so that its id stays unique; with autograd there is another entry
        key = (phi, id(variances.values), torch.is_grad_enabled())
        if key not in self._variance_cache:
            self._variance_cache[key] = (
                variances.values,
                self.singles.squares(phi, variances.values, mean=mean),
            )
        return self._variance_cache[key][1]

    def _duals(self, phi: Activation, variances: Tensor) -> Duals:
        """The duals at these variances, cached like them."""
        assert self.places is not None
        key = (phi, id(variances))
        if key not in self._duals_cache:
            self._duals_cache[key] = Duals(phi, variances, self.places)
        return self._duals_cache[key]


def _parallel(covariance: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Covariances, set to their bound where they are within rounding of it.

    Otherwise rounding would turn parallel inputs by an angle of the root of its size.
    """
    bound = torch.where(a == b, a, a.sqrt() * b.sqrt())
    rounded = bound - covariance.abs() <= _ROUNDING * bound
    return torch.where(rounded, bound.copysign(covariance), covariance)
