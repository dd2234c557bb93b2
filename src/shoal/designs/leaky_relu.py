r"""Leaky rectifiers, $\max(a_lx, b_lx)$ less their mean, in one or two layers (Ling 2024, 3.11).

Such a layer is $Ax + B|x|$ less its mean, $a = A + B$, $b = A - B$. With $w = s_2^2/s_1^2 =
B^2/(\pi A^2)$, in units of $s_1^2$: $\mathbb{E}[\sigma^2] = 1 + (\pi-2)w$, which is also the
growth, and $\tau^2\mathbb{E}[\sigma'^2] = 1 + \pi w$. Slopes with $a \ge b \ge 0$ mean $w \le
1/\pi$.

Multiplying layer 1 by $k$ and dividing layer 2 by $k$ is a gauge freedom of *every* kernel: since
$\sigma_2(x)/k = \sigma_2(x/k)$ less a constant, the network is the same function of its weights.
So the first layer may keep the norm, and the unknowns are $w_1$, $w_2$ and the size of layer 2,
which $A_1$ determines. With $F = 1 + (\pi-2)w_1$ the equations for $A_2$ and $A_3$ are

* CK: $A_3/A_1 = w_1 + w_2/F$ and $A_2/A_1 = w_1 + w_2F$,
* NTK: $3A_3/A_1 = 4w_1 + 5w_2/F$ and $3A_2/A_1 = 2w_1 + w_2F$.

Eliminating $w_2$ leaves a cubic in $w_1$, whose roots are all that there is. For the CK, with $P =
A_3/A_1$ and $Q = A_2/A_1$, it is $(P - w)(1 + (\pi-2)w)^2 = Q - w$. If $Q > P$, as for rectifier
DEQs, left minus right is negative at 0, at $P$ and at infinity and positive at minus infinity: one
root is negative, and between 0 and $P$ there are two or none.

The diagonal is then no longer free. For the CK, $\gamma^2 - A_1 = (\pi-2)A_2$ holds for both sides
if the DEQ's activation is a leaky rectifier, so that all four numbers fit. For the NTK there is no
such identity: four equations, three unknowns. Two layers of leaky rectifiers miss $\kappa^2$, and
only a network of one layer is met.
"""

import math
from itertools import product

import numpy as np
import scipy  # whose parts are imported where they are first used

from shoal.activations import Affine, LeakyReLU
from shoal.designs.energies import (
    TWO_LAYERS,
    Energies,
    Numbers,
    Proposal,
    names,
    network_numbers,
)

_K = math.pi - 2
_ORDINARY = 1 / math.pi  # the largest w of slopes a >= b >= 0
_SAME = 1e-11  # relative to the diagonal
_EVEN = 1e-13  # a linear part so small, relative to the diagonal, is rounding
_REAL = 1e-7  # an imaginary part so small is that of a double root


def solutions(target: Numbers, input_norm: float, which: str) -> list[Proposal]:
    """All networks of this kind that have these numbers, the best-conditioned first."""
    if _is_even(target):
        return []
    found = [p for p in _candidates(target, input_norm, which) if _is_met(target, p, which)]
    if found and len(found[0].layers) == 1:
        return found[:1]
    return found


def violation(target: Numbers, which: str) -> str:
    """Why no network of this kind has these numbers; empty if one has."""
    own, linear, norms, square = names(which)
    if _is_even(target):
        return f"{linear} must be positive, and vanishes."
    candidates = _candidates(target, 1.0, which)
    if any(_is_met(target, p, which) for p in candidates):
        return ""
    two = [p for p in candidates if len(p.layers) == 2]
    if not two:
        return (
            f"No two leaky rectifiers have {linear}, {norms} and {square} in these proportions: "
            f"{norms} input_norm²/{linear} = {target.norms / target.linear / 2:.6g} and "
            f"{square} input_norm²/{linear} = {target.square / target.linear:.6g}."
        )
    values = [p.numbers(which).own for p in two]
    value = min(values, key=lambda x: abs(x - target.own))
    return (
        f"Leaky rectifiers that have {linear}, {norms} and {square} have no choice of {own}: it "
        f"would be {value:.6g} and must be {target.own:.6g}, {target.own / value - 1:+.2%}."
    )


