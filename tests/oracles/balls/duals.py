"""Duals by rigorous integrals in one dimension."""

import math
from fractions import Fraction
from functools import partial

from flint import acb, arb

from balls.activations import fresh, piece_at
from balls.certificates import TINY, certified, integrate
from balls.moments import expectation, he_weight


def triple(a, b, rho):
    """(a, b, c): c the float64 nearest to rho*sqrt(ab) with |c| <= |rho| sqrt(ab)."""
    square = Fraction(rho) ** 2 * Fraction(a) * Fraction(b)
    c = abs(rho) * math.sqrt(a * b)
    while Fraction(c) ** 2 > square:
        c = math.nextafter(c, 0.0)
    while Fraction(math.nextafter(c, math.inf)) ** 2 <= square:
        c = math.nextafter(c, math.inf)
    return a, b, math.copysign(c, rho) if c else 0.0


def degenerate(a, b, c):
    return Fraction(a) * Fraction(b) == Fraction(c) ** 2


def dual_tail(a, b, reach):
    """Bound on E|phi(u)phi(v)| over |u| > reach*sqrt(a), for |phi|, |phi'| <= 3(1+|x|^3).

    Cauchy-Schwarz twice, E(1+|u|^3)^4 <= 8(1+10395 a^6), P(|xi|>reach) <= exp(-reach^2/2).
    """
    x, y = arb(a), arb(b)
    return 20000 * (1 + x * x) * (1 + y * y) * (-(arb(reach) ** 2) / 4).exp()


def dual_ball(activation, a, b, c, order, variant, bits):
    """Ball of E[phi^(order)(u) phi^(order)(v)] by a 1-D integral over u."""
    if variant and not degenerate(a, b, c):
        a, b = b, a
    root = math.sqrt(a)
    far = max((abs(t) for t in activation.kinks), default=0.0) / math.sqrt(min(a, b))
    reach = max(math.sqrt(4 * math.log(2) * bits) + 6, 30.0, min(2 * far + 26, 200.0)) + variant
    slope = arb(c) / arb(a)
    s2 = arb(b) - arb(c) ** 2 / arb(a)
    norm = 1 / (2 * arb.pi() * arb(a)).sqrt()
    splits = set(activation.kinks) | {0.0}
    same = degenerate(a, b, c)
    if same:
        assert abs(c) == a == b
        sign = 1 if c > 0 else -1
        splits |= {-t for t in activation.kinks}
    elif c:
        splits |= {t * a / c for t in activation.kinks}
    if variant:
        splits |= {-1.37 * root, 2.11 * root}

    def f(middle, z, analytic):
        outer = piece_at(activation, middle)[order](z, analytic)
        density = (-z * z / (2 * arb(a))).exp() * norm
        if same:
            return outer * piece_at(activation, sign * middle)[order](sign * z, analytic) * density
        return outer * activation.conditional(slope * z, s2, order) * density

    value = integrate(f, splits, reach * root)
    return value + arb(0, dual_tail(a, b, reach).upper())


def dual_at_zero(name, b, order, variant, bits):
    """Ball of the dual at a = c = 0: phi(0) E phi(v), the second factor as a moment."""
    activation = fresh(name)
    weight = he_weight(0, normalised=True)
    return value_at_zero(activation, order) * expectation(
        activation, math.sqrt(b), 1, order, weight, variant, bits
    )


def value_at_zero(activation, order):
    piece = activation.pieces[sum(kink < 0 for kink in activation.kinks)]
    return piece[order](acb(0), False).real


def dual_vanishes(activation, a, b, c, order):
    """Exact zeros: an odd phi^(order) at c = 0, disjoint supports at c = -a."""
    parity = activation.parity
    if activation.degree < 0 and parity in (0, 1) and c == 0 and (parity + order) % 2 == 1:
        return True
    if activation.name == "Identity" and order == 0 and c == 0:
        return True
    supports = ("ReLU", "ShiftedReLU", "Step", "SquaredReLU")
    return degenerate(a, b, c) and c < 0 and activation.name in supports


def underflows(activation, a, b, c):
    """Proves D, Dp < 1e-400 for phi supported on x > t > 0 and nearly opposite u, v.

    E[phi(u)phi(v)] <= sqrt(E[phi(u)^2 phi(v)^2] P(u > t, v > t)), and for l, m >= 0
    P(u > t, v > t) <= P(lu + mv > (l+m)t), here with l = b - c, m = a - c.
    """
    if activation.name not in ("ShiftedReLU", "Step") or c >= 0 or degenerate(a, b, c):
        return False
    t, det = arb(activation.kinks[0]), arb(a) * arb(b) - arb(c) ** 2
    exponent = t * t * (arb(a) + arb(b) - 2 * arb(c)) / (2 * det)
    return 20000 * (1 + arb(a) ** 2) * (1 + arb(b) ** 2) * (-exponent / 2).exp() < TINY


def easy_dual(name, a, b, c, order):
    """Decimal string of D (order 0) or Dp (order 1) by rigorous 1-D integrals, or None."""
    activation = fresh(name)
    if order and activation.jumps:
        return None
    vanishes = dual_vanishes(activation, a, b, c, order)
    if a == 0:
        smooth = name in ("ELU_1", "SquaredReLU", "AbsCubed")  # phi' is continuous at 0
        if order and 0.0 in activation.kinks and not smooth:
            return None
        vanishes = vanishes or bool(value_at_zero(activation, order).is_zero())
        assert b == 1.0  # so that sqrt(b) is a float64
        return certified(partial(dual_at_zero, name, b, order), vanishes)
    if underflows(activation, a, b, c):
        return "0"
    return certified(lambda *how: dual_ball(fresh(name), a, b, c, order, *how), vanishes)
