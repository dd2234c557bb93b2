r"""Smooth networks for every target: a sinusoid, after a cubic first layer where one is needed.

**The last layer** is $p\sin\omega x + q\cos\omega x + sx$ less its mean. With $v = \omega^2\tau^2$
and the energies $s_1^2$, $s_2^2$, $s_3^2$, which are free, $\mathbb{E}[\sigma^2] = s_1^2 + s_2^2\,
2(\cosh v - 1)/v^2 + s_3^2\,6(\sinh v - v)/v^3$ and $\tau^2\mathbb{E}[\sigma'^2] = s_1^2 + 2s_2^2
\sinh(v)/v + 3s_3^2\,2(\cosh v - 1)/v^2$. Both increase with $v$ from what the polynomial $s_1h_1 +
s_2h_2 + s_3h_3$ has to infinity, so that exactly one $v$ gives the diagonal, if it is not below
that of the polynomial. $s_3$ is no coefficient of the equivalent; it is chosen such that also
$\partial_a\partial_c\kappa$ is the target's, the largest term that vanishes with the dimension.
Where $v$ would be too small or too large, $s_3$ gives way, or a polynomial of fourth degree serves.

**One layer** has $A_2 = A_3$ in its CK (Ling 2024, Remark 3.9) and $3A_2 = A_3$ in its NTK. A
target that has not needs a second layer.

**The first of two layers** is $h_1 + \sqrt{w}\,h_2 + xh_3$, scaled to keep the norm: $1/f = 1 + w +
x^2$ and the growth is $g = f(1 + 2w + \sqrt6x + 3x^2)$. With the equations of two layers,
$nA_3/A_1 = p_1w + p_2w_2f$ and $nA_2/A_1 = p_3w + w_2g^2/f$, where $(n, p_1, p_2, p_3)$ is $(1, 1,
1, 1)$ for the CK and $(3, 4, 5, 2)$ for the NTK, each $w$ gives $(g/f)^2$, then $x$ by a quadratic
equation, then $w_2$. The $w$ is chosen that leaves most of the diagonal to the last layer's tail;
a target for which it leaves less than nothing is not feasible.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy  # whose parts are imported where they are first used

from shoal.activations import Activation, Affine, Hermite, Sinusoid
from shoal.designs.energies import (
    TWO_LAYERS,
    Energies,
    Numbers,
    Proposal,
    names,
    network_numbers,
)

_SAME = 1e-12  # relative to the diagonal
_SLOWEST = 0.1  # v below which a sinusoid has large parts that cancel
_FASTEST = 4.0  # v beyond which it oscillates within two standard deviations
_TYPICAL = 0.1  # relative deviation of a squared norm, by which the slant counts
_GRID = np.linspace(0.0, 1.0, 65) ** 2


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


def solutions(target: Numbers, input_norm: float, which: str) -> list[Proposal]:
    """The network that has these numbers; none if :func:`violation` names a reason."""
    plan = _best(target, input_norm, which)
    return [_finished(plan, target, input_norm, which)] if plan.rest >= 0 else []


def violation(target: Numbers, which: str) -> str:
    """Why no network of this kind has these numbers; empty if one has."""
    plan = _best(target, 1.0, which)
    if plan.rest >= 0:
        return ""
    own, linear, norms, square = names(which)
    if plan.rest == -math.inf:
        return f"No cubic first layer gives {norms} and {square} in these proportions."
    least = target.own - plan.rest
    layers = "two layers" if plan.before else "one layer"
    return (
        f"{layers.capitalize()} with {linear}, {norms} and {square} as they are have {own} at "
        f"least {least:.6g}, and it must be {target.own:.6g}, {1 - target.own / least:.2%} less."
    )


def nearest(target: Numbers, input_norm: float, which: str) -> Proposal:
    """One layer that gives up A_2, or two that give up the diagonal: which misses less."""
    plans = [_one(target, which), _best(target, input_norm, which)]
    proposals = [
        _finished(plan, target, input_norm, which) for plan in plans if plan.rest > -math.inf
    ]

    def miss(proposal: Proposal) -> float:
        numbers = proposal.numbers(which)
        slant = abs(numbers.slant - target.slant) / target.own
        return target.error(numbers) + _TYPICAL * slant

    return min(proposals, key=miss)


def _best(target: Numbers, input_norm: float, which: str) -> _Plan:
    """One layer if its identity holds, else two."""
    one = _one(target, which)
    excess = target.norms - target.square / (1.0 if which == "ck" else 3.0)
    if abs(excess) <= _SAME * target.own:
        return one
    if target.linear <= _SAME * target.own:
        return _two_even(target, input_norm, which)
    n, of_first, _, of_norms = TWO_LAYERS[which]
    end = n * min(target.square / of_first, target.norms / of_norms) / target.linear

    def rest(share: float) -> float:
        return _two(target, share * end, input_norm, which).rest

    rests = [rest(float(share)) for share in _GRID[:-1]]
    best = int(np.argmax(rests))
    low, high = float(_GRID[max(best - 1, 0)]), float(_GRID[best + 1])
    found = scipy.optimize.minimize_scalar(
        lambda s: -rest(float(s)), bounds=(low, high), method="bounded"
    )
    share = float(found.x) if rest(float(found.x)) > rests[best] else float(_GRID[best])
    return _two(target, share * end, input_norm, which)


def _one(target: Numbers, which: str) -> _Plan:
    trained = 0.0 if which == "ck" else 1.0
    linear, square = target.linear / (1 + trained), target.square / (1 + 2 * trained)
    return _Plan((), linear, square, trained, _rest(target, linear, square, trained))


def _two(target: Numbers, w: float, input_norm: float, which: str) -> _Plan:
    """Two layers, the first one with this much of second order relative to its linear part."""
    n, of_first, of_second, of_norms = TWO_LAYERS[which]
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
    layer, activation = _cubic((0.0, 1.0, math.sqrt(w), x), input_norm)
    f = layer.linear / layer.total
    linear = target.linear / (n * f)
    trained = 0.0 if which == "ck" else 1 + layer.slopes / layer.total
    bent = linear * square / (of_second * f)
    rest = _rest(target, linear, bent, trained)
    return _Plan(((layer, activation),), linear, bent, trained, rest)


def _two_even(target: Numbers, input_norm: float, which: str) -> _Plan:
    """Two layers for an even kernel: the first one is of second order alone."""
    _, of_first, _, of_norms = TWO_LAYERS[which]
    layer, activation = _cubic((0.0, 0.0, 1.0), input_norm)
    linear = target.square / of_first
    square = (target.norms - of_norms * linear) / (layer.growth / layer.total) ** 2
    trained = 0.0 if which == "ck" else 1 + layer.slopes / layer.total
    rest = _rest(target, linear, square, trained) if square >= 0 else -math.inf
    return _Plan(((layer, activation),), linear, max(square, 0.0), trained, rest)


def _rest(target: Numbers, linear: float, square: float, trained: float) -> float:
    rest = target.own - (1 + trained) * linear - (1 + 2 * trained) * square
    return max(rest, 0.0) if rest > -_SAME * target.own else rest


def _cubic(shape: tuple[float, ...], input_norm: float) -> tuple[Energies, Hermite]:
    """A polynomial up to the third degree, scaled to keep the norm."""
    size = input_norm / math.sqrt(math.fsum(s**2 for s in shape))
    coefficients = tuple(size * s for s in shape)
    return _polynomial_energies(coefficients), Hermite(coefficients, scale=input_norm)


def _polynomial_energies(coefficients: tuple[float, ...]) -> Energies:
    _, first, second, third, fourth = (*coefficients, 0.0, 0.0, 0.0)[:5]
    squares = [s**2 for s in (first, second, third, fourth)]
    slopes = math.fsum(k * square for k, square in enumerate(squares, start=1))
    growth = slopes + math.sqrt(6) * first * third + math.sqrt(12) * second * fourth
    return Energies(squares[0], squares[1], math.fsum(squares), slopes, growth, first * third)


def _finished(plan: _Plan, target: Numbers, input_norm: float, which: str) -> Proposal:
    """Append the last layer, with the target's slant if it can have it."""
    tau = math.sqrt(plan.before[-1][0].total) if plan.before else input_norm
    first = [layer for layer, _ in plan.before]
    plain = Energies(plan.linear, plan.square, 1.0, 1.0, 1.0)
    without, one = (
        network_numbers([*first, replace(plain, third=third)], which).slant for third in (0.0, 1.0)
    )
    product = (target.slant - without) / (one - without) if one != without else 0.0
    third = product / math.sqrt(plan.linear) if plan.linear > 0 else 0.0
    layers, activations = zip(*plan.before, _last(plan, third, tau), strict=True)
    return Proposal(tuple(activations), tuple(layers))


