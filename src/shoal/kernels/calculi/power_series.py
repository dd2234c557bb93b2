r"""Covariances of inputs of one norm, as power series in the cosine $\rho$ of their angle.

By Schoenberg's theorem all coefficients are nonnegative. They come from the Hermite coefficients
$c_k$ of the activations: $\mathbb{E}[\varphi(u)\varphi(v)] = \sum_k c_k^2 \lambda^k$ if the
correlation of $u$ and $v$ is $\lambda$, itself a series in $\rho$.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from shoal.activations import Activation
from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError
from shoal.gaussian import hermite
from shoal.gaussian.moments import mean_square
from shoal.kernels.calculi.own import loop_variance
from shoal.kernels.calculi.pairs import loop_covariance
from shoal.kernels.recursions import Loop, OfVectors, Pushed, Scalar
from shoal.numerics.power_series import (
    Series,
    about,
    composed,
    geometric,
    needed_order,
    product,
)

_ROUNDING = 1e-14  # a correlation that is smaller is zero
_CONSTANT = 1e-9  # what a correlation must have left to one


@dataclass(frozen=True, eq=False)
class Number:
    """A series that is added and multiplied like a number; everything is modulo the next power."""

    coefficients: Series

    def __add__(self, other: "Number | float") -> "Number":
        if isinstance(other, Number):
            return Number(self.coefficients + other.coefficients)
        result = self.coefficients.copy()
        result[0] += other
        return Number(result)

    def __mul__(self, other: "Number | float") -> "Number":
        if isinstance(other, Number):
            return Number(product(self.coefficients, other.coefficients))
        return Number(float(other) * self.coefficients)

    __rmul__ = __mul__


@dataclass(frozen=True, eq=False)
class _State:
    """Features: their variance, covariance and mean.

    Attributes:
        natural: Hermite coefficients of the activation that made them, if one did.
    """

    variance: float
    covariance: Number
    mean: float = 0.0
    natural: np.ndarray | None = None


@dataclass(frozen=True)
class PowerSeries(OfVectors):
    """The calculus of inputs of one norm.

    Attributes:
        norm: That of all inputs.
        degree: The last power.
    """

    norm: float
    degree: int

    def start(self, *, gated: bool) -> tuple[_State, float]:
        """The inputs, or their directions."""
        own, scale = (1.0, self.norm**2) if gated else (self.norm**2, 1.0)
        return _State(own, Number(own * (np.arange(self.degree + 1) == 1))), scale

    def covariance(self, state: _State) -> Number:
        """The covariance."""
        return state.covariance

    def combine(self, terms: list[tuple[Scalar, _State]], constant: Scalar = 0.0) -> _State:
        """The weighted sum."""
        variance = sum(float(factor) * state.variance for factor, state in terms)
        (factor, first), *others = terms
        total = float(factor) * first.covariance
        for factor, state in others:
            total = total + float(factor) * state.covariance
        natural = first.natural if not others else None
        return _State(variance + float(constant), total + float(constant), natural=natural)

    def residual(self, below: _State, pushed: _State, skip: float, gain: float) -> _State:
        """The sum of features and of what a layer makes of them."""
        total = self.combine([(gain**2, pushed), (skip**2, below)])
        cross = 2 * skip * gain * below.mean * pushed.mean
        coefficients = (total.covariance + cross).coefficients
        coefficients[0] = max(0.0, coefficients[0])  # rounding
        mean = skip * below.mean + gain * pushed.mean
        return _State(total.variance + cross, Number(coefficients), mean, pushed.natural)

    def push(self, phi: Activation, state: _State, *, mean: bool) -> Pushed[_State]:
        """Duals of an activation and of its derivative."""
        correlation = state.covariance.coefficients / state.variance
        duals = _duals(phi, state.variance, float(correlation[0]), self.degree)
        value, slope = duals(correlation)
        natural = duals.natural[: self.degree + 1]
        average = float(natural[0]) if mean else 0.0
        return Pushed(_State(duals.square, Number(value), average, natural), lambda: Number(slope))

    def fixed_point(self, loop: Loop, injected: _State) -> _State:
        """The equilibrium: Newton's method doubles the number of known coefficients.

        The residual vanishes at those, and is nonnegative beyond: nothing cancels.
        """
        variance = loop_variance(loop, injected.variance)
        if variance == 0:
            raise ValueError("the kernel is zero: nothing can be designed from it")
        product = float(injected.covariance.coefficients[0])
        solution = np.zeros(self.degree + 1)
        solution[0] = loop_covariance(loop, injected.variance, product)
        known = 0
        while known < self.degree:
            turn, slope = loop(self, _State(variance, Number(solution)), injected)
            residual = turn.covariance.coefficients.copy()
            order = min(max(1, 2 * known), self.degree)
            residual[: known + 1], residual[order + 1 :] = 0.0, 0.0
            step = Number(residual) * self.geometric(slope)
            solution[known + 1 : order + 1] = step.coefficients[known + 1 : order + 1]
            known = order
        return _State(variance, Number(solution))

    def geometric(self, ratio: Number) -> Number:
        """The sum of all powers."""
        return Number(geometric(ratio.coefficients))


@dataclass(frozen=True, eq=False)
class _Duals:
    r"""The duals of an activation at one variance, about a correlation $p$.

    Attributes:
        variance: Of the activation's input.
        square: The mean square of its output.
        place: $p$.
        natural: The Hermite coefficients.
        coefficients: Those of the dual in $\nu = (\lambda - p) / (1 - p)$.
    """

    variance: float
    square: float
    place: float
    natural: np.ndarray
    coefficients: Series

    def __call__(self, correlation: Series) -> tuple[Series, Series]:
        """The duals of the activation and of its derivative."""
        step = 1 - self.place
        inner = correlation / step
        inner[0] = 0.0
        slopes = np.arange(1, len(self.coefficients)) * self.coefficients[1:]
        value = composed(self.coefficients[:-1], inner)
        return value, composed(slopes, inner) / (step * self.variance)


@cached
def _duals(phi: Activation, variance: float, place: float, degree: int) -> _Duals:
    place = 0.0 if place < _ROUNDING else place
    if not 1 - place > _CONSTANT:
        raise AccuracyError("the kernel does not depend on the angle between inputs")
    natural = hermite(phi, math.sqrt(variance), needed_order(place, degree + 1)).numpy()
    square = float(mean_square(phi, torch.tensor(variance, dtype=torch.float64))[0])
    if square == 0:
        raise ValueError(f"the kernel is zero: {phi!r} vanishes")
    return _Duals(variance, square, place, natural, about(natural**2, place, degree + 1))
