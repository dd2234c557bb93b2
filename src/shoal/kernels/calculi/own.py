"""Covariances of inputs with themselves: variances, by integrals of one variable."""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.gaussian import dual, dual_derivative
from shoal.gaussian.moments import mean as activation_mean
from shoal.gaussian.moments import mean_square, slope_square
from shoal.kernels.fixed_points import solve
from shoal.kernels.recursions import Loop, OfVectors, Pushed, Scalar

SMALLEST = 1e-300  # a variance of zero


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
class Own(OfVectors):
    """The calculus of single inputs.

    Attributes:
        squared_norms: Of the inputs, in float64. shape: (n,)
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
        """The sum of features and of what a layer makes of them."""
        cross = 2 * skip * gain * below.means * pushed.means
        values = skip**2 * below.values + cross + gain**2 * pushed.values
        return Variances(values, skip * below.means + gain * pushed.means)

    def push(self, phi: Activation, state: Variances, *, mean: bool) -> Pushed[Variances]:
        """Mean squares of an activation and of its derivative."""
        variance = state.values

        def slope() -> Tensor:
            if self.differentiable:
                return slope_square(phi, variance.clamp(min=SMALLEST))
            return dual_derivative(phi, variance, variance, variance)

        return Pushed(self.squares(phi, variance, mean=mean), slope)

    def squares(self, phi: Activation, variance: Tensor, *, mean: bool) -> Variances:
        """Mean squares, and means, of an activation alone."""
        some = variance.clamp(min=SMALLEST)
        means = (
            torch.where(variance > 0, activation_mean(phi, some), phi(0 * some)) if mean else 0.0
        )
        if self.differentiable:  # duals of kinks have no second derivatives where u = v
            return Variances(squares_at(phi, variance)[0], means)
        # by the formula of pairs, so that cosines of ±1 stay so to the last bit
        return Variances(dual(phi, variance, variance, variance), means)

    def fixed_point(self, loop: Loop, injected: Variances) -> Variances:
        """The variances at equilibrium."""
        values = fixed_variance(loop, injected.values, differentiable=self.differentiable)
        return Variances(values)

    def angle(self, state: Variances) -> tuple[Tensor, Tensor]:
        """An angle of zero for all, and the variances."""
        return state.values.new_zeros(()), state.values


def squares_at(phi: Activation, variance: Tensor) -> tuple[Tensor, Tensor]:
    """The mean square of an activation and its derivative in the variance, which may be zero."""
    linear = phi.positively_homogeneous
    return mean_square(phi, variance if linear else variance.clamp(min=SMALLEST))


def weighted(terms: list[tuple[Scalar, Tensor]], constant: Scalar) -> Tensor:
    """A sum of tensors with factors, and a constant."""
    (factor, total), *others = terms
    total = total if _is(factor, 1.0) else factor * total
    for factor, value in others:
        total = total + (value if _is(factor, 1.0) else factor * value)
    return total if _is(constant, 0.0) else total + constant


def _is(number: Scalar, value: float) -> bool:
    return isinstance(number, float) and number == value


def fixed_variance(loop: Loop, injected: Tensor, *, differentiable: bool) -> Tensor:
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


def loop_variance(loop: Loop, injected: float) -> float:
    """The variance around a loop, for one injected number."""
    given = torch.tensor(injected, dtype=torch.float64)
    return float(fixed_variance(loop, given, differentiable=False))


def _solved(loop: Loop, injected: Tensor, *, differentiable: bool) -> Tensor:
    """The variances around a loop, by one equation per element."""
    recurrent = loop.cells[0].weights.variance

    def equation(guess: Tensor) -> tuple[Tensor, Tensor]:
        value, rate = _turn(loop, guess)
        return recurrent * value + injected, recurrent * rate

    return solve(
        equation,
        injected,
        injected,
        "variance",
        differentiable=differentiable,
        unique=loop.contracts,
    )


def _turn(loop: Loop, variance: Tensor) -> tuple[Tensor, Tensor]:
    """The variance of features once around the loop, and its derivative."""
    rate = torch.ones_like(variance)
    for place, cell in enumerate(loop.cells):
        if place:
            variance = cell.weights.variance * variance + cell.bias_variance
            rate = cell.weights.variance * rate
        value, growth = squares_at(cell.activation, variance)
        variance, rate = cell.gain**2 * value, cell.gain**2 * growth * rate
    return variance, rate
