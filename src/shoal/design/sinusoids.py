r"""Smooth networks for every target: a sinusoid, after a cubic first layer where one is needed.

**The last layer** is $a\sin\omega x + b\cos\omega x$ less its mean, with $v = \omega^2\tau^2$. In
energies, $\mathbb{E}[\sigma^2] = s_1^2\sinh(v)/v + s_2^2(2\sinh(v/2)/v)^2$ and
$\tau^2\mathbb{E}[\sigma'^2] = s_1^2\cosh v + 2s_2^2\sinh(v)/v$. Both increase with $v$ from what a
polynomial $s_1h_1 + s_2h_2$ has to infinity: whatever $s_1$ and $s_2$, exactly one $v$ gives the
diagonal, if it is not below that of the polynomial.

**One layer** has $A_2 = A_3$ in its CK (Ling 2024, Remark 3.9) and $3A_2 = A_3$ in its NTK. A target
that has not needs a second layer.

**The first of two layers** is $h_1 + \sqrt{w}\,h_2 + xh_3$, scaled to keep the norm: $1/f = 1 + w +
x^2$ and the growth is $g = f(1 + 2w + \sqrt6x + 3x^2)$. With the equations of two layers,
$nA_3/A_1 = p_1w + p_2w_2f$ and $nA_2/A_1 = p_3w + w_2g^2/f$, where $(n, p_1, p_2, p_3)$ is $(1, 1,
1, 1)$ for the CK and $(3, 4, 5, 2)$ for the NTK, each $w$ gives $(g/f)^2$, then $x$ by a quadratic
equation, then $w_2$. The $w$ is chosen that leaves most of the diagonal to the last layer's tail;
a target for which it leaves less than nothing is not feasible.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from shoal.activations import Activation, Affine, Hermite, Sinusoid
from shoal.design.energies import Energies, Numbers, Proposal, names

__all__ = ["nearest", "solutions", "violation"]

_SAME = 1e-12  # relative to the diagonal
_SLOWEST = 1e-3  # v below which a sinusoid has large parts that cancel
_GRID = np.linspace(0.0, 1.0, 201) ** 2
_EQUATIONS = {"ck": (1.0, 1.0, 1.0, 1.0), "ntk": (3.0, 4.0, 5.0, 2.0)}


@dataclass(frozen=True)
class _Plan:
    """The first layers, and what the last one must have.

    Attributes:
        before: The first layer and its activation, or nothing.
        linear: The last layer's linear energy.
        square: Its energy of second order.
        trained: How much the last layer's slopes count in the diagonal; zero for the CK.
        rest: What remains of the diagonal; if negative, the target is not feasible.
    """

    before: tuple[tuple[Energies, Activation], ...]
    linear: float
    square: float
    trained: float
    rest: float


def solutions(target: Numbers, tau0: float, match: str) -> list[Proposal]:
    """The network that has these numbers; none if :func:`violation` names a reason."""
    plan = _best(target, tau0, match)
    return [_finished(plan, tau0)] if plan.rest >= 0 else []


def violation(target: Numbers, match: str) -> str:
    """Why no network of this kind has these numbers; empty if one has."""
    plan = _best(target, 1.0, match)
    if plan.rest >= 0:
        return ""
    own, linear, norms, square = names(match)
    if plan.rest == -math.inf:
        return f"No cubic first layer gives {norms} and {square} in these proportions."
    least = target.own - plan.rest
    layers = "two layers" if plan.before else "one layer"
    return (
        f"{layers.capitalize()} with {linear}, {norms} and {square} as they are have {own} at "
        f"least {least:.6g}, and it must be {target.own:.6g}, {1 - target.own / least:.2%} less."
    )


def nearest(target: Numbers, tau0: float, match: str) -> Proposal:
    """One layer that gives up A_2, or two that give up the diagonal: which misses less."""
    plans = [_one(target, match), _best(target, tau0, match)]
    proposals = [_finished(plan, tau0) for plan in plans if plan.rest > -math.inf]
    return min(proposals, key=lambda proposal: target.error(proposal.numbers(match)))


def _best(target: Numbers, tau0: float, match: str) -> _Plan:
    """One layer if its identity holds, else two."""
    one = _one(target, match)
    excess = target.norms - target.square / (1.0 if match == "ck" else 3.0)
    if abs(excess) <= _SAME * target.own:
        return one
    if target.linear <= _SAME * target.own:
        return _two_even(target, tau0, match)
    n, of_first, _, of_norms = _EQUATIONS[match]
    end = n * min(target.square / of_first, target.norms / of_norms) / target.linear

    def rest(share: float) -> float:
        return _two(target, share * end, tau0, match).rest

    rests = [rest(float(share)) for share in _GRID[:-1]]
    best = int(np.argmax(rests))
    low, high = float(_GRID[max(best - 1, 0)]), float(_GRID[best + 1])
    found = minimize_scalar(lambda s: -rest(float(s)), bounds=(low, high), method="bounded")
    share = float(found.x) if rest(float(found.x)) > rests[best] else float(_GRID[best])
    return _two(target, share * end, tau0, match)


def _one(target: Numbers, match: str) -> _Plan:
    trained = 0.0 if match == "ck" else 1.0
    linear, square = target.linear / (1 + trained), target.square / (1 + 2 * trained)
    return _Plan((), linear, square, trained, _rest(target, linear, square, trained))


def _two(target: Numbers, w: float, tau0: float, match: str) -> _Plan:
    """Two layers, the first one with this much of second order relative to its linear part."""
    n, of_first, of_second, of_norms = _EQUATIONS[match]
    square = n * target.square / target.linear - of_first * w
    norms = n * target.norms / target.linear - of_norms * w
    infeasible = _Plan((), 0.0, 0.0, 0.0, -math.inf)
    if not (square > 0 and norms >= 0):
        return infeasible
    growth = math.sqrt(of_second * norms / square)  # g/f
    discriminant = 6 + 12 * (growth - 1 - 2 * w)
    if discriminant < 0:
        return infeasible
    x = 2 * (growth - 1 - 2 * w) / (math.sqrt(6) + math.sqrt(discriminant))
    layer, activation = _cubic((0.0, 1.0, math.sqrt(w), x), tau0)
    f = layer.linear / layer.total
    linear = target.linear / (n * f)
    trained = 0.0 if match == "ck" else 1 + layer.slopes / layer.total
    bent = linear * square / (of_second * f)
    rest = _rest(target, linear, bent, trained)
    return _Plan(((layer, activation),), linear, bent, trained, rest)


def _two_even(target: Numbers, tau0: float, match: str) -> _Plan:
    """Two layers for an even kernel: the first one is of second order alone."""
    _, of_first, _, of_norms = _EQUATIONS[match]
    layer, activation = _cubic((0.0, 0.0, 1.0), tau0)
    linear = target.square / of_first
    square = (target.norms - of_norms * linear) / (layer.growth / layer.total) ** 2
    trained = 0.0 if match == "ck" else 1 + layer.slopes / layer.total
    rest = _rest(target, linear, square, trained) if square >= 0 else -math.inf
    return _Plan(((layer, activation),), linear, max(square, 0.0), trained, rest)


def _rest(target: Numbers, linear: float, square: float, trained: float) -> float:
    rest = target.own - (1 + trained) * linear - (1 + 2 * trained) * square
    return max(rest, 0.0) if rest > -_SAME * target.own else rest


def _cubic(shape: tuple[float, ...], tau0: float) -> tuple[Energies, Hermite]:
    """A polynomial up to the third degree, scaled to keep the norm."""
    size = tau0 / math.sqrt(math.fsum(s**2 for s in shape))
    coefficients = tuple(size * s for s in shape)
    return _polynomial_energies(coefficients), Hermite(coefficients, scale=tau0)


def _polynomial_energies(coefficients: tuple[float, ...]) -> Energies:
    _, first, second, third = (*coefficients, 0.0, 0.0)[:4]
    slopes = first**2 + 2 * second**2 + 3 * third**2
    total = first**2 + second**2 + third**2
    growth = slopes + math.sqrt(6) * first * third
    return Energies(first**2, second**2, total, slopes, growth)


def _finished(plan: _Plan, tau0: float) -> Proposal:
    """Append the last layer."""
    tau = math.sqrt(plan.before[-1][0].total) if plan.before else tau0
    last = _last(plan, tau)
    layers, activations = zip(*plan.before, last, strict=True)
    return Proposal(tuple(activations), tuple(layers))


def _last(plan: _Plan, tau: float) -> tuple[Energies, Activation]:
    """The sinusoid, or a polynomial where it would be too slow, with the rest in its tail."""
    rest, size = max(plan.rest, 0.0), (1 + plan.trained) * (plan.linear + plan.square)
    if size <= _SAME * rest or _excess(plan, _SLOWEST) >= rest:
        third = math.sqrt(rest / (1 + 3 * plan.trained))
        coefficients = (0.0, math.sqrt(plan.linear), math.sqrt(plan.square), third)
        return _polynomial_energies(coefficients), Hermite(coefficients, scale=tau)
    high = 1.0
    while _excess(plan, high) < rest:
        high *= 2
    v = float(brentq(lambda v: _excess(plan, v) - rest, _SLOWEST, high, xtol=1e-18, rtol=8.9e-16))
    odd, even = math.sqrt(plan.linear / v), math.sqrt(2 * plan.square) / v
    amplitude, phase = math.hypot(odd, even) * math.exp(v / 2), math.atan2(even, odd)
    wave = Sinusoid(frequency=math.sqrt(v) / tau, phase=phase)
    return _sinusoid_energies(plan, v), Affine(wave, scale=amplitude, shift=-even)


def _sinusoid_energies(plan: _Plan, v: float) -> Energies:
    growth = plan.linear * math.exp(-v) - 2 * plan.square * math.expm1(-v) / v
    total = plan.linear * (1 + _odd_tail(v)) + plan.square * (1 + _even_tail(v))
    slopes = plan.linear * math.cosh(v) + 2 * plan.square * (1 + _odd_tail(v))
    return Energies(plan.linear, plan.square, total, slopes, growth)


def _excess(plan: _Plan, v: float) -> float:
    """By how much the diagonal exceeds that of the polynomial, without cancellation."""
    slopes = plan.linear * 2 * math.sinh(v / 2) ** 2 + 2 * plan.square * _odd_tail(v)
    return plan.linear * _odd_tail(v) + plan.square * _even_tail(v) + plan.trained * slopes


def _odd_tail(v: float) -> float:
    r"""$\sinh(v)/v - 1$."""
    if v > 1:
        return math.sinh(v) / v - 1
    return math.fsum(v ** (2 * j) / math.factorial(2 * j + 1) for j in range(1, 10))


def _even_tail(v: float) -> float:
    r"""$(2\sinh(v/2)/v)^2 - 1$."""
    if v > 1:
        return (2 * math.sinh(v / 2) / v) ** 2 - 1
    return math.fsum(2 * v ** (2 * j) / math.factorial(2 * j + 2) for j in range(1, 10))
