r"""Covariances and their derivatives up to second order at $(a, b, c) = (\tau_0^2, \tau_0^2, 0)$.

High-dimensional inputs have norms near $\tau_0$ and inner products near zero, so that these
derivatives are all that their kernels are made of (Ling 2024, Theorems 3.3, 3.4, 3.8). With $p(a)$
the variance of a unit's argument and $\Lambda(a, b, c)$ its covariance, duals $D_{jk} =
\mathbb{E}[\varphi^{(j)}(u)\varphi^{(k)}(v)]$ are differentiated by
$\partial_p D_{jk} = \tfrac12 D_{j+2,k}$ and $\partial_\Lambda D_{jk} = D_{j+1,k+1}$. Around a loop,
derivatives of one order enter the next turn by one factor, so that each Newton step settles one
order.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, partial

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.core.caches import cached
from shoal.core.exceptions import ConvergenceError
from shoal.gaussian import dual, moments
from shoal.gaussian.moments import mean as activation_mean
from shoal.gaussian.moments import mean_square
from shoal.kernels.calculi.own import loop_variance
from shoal.kernels.calculi.pairs import loop_covariance
from shoal.kernels.recursions import Loop, OfVectors, Pushed, Scalar

Duals = Callable[[int, int], float]
r"""$D_{jk}$ at one covariance of $(u, v)$."""


@dataclass(frozen=True)
class Taylor:
    """A function of one squared norm: value, first and second derivative."""

    value: float = 0.0
    first: float = 0.0
    second: float = 0.0

    def __add__(self, other: "Taylor") -> "Taylor":
        return Taylor(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Taylor)))

    def times(self, factor: Scalar) -> "Taylor":
        """The function times a number."""
        return Taylor(*(float(factor) * getattr(self, f.name) for f in fields(Taylor)))

    def __mul__(self, other: "Taylor") -> "Taylor":
        second = self.second * other.value + 2 * self.first * other.first
        return Taylor(
            self.value * other.value,
            self.first * other.value + self.value * other.first,
            second + self.value * other.second,
        )

    def mapped(self, outer: "Taylor") -> "Taylor":
        """A function of this jet, given the function's derivatives there."""
        second = outer.first * self.second + outer.second * self.first**2
        return Taylor(outer.value, outer.first * self.first, second)


@dataclass(frozen=True)
class Jet:
    r"""A kernel $\kappa(a, b, c) = \kappa(b, a, c)$ and its derivatives up to second order.

    The derivatives that no equivalent needs, $\kappa_{ac}$, are left out; those that it needs
    do not depend on them.
    """

    value: float = 0.0
    a: float = 0.0
    c: float = 0.0
    aa: float = 0.0
    ab: float = 0.0
    cc: float = 0.0

    def __add__(self, other: "Jet | float") -> "Jet":
        if not isinstance(other, Jet):
            return replace(self, value=self.value + other)
        return Jet(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Jet)))

    def __mul__(self, other: "Jet | float") -> "Jet":
        f, g = self, other
        if not isinstance(g, Jet):
            return Jet(*(g * getattr(f, field.name) for field in fields(Jet)))
        return Jet(
            value=f.value * g.value,
            a=f.a * g.value + f.value * g.a,
            c=f.c * g.value + f.value * g.c,
            aa=f.aa * g.value + 2 * f.a * g.a + f.value * g.aa,
            ab=f.ab * g.value + 2 * f.a * g.a + f.value * g.ab,
            cc=f.cc * g.value + 2 * f.c * g.c + f.value * g.cc,
        )

    __rmul__ = __mul__

    def mapped(self, outer: Taylor) -> "Jet":
        """A function of the kernel, given its derivatives there."""
        first, second = outer.first, outer.second
        return Jet(
            value=outer.value,
            a=first * self.a,
            c=first * self.c,
            aa=first * self.aa + second * self.a**2,
            ab=first * self.ab + second * self.a**2,
            cc=first * self.cc + second * self.c**2,
        )