def _last(plan: _Plan, third: float, tau: float) -> tuple[Energies, Activation]:
    """The last layer with an $s_3$ as near to ``third`` as the rest of the diagonal allows."""
    rest = max(plan.rest, 0.0)
    largest = rest / (1 + 3 * plan.trained)
    sign = math.copysign(1.0, third) if third else -1.0  # of a saturating function
    # the range of s_3² for which v is between its bounds
    least, most = (
        (rest - _even_excess(plan, v)) / _odd_excess(plan, v) for v in (_FASTEST, _SLOWEST)
    )
    square = min(max(third**2, least), largest)
    if square >= most:
        third = sign * math.sqrt(square)
        left = max(rest - (1 + 3 * plan.trained) * square, 0.0)
        fourth = math.sqrt(left / (1 + 4 * plan.trained))
        shape = (0.0, math.sqrt(plan.linear), math.sqrt(plan.square), third, fourth)
        return _polynomial_energies(shape), Hermite(shape, scale=tau)

    def excess(v: float) -> float:
        return square * _odd_excess(plan, v) + _even_excess(plan, v) - rest

    ends = (_SLOWEST * (1 - 1e-9), _FASTEST * (1 + 1e-9))
    v = float(scipy.optimize.brentq(excess, *ends, xtol=1e-18, rtol=8.9e-16))
    return _wave(plan, sign * math.sqrt(square), v, tau)