def nearest(target: Numbers, input_norm: float, which: str) -> Proposal:
    """The network of slopes a >= b >= 0 that misses least of the kernel."""

    def built(parameters: np.ndarray) -> Proposal:
        linear, *shares = map(float, parameters)
        return _network(linear, tuple(shares), input_norm, which)

    def miss(parameters: np.ndarray) -> tuple[float, ...]:
        return target.differences(built(parameters).numbers(which))

    linear = max(target.linear, 1e-3 * target.own)
    best = None
    for shares in [*product((0.02, 0.15, 0.3), repeat=2), (0.02,), (0.3,)]:
        ends = ([0.0] * (1 + len(shares)), [math.inf, *[_ORDINARY] * len(shares)])
        scale = [linear, *[0.1] * len(shares)]
        found = scipy.optimize.least_squares(
            miss, [linear, *shares], bounds=ends, x_scale=scale, xtol=1e-12
        )
        if best is None or found.cost < best.cost * (1 - 1e-6):
            best = found
    assert best is not None  # the loop ran
    return built(best.x)


def weights(target: Numbers, which: str) -> list[tuple[float, float]]:
    """Every $(w_1, w_2)$, both not negative, that has $A_1$, $A_2$ and $A_3$."""
    n, of_first, of_second, of_norms = TWO_LAYERS[which]
    square, norms = n * target.square / target.linear, n * target.norms / target.linear
    polynomial = np.polynomial.Polynomial
    first, growth = polynomial([0.0, 1.0]), polynomial([1.0, _K])
    cubic = (square - of_first * first) * growth**2 + of_second * (of_norms * first - norms)
    found = []
    for root in map(complex, cubic.roots()):
        if abs(root.imag) > _REAL:
            continue
        w = _polished(cubic, float(root.real))
        second = (square - of_first * w) * (1 + _K * w) / of_second
        if min(w, second) > -1e-13:
            found.append((max(w, 0.0), max(second, 0.0)))
    return found


def _polished(cubic: np.polynomial.Polynomial, root: float) -> float:
    """Newton steps while they get smaller."""
    slope, last = cubic.deriv(), math.inf
    while True:
        steepness = float(slope(root))
        step = float(cubic(root)) / steepness if steepness else 0.0
        if not abs(step) < last / 2:
            return root
        root, last = root - step, abs(step)


def _candidates(target: Numbers, input_norm: float, which: str) -> list[Proposal]:
    """One layer, then two layers by their condition, ordinary slopes first."""
    share = target.square / target.linear * (1.0 if which == "ck" else 2 / 3)
    one = _network(target.linear, (share,), input_norm, which)
    pairs = sorted(weights(target, which), key=lambda pair: _condition(pair, which))
    return [one, *(_network(target.linear, pair, input_norm, which) for pair in pairs)]


def _condition(pair: tuple[float, float], which: str) -> tuple[bool, float]:
    """Whether a slope is negative, and how far errors of A_2 and A_3 move the solution."""
    _, of_first, of_second, of_norms = TWO_LAYERS[which]
    first, second = pair
    growth = 1 + _K * first
    jacobian = np.array(
        [
            [of_first - of_second * second * _K / growth**2, of_second / growth],
            [of_norms + second * _K, growth],
        ]
    )
    return max(pair) > _ORDINARY * (1 + 1e-12), float(np.linalg.cond(jacobian))


def _is_even(target: Numbers) -> bool:
    return target.linear <= _EVEN * target.own


def _is_met(target: Numbers, proposal: Proposal, which: str) -> bool:
    got = proposal.numbers(which)
    pairs = zip(target.matched, got.matched, strict=True)
    return all(abs(a - b) <= _SAME * target.own for a, b in pairs)


def _network(linear: float, shares: tuple[float, ...], input_norm: float, which: str) -> Proposal:
    r"""The network of these $w$ whose $A_1$ is ``linear``; its first layer keeps the norm."""
    layers = [_layer(w).times(input_norm**2 / (1 + _K * w)) for w in shares]
    plain = network_numbers(layers, which).linear
    layers[-1] = layers[-1].times(linear / plain)
    scales = (input_norm, *(math.sqrt(layer.total) for layer in layers[:-1]))
    activations = tuple(map(_activation, layers, scales))
    negative = [str(i) for i, w in enumerate(shares, start=1) if w > _ORDINARY * (1 + 1e-12)]
    note = f"The left slope is negative in layer {' and '.join(negative)}." if negative else ""
    return Proposal(activations, tuple(layers), note)


def _layer(w: float) -> Energies:
    growth = 1 + _K * w
    return Energies(1.0, w, growth, 1 + math.pi * w, growth)


def _activation(layer: Energies, tau: float) -> Affine:
    straight, bent = math.sqrt(layer.linear) / tau, math.sqrt(math.pi * layer.square) / tau
    right, left = straight + bent, straight - bent
    return Affine(LeakyReLU(left / right), scale=right, shift=-bent * tau * math.sqrt(2 / math.pi))