@dataclass(frozen=True)
class _State:
    """Variance and mean of features as functions of a squared norm, and their covariance."""

    own: Taylor
    inner: Jet
    mean: Taylor = Taylor()


@dataclass(frozen=True)
class Jets(OfVectors):
    r"""The calculus of derivatives at inputs of norm $\tau_0$ at right angles.

    Attributes:
        input_norm: $\tau_0$.
        center: Whether all activations have the mean zero there.
    """

    input_norm: float
    center: bool

    def start(self, *, gated: bool) -> tuple[_State, Jet | float]:
        """The inputs, or their directions."""
        square = self.input_norm**2
        if not gated:
            return _State(Taylor(square, 1.0), Jet(c=1.0)), 1.0
        norms = _both(Taylor(square, 1.0).mapped(_root(square, 0.5)))
        return _State(Taylor(1.0), Jet(c=1 / square)), norms

    def covariance(self, state: _State) -> Jet:
        """The covariance."""
        return state.inner

    def combine(self, terms: list[tuple[Scalar, _State]], constant: Scalar = 0.0) -> _State:
        """The weighted sum."""
        own, inner = Taylor(float(constant)), Jet(float(constant))
        for factor, state in terms:
            own, inner = own + state.own.times(factor), inner + float(factor) * state.inner
        return _State(own, inner)

    def residual(self, below: _State, pushed: _State, skip: float, gain: float) -> _State:
        """The sum of features and of what a layer makes of them."""
        total = self.combine([(skip**2, below), (gain**2, pushed)])
        b, m = below.mean, pushed.mean
        cross = Jet(
            value=2 * b.value * m.value,
            a=b.first * m.value + b.value * m.first,
            aa=b.second * m.value + b.value * m.second,
            ab=2 * b.first * m.first,
        )
        own = total.own + (b * m).times(2 * skip * gain)
        return _State(own, total.inner + skip * gain * cross, b.times(skip) + m.times(gain))

    def push(self, phi: Activation, state: _State, *, mean: bool) -> Pushed[_State]:
        """Duals of an activation and of its derivative."""
        own = state.own
        squares, means = _squares(phi, own.value, self.center), Taylor()
        if mean:
            means = own.mapped(_taylor(partial(activation_mean, phi), own.value))
            means = replace(means, value=0.0) if self.center else means
        centered = self.center and state.inner.value == 0
        table = _products(phi, own.value) if centered else _duals(phi, own.value, state.inner.value)
        inner = _composed(table, 0, own, state.inner)
        return Pushed(
            _State(own.mapped(squares), inner, means),
            lambda: _composed(table, 1, own, state.inner),
        )

    def fixed_point(self, loop: Loop, injected: _State) -> _State:
        """The equilibrium: its values, then one order after the other."""
        variance, inner = loop_variance(loop, injected.own.value), 0.0
        if not (self.center and injected.inner.value == 0):
            inner = loop_covariance(loop, injected.own.value, injected.inner.value)
        nothing = _State(Taylor(injected.own.value), Jet(injected.inner.value))
        probe, slope = loop(self, _State(Taylor(variance, 1.0), Jet(inner)), nothing)
        rate, around = _below_one(probe.own.first), _below_one(slope.value)
        state = _State(Taylor(variance), Jet(inner))
        for _ in range(3):  # one order of the variance, and the next of the covariance
            turn, _ = loop(self, state, injected)
            own = state.own + (turn.own + state.own.times(-1.0)).times(1 / (1 - rate))
            change = (turn.inner + -1.0 * state.inner) * (1 / (1 - around))
            state = _State(replace(own, value=variance), replace(state.inner + change, value=inner))
        return state

    def cosine(self, state: _State) -> tuple[Jet, Jet]:
        """The cosine of the angle of features, and the product of their norms."""
        norm = state.own.mapped(_root(state.own.value, 0.5))
        inverse = state.own.mapped(_root(state.own.value, -0.5))
        return state.inner * _both(inverse), _both(norm)

    def geometric(self, ratio: Jet) -> Jet:
        """The sum of all powers."""
        rest = 1 - _below_one(ratio.value)
        return ratio.mapped(Taylor(1 / rest, 1 / rest**2, 2 / rest**3))