def _wave(plan: _Plan, third: float, v: float, tau: float) -> tuple[Energies, Activation]:
    """The layer with these energies of first to third order and this squared frequency."""
    decay, first = math.exp(-v / 2), math.sqrt(plan.linear)
    odd = -math.sqrt(6) * third / (v**1.5 * decay)
    even = math.sqrt(2 * plan.square) / (v * decay)
    straight = first - odd * math.sqrt(v) * decay
    amplitude = math.hypot(odd, even)
    wave = Sinusoid(math.sqrt(v) / tau, math.atan2(even, odd), straight / (amplitude * tau))
    energies = _wave_energies(plan, third, v)
    return energies, Affine(wave, scale=amplitude, shift=-even * decay)


def _wave_energies(plan: _Plan, third: float, v: float) -> Energies:
    first, odd = math.sqrt(plan.linear), third**2
    total = plan.linear + odd * (1 + _third_tail(v)) + plan.square * (1 + _even_tail(v))
    slopes = plan.linear + 3 * odd * (1 + _even_tail(v)) + 2 * plan.square * (1 + _odd_tail(v))
    # of p sin + q cos alone, and what the straight part adds to it
    decay, p = math.exp(-v), -math.sqrt(6) * third / v**1.5
    straight = first - p * math.sqrt(v)
    growth = p**2 * v * decay - 2 * plan.square * math.expm1(-v) / v
    growth += straight**2 + straight * p * math.sqrt(v) * (2 - v)
    return Energies(plan.linear, plan.square, total, slopes, growth, first * third)


def _odd_excess(plan: _Plan, v: float) -> float:
    """What $s_3^2 = 1$ adds to the diagonal, with the orders above it."""
    return 1 + _third_tail(v) + 3 * plan.trained * (1 + _even_tail(v))


def _even_excess(plan: _Plan, v: float) -> float:
    """What the orders above the second add to the diagonal."""
    return plan.square * (_even_tail(v) + 2 * plan.trained * _odd_tail(v))


def _odd_tail(v: float) -> float:
    r"""$\sinh(v)/v - 1$."""
    return _series(v, 1.0, 1)


def _even_tail(v: float) -> float:
    r"""$(2\sinh(v/2)/v)^2 - 1 = 2(\cosh v - 1)/v^2 - 1$."""
    return _series(v, 2.0, 2)


def _third_tail(v: float) -> float:
    r"""$6(\sinh v - v)/v^3 - 1$."""
    return _series(v, 6.0, 3)


def _series(v: float, factor: float, order: int) -> float:
    r"""$\sum_{j\ge1} c\,v^{2j}/(2j + k)!$, to rounding up to the largest $v$ in use."""
    return factor * math.fsum(v ** (2 * j) / math.factorial(2 * j + order) for j in range(1, 16))
