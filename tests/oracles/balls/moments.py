"""Moments and Hermite coefficients."""

import math
from functools import partial

from flint import arb, arb_poly, ctx

from balls.activations import fresh, hermite_coefficients, piece_at, tabulated
from balls.certificates import certified, integrate

HERMITE_KS = [0, 1, 2, 3, 4, 5, 10, 25, 50, 99, 100, 150, 199, 200]
MOMENTS = ["phi", "d1", "d2", "d3", "phi_sq", "d1_sq", "phi_sq_d2"]


def expectation(activation, tau, power, order, weight, variant, bits):
    """Integrates in t = tau*x, where the kinks are exact floats."""
    polynomial, degree = weight()
    reach = max(math.sqrt(4 * math.log(2) * bits) + 4, 26.0)
    kink = max((abs(t) for t in activation.kinks), default=0.0) / tau
    if kink < 100:  # beyond, the value is below 1e-400 anyway unless phi lives near 0
        reach = max(reach, 2 * kink + 26)
    reach += 5 * variant
    scale = arb(tau)
    reach_t = float(reach * tau)
    norm = 1 / (2 * arb.pi()).sqrt() / scale
    splits = set(activation.kinks) | {0.0}
    if variant:
        splits |= {-1.37 * tau, 2.11 * tau}

    def f(middle, z, analytic):
        g = piece_at(activation, middle)[order](z, analytic)
        x = z / scale
        return g**power * polynomial(x) * (-x * x / 2).exp() * norm

    value = integrate(f, splits, reach_t)
    length = arb(reach_t) / scale
    bound = 30 * (1 + scale**3) ** 2 * length**5 * (-length * length / 4).exp()
    bound *= arb.fac_ui(degree).sqrt()
    return value + arb(0, bound.upper())


def he_weight(k, normalised):
    cache = {}

    def weight():
        if ctx.prec not in cache:
            coefficients = hermite_coefficients(k, normalised)
            even = arb_poly(coefficients[k % 2 :: 2])
            if k % 2:
                cache[ctx.prec] = lambda x: even(x * x) * x
            else:
                cache[ctx.prec] = lambda x: even(x * x)
        return cache[ctx.prec], (0 if normalised else k)

    return weight


def moment(name, args, k, variant, bits):
    """Ball of expectation(...)/tau^k; args = (tau, power, order, weight)."""
    return expectation(fresh(name), *args, variant, bits) / arb(args[0]) ** k


def moments_of(name, tau):
    activation = fresh(name)
    if not tabulated(activation, tau):
        return None
    row = []
    for quantity in MOMENTS:
        power, order, k = {
            "phi": (1, 0, 0), "d1": (1, 0, 1), "d2": (1, 0, 2), "d3": (1, 0, 3),
            "phi_sq": (2, 0, 0), "d1_sq": (2, 1, 0), "phi_sq_d2": (2, 0, 2),
        }[quantity]  # fmt: skip
        if order and activation.jumps:
            row.append(None)
            continue
        vanishes = power == 1 and activation.hermite_vanishes(k)

        args = (tau, power, order, he_weight(k, normalised=False))
        row.append(certified(partial(moment, name, args, k), vanishes))
    return row


def hermite_of(name, tau):
    activation = fresh(name)
    if not tabulated(activation, tau):
        return None
    row = []
    for k in HERMITE_KS:
        args = (tau, 1, 0, he_weight(k, normalised=True))
        row.append(certified(partial(moment, name, args, 0), activation.hermite_vanishes(k)))
    return row