def _root(value: float, power: float) -> Taylor:
    """A power of a number, with its derivatives."""
    first = power * value ** (power - 1)
    return Taylor(value**power, first, (power - 1) * first / value)


def _both(own: Taylor) -> Jet:
    """The product of a function of the first squared norm and the same of the second."""
    return Jet(own.value**2, own.first * own.value, aa=own.second * own.value, ab=own.first**2)


def _composed(duals: Duals, order: int, own: Taylor, inner: Jet) -> Jet:
    r"""$D_{jj}(p(a), p(b), \Lambda(a, b, c))$, $j$ = ``order``, given the duals there."""

    def at(j: int, k: int) -> float:
        return duals(order + j, order + k)

    slope, bend, p1, p2 = at(1, 1), at(2, 2), own.first, own.second
    mixed = at(3, 1) * p1 * inner.a + bend * inner.a**2
    return Jet(
        value=at(0, 0),
        a=at(2, 0) * p1 / 2 + slope * inner.a,
        c=slope * inner.c,
        aa=at(4, 0) * p1**2 / 4 + at(2, 0) * p2 / 2 + mixed + slope * inner.aa,
        ab=bend * p1**2 / 4 + mixed + slope * inner.ab,
        cc=bend * inner.c**2 + slope * inner.cc,
    )


@cached  # a loop asks for the same duals at every turn
def _products(phi: Activation, variance: float) -> Duals:
    """Duals of independent arguments, that is products of moments, the first one zero."""
    m = moments(phi, math.sqrt(variance))
    means = (0.0, float(m.first), float(m.second), float(m.third))

    def table(j: int, k: int) -> float:
        # derivatives from the fourth on meet kernels of orthogonal inputs, which vanish
        return means[j] * means[k] if max(j, k) < len(means) else 0.0

    return table


@cached
def _duals(phi: Activation, variance: float, inner: float) -> Duals:
    r"""Duals of correlated arguments, $D_{2i+l, l} = 2^i \partial_p^i \partial_c^l D$."""

    @cache
    def table(j: int, k: int) -> float:
        p, b, c = torch.tensor([variance, variance, inner], dtype=torch.float64)
        with torch.enable_grad():
            p.requires_grad_()
            c.requires_grad_()
            value = dual(phi, p, b, c)
            for variable in (c,) * k + (p,) * ((j - k) // 2):
                (value,) = gradients(value, variable)
        return math.ldexp(float(value.detach()), (j - k) // 2)

    return table


@cached
def _squares(phi: Activation, variance: float, center: bool) -> Taylor:
    r"""$\mathbb{E}[\varphi(\sqrt p\,\xi)^2]$; what is centered does not need the last one."""
    if not center:
        return _taylor(lambda p: mean_square(phi, p)[0], variance)
    value, first = mean_square(phi, torch.tensor(variance, dtype=torch.float64))
    return Taylor(float(value), float(first))


def _taylor(function: Callable[[Tensor], Tensor], place: float) -> Taylor:
    """A function of a variance by autograd."""
    with torch.enable_grad():
        p = torch.tensor(place, dtype=torch.float64, requires_grad=True)
        value = function(p)
        (first,) = gradients(value, p)
        (second,) = gradients(first, p)
    return Taylor(*(float(t.detach()) for t in (value, first, second)))


def gradients(value: Tensor, *variables: Tensor) -> tuple[Tensor, ...]:
    """Derivatives of a scalar that can be differentiated again; zero where it is constant."""
    if not value.requires_grad:  # the derivative of something linear
        return tuple(torch.zeros_like(variable) for variable in variables)
    return torch.autograd.grad(value, variables, create_graph=True, materialize_grads=True)


def _below_one(ratio: float) -> float:
    if not ratio < 1:
        raise ConvergenceError(
            f"the kernel does not exist: recurrent_variance times the slope is {ratio:.4g} at "
            "the fixed point, and must be below 1"
        )
    return ratio
