"""High-precision reference values for Gaussian expectations of activations.

    python tests/oracles/generate.py OUT.json            # everything
    python tests/oracles/generate.py OUT.json --only moments hermite

Needs python-flint >= 0.7 (Arb ball arithmetic); imports nothing of shoal.  Takes about
9 minutes of CPU time on one core (moments 1, Hermite 2, duals 5, derivatives 1); each
section is written as it is finished, and OUT.json's other sections are kept.

Structure of the JSON
---------------------
All inputs are JSON numbers that round-trip to the exact float64 used (the oracle
works with that exact number; the activations' parameters 0.1, 0.7, ... are also the
exact float64).  All values are decimal strings of 20 digits, ``"0"`` for a value
that is zero or below 1e-400 in magnitude, or ``null`` where the quantity is not
defined.  ``float(s)`` is always finite, and 0.0 where the value underflows.

``activations``
    name -> ``{"definition": ..., "params": {...}, "jumps": bool, "kinks": [...]}``.
``moments``
    ``{"tau": [...], "quantities": [...], "values": {name: [[...] per tau]}}`` with
    quantities, xi ~ N(0,1), everything evaluated at tau*xi,

    * ``phi, d1, d2, d3``: E phi^(k), distributional: E[phi(tau xi) He_k(xi)]/tau^k
    * ``phi_sq``: E phi^2
    * ``d1_sq``: E phi'^2, phi' pointwise almost everywhere (null if phi jumps)
    * ``phi_sq_d2``: E (phi^2)'' = E[phi^2 He_2]/tau^2

    A whole row is null where the activation is not tabulated at that tau.
``hermite``
    ``{"tau": [...], "k": [...], "values": {name: [[c_k per k] per tau]}}``,
    c_k(tau) = E[phi(tau xi) h_k(xi)], h_k = He_k/sqrt(k!).
``duals``
    ``{"triples": [{"a", "b", "c", "rho"}], "values": {name: {"D": [...], "Dp": [...]}}}``
    D = E[phi(u)phi(v)], Dp = E[phi'(u)phi'(v)], (u,v) ~ N(0,[[a,c],[c,b]]), one entry
    per triple.  ``c`` is the float64 nearest to rho*sqrt(ab) that does not exceed it in
    modulus; the exact float64 a, b, c define the value, ``rho`` is only the nominal
    label.  Dp is null if phi jumps, and at a = 0 if phi has a kink at 0.
``dual_derivatives``
    ``{"triples": [...], "quantities": ["a","b","c","cc","ac","ab","aa"],
    "values": {name: [[...] per triple]}}``: dD/da, dD/db, dD/dc, d2D/dc2, d2D/dadc,
    d2D/dadb, d2D/da2 with a, b, c as independent variables (c is the one off-diagonal
    parameter).

How each number is obtained and certified
-----------------------------------------
1-D integrals (moments, Hermite coefficients, duals at c^2 = ab) use Arb's rigorous
adaptive integration, split at the kinks, with a proven bound on the truncated tails
(Cramer: |h_k(x)| <= 1.0865 exp(x^2/4)) added to the ball; working precision and
range are raised until the ball is narrower than 1e-21 of the value (or proves
|value| < 1e-400).  Every number is then computed again at a higher precision, a
longer range and a different splitting, and both balls must overlap.

Duals of all activations whose conditional expectation E[phi(v)|u] is elementary
(piecewise polynomial/exponential, erf, GELU, sin, cos, polynomials) are a rigorous
1-D Arb integral over u of phi(u) E[phi(v)|u], certified as above; the second
computation also exchanges u and v.

Duals of Tanh, Sigmoid, Softplus, Swish and Mish are two-dimensional trapezoidal sums
in ball arithmetic (exponentially convergent: the integrand is analytic in a strip),
on a lattice in (u, v) for moderate and in (u, v - E[v|u]) for strong correlation.
They are computed twice with different steps, offsets and ranges, which must agree to
1e-23 of sqrt(E phi(u)^2 E phi(v)^2).

Second-order derivatives differentiate the bivariate *density* (dp/dc = d2p/dudv,
dp/da = d2p/du2 / 2), i.e. are expectations of phi(u)phi(v) times a polynomial.
They are certified like the duals (Tanh, Softplus: two lattices, 1e-21 of each value).
``check.py`` compares them with high-precision finite differences of D, and the rest
with closed forms, mpmath and Monte Carlo.
"""

import argparse
import json
import math
import re
import sys
import time
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import ClassVar

from flint import acb, arb, arb_mat, arb_poly, ctx

DIGITS = 20
REL_BITS = 72  # 2^-72 = 2e-22: relative radius demanded of every ball
TINY = arb(10) ** -400

TAUS = [1e-3, 0.03, 0.5, 1.0, 2.7, 30.0]
HERMITE_TAUS = [1e-3, 0.5, 1.0, 2.7, 30.0]
HERMITE_KS = [0, 1, 2, 3, 4, 5, 10, 25, 50, 99, 100, 150, 199, 200]
MOMENTS = ["phi", "d1", "d2", "d3", "phi_sq", "d1_sq", "phi_sq_d2"]

NEAR8, NEAR12 = 1 - 1e-8, 1 - 1e-12
TRIPLES = (
    [(1.0, 1.0, r) for r in (-1.0, -NEAR12, -0.99, 0.0, 0.3, 0.9999, NEAR12, 1.0)]
    + [(1e-4, 1e-4, r) for r in (-1.0, -0.999999, 0.9, NEAR8, 1.0)]
    + [(100.0, 100.0, r)
       for r in (-1.0, -NEAR8, -0.999, -0.5, 0.3, 0.999, NEAR8, NEAR12, 1.0)]
    + [(1e-4, 100.0, r) for r in (-0.99, 0.0, 0.9999)]
    + [(0.5, 2.0, r) for r in (-0.5, -1e-3, 0.99, NEAR8)]
    + [(100.0, 3.0, r) for r in (-0.999999, 0.3, 0.99)]
    + [(0.02, 0.7, r) for r in (-0.99, -0.5, 0.9, NEAR12)]
    + [(0.0, 1.0, 0.0)]
)  # fmt: skip
DERIVATIVE_TRIPLES = [
    (1.0, 1.0, 0.3), (1.0, 1.0, -0.99), (0.5, 2.0, -0.7), (0.02, 0.7, 0.9), (100.0, 3.0, 0.5),
]  # fmt: skip
DERIVATIVES = ["a", "b", "c", "cc", "ac", "ab", "aa"]
DERIVATIVE_NAMES = ["ReLU", "LeakyReLU", "HardTanh", "Tanh", "ELU_0.5", "Softplus", "ShiftedReLU"]


# --------------------------------------------------------------------------- activations
#
# An activation is a list of kinks t_1 < ... < t_m and m+1 analytic pieces; a piece is a
# pair (phi, phi') of functions of (z, analytic) with z an acb.  ``conditional(m, s2, d)``
# is E[phi^(d)(v)], v ~ N(m, s2), where elementary.  ``terms`` (piecewise
# exponential-polynomials only): for every piece a list of (coefficient, power, rate).


class Activation:
    jumps = False
    kinks = ()
    params: ClassVar = {}
    small = False  # tabulate at tau (or sqrt a, sqrt b) in [0.5, 2] only
    # phi = polynomial of degree ``degree`` + a function of parity ``parity`` (0 even,
    # 1 odd, None neither, -1 nothing), from which exact zeros follow.
    degree, parity = -1, None

    def __init__(self, name, definition, **attributes):
        self.name, self.definition = name, definition
        for key, value in attributes.items():
            setattr(self, key, value)

    def hermite_vanishes(self, k):
        if k <= self.degree or self.parity is None:
            return False
        return self.parity == -1 or k % 2 != self.parity


def exponential_polynomial(name, definition, kinks, terms, **attributes):
    """Activation with pieces sum coef * x^power * exp(rate x)."""

    def differentiate(piece):
        out = []
        for coef, power, rate in piece:
            if power:
                out.append((coef * power, power - 1, rate))
            if rate:
                out.append((coef * rate, power, rate))
        return out

    both = (terms, [differentiate(p) for p in terms])

    def evaluate(piece):
        def f(z, _):
            total = acb(0)
            for coef, power, rate in piece:
                term = arb(coef) * z**power if power else acb(coef)
                total += term * (z * rate).exp() if rate else term
            return total

        return f

    def conditional(m, s2, d, extra=0):
        """E[phi^(d)(v) v^j] for j = 0..extra (a list if extra), v ~ N(m, s2)."""
        out = [acb(0)] * (extra + 1)
        for i, piece in enumerate(both[d]):
            lo = kinks[i - 1] if i else None
            hi = kinks[i] if i < len(kinks) else None
            for rate in {term[2] for term in piece}:
                group = [t for t in piece if t[2] == rate]
                top = max(t[1] for t in group) + extra
                mean = m + rate * s2
                partial = truncated_moments(mean, s2, lo, hi, top)
                scale = (m * rate + s2 * rate * rate / 2).exp() if rate else 1
                for coef, power, _ in group:
                    for j in range(extra + 1):
                        out[j] += arb(coef) * scale * partial[power + j]
        return out if extra else out[0]

    pieces = [(evaluate(p), evaluate(q)) for p, q in zip(*both, strict=True)]
    return Activation(name, definition, kinks=kinks, pieces=pieces, conditional=conditional,
                      **attributes)  # fmt: skip


def truncated_moments(m, s2, lo, hi, top):
    """[E[v^j; lo < v < hi] for j <= top], v ~ N(m, s2); None is infinite."""
    s = s2.sqrt()

    def density(t):
        return (-((m - t) ** 2) / (2 * s2)).exp() / (s * (2 * arb.pi()).sqrt())

    r = s * arb(2).sqrt()
    if lo is None and hi is None:
        zeroth = acb(1)
    elif hi is None:
        zeroth = ((lo - m) / r).erfc() / 2
    elif lo is None:
        zeroth = ((m - hi) / r).erfc() / 2
    else:
        zeroth = (((hi - m) / r).erf() - ((lo - m) / r).erf()) / 2
    ends = []
    if lo is not None:
        ends.append((lo, s2 * density(arb(lo))))
    if hi is not None:
        ends.append((hi, -s2 * density(arb(hi))))
    moments = [zeroth]
    for j in range(1, top + 1):
        value = m * moments[j - 1]
        if j > 1:
            value += (j - 1) * s2 * moments[j - 2]
        for t, weight in ends:
            value += arb(t) ** (j - 1) * weight
        moments.append(value)
    return moments


def normal_cdf(z):
    return (-z / arb(2).sqrt()).erfc() / 2


def normal_pdf(z):
    return (-z * z / 2).exp() / (2 * arb.pi()).sqrt()


def gelu_conditional(m, s2, d):
    v = 1 + s2
    z = m / v.sqrt()
    if d == 0:
        return m * normal_cdf(z) + s2 * normal_pdf(z) / v.sqrt()
    return normal_cdf(z) + m / v * normal_pdf(z) / v.sqrt()


def erf_conditional(m, s2, d):
    v = 1 + 2 * s2
    if d == 0:
        return (m / v.sqrt()).erf()
    return 2 / (arb.pi() * v).sqrt() * (-m * m / v).exp()


def sigmoid(z):
    return 1 / (1 + (-z).exp())


def mish_parts(z):
    """tanh(softplus(z)) and its derivative."""
    if z.real > 0:
        w = (-z).exp()
        d = 1 + 2 * w * (1 + w)
        return (1 + 2 * w) / d, 4 * w * w * (1 + w) / (d * d)
    e = z.exp()
    n = e * (e + 2)
    return n / (n + 2), 4 * e * (e + 1) / (n + 2) ** 2


def mish_derivative(z, _):
    t, dt = mish_parts(z)
    return t + z * dt


def softplus(z, analytic):
    # On the right half-plane log(1+e^z) = z + log(1+e^-z) keeps the ball narrow.
    if z.real > 0:
        return z + (1 + (-z).exp()).log(analytic=analytic)
    w = z.exp()
    plain = (1 + w).log(analytic=analytic)  # not finite if the ball meets the branch cut
    return w.log1p() if plain.is_finite() else plain


def hermite_coefficients(k, normalised=True):
    """Integer coefficients (low to high) of He_k, as an arb list, divided by sqrt(k!)."""
    previous, current = [0], [1]
    for j in range(k):
        following = [0, *current]
        for i, value in enumerate(previous):
            following[i] -= j * value
        previous, current = current, following
    scale = arb.fac_ui(k).rsqrt() if normalised else arb(1)
    return [arb(value) * scale for value in current]


HERMITE_SERIES = (0.1, 0.7, -0.3, 0.2)


def build_activations():
    """All activations; to be called again after a change of precision."""
    series = [arb(0)] * 4
    for k, coefficient in enumerate(HERMITE_SERIES):
        for i, value in enumerate(hermite_coefficients(k)):
            series[i] += arb(coefficient) * value
    slope = arb(0.1)
    shift = 0.7
    out = [
        exponential_polynomial(
            "ReLU", "max(x, 0)", (0.0,), [[], [(1, 1, 0)]], degree=1, parity=0),
        exponential_polynomial(
            "LeakyReLU", "max(x, 0) + slope*min(x, 0)", (0.0,), [[(slope, 1, 0)], [(1, 1, 0)]],
            degree=1, parity=0, params={"slope": 0.1}),
        Activation(
            "Tanh", "tanh(x)", parity=1,
            pieces=[(lambda z, _: z.tanh(), lambda z, _: z.sech() ** 2)]),
        exponential_polynomial(
            "HardTanh", "clip(x, -1, 1)", (-1.0, 1.0), [[(-1, 0, 0)], [(1, 1, 0)], [(1, 0, 0)]],
            parity=1),
        Activation(
            "Swish", "x*sigmoid(x)", degree=1, parity=0,
            pieces=[(lambda z, _: z * sigmoid(z),
                     lambda z, _: sigmoid(z) * (1 + z * sigmoid(-z)))]),
        Activation(
            "GELU", "x*Phi(x), Phi the standard normal distribution function", degree=1, parity=0,
            pieces=[(lambda z, _: z * normal_cdf(z),
                     lambda z, _: normal_cdf(z) + z * normal_pdf(z))],
            conditional=gelu_conditional),
        Activation(
            "Erf", "erf(x)", parity=1,
            pieces=[(lambda z, _: z.erf(), lambda z, _: 2 * (-z * z).exp() / arb.pi().sqrt())],
            conditional=erf_conditional),
        Activation(
            "Softplus", "log(1 + exp(x))", degree=1, parity=0,
            pieces=[(softplus, lambda z, _: sigmoid(z))]),
        Activation(
            "Sigmoid", "1/(1 + exp(-x))", degree=0, parity=1,
            pieces=[(lambda z, _: sigmoid(z), lambda z, _: sigmoid(z) * sigmoid(-z))]),
        exponential_polynomial(
            "ELU_1", "x if x > 0 else alpha*(exp(x) - 1)", (0.0,),
            [[(1, 0, 1), (-1, 0, 0)], [(1, 1, 0)]], params={"alpha": 1.0}),
        exponential_polynomial(
            "ELU_0.5", "x if x > 0 else alpha*(exp(x) - 1)", (0.0,),
            [[(0.5, 0, 1), (-0.5, 0, 0)], [(1, 1, 0)]], params={"alpha": 0.5}),
        Activation(
            "Sine", "sin(x)", parity=1,
            pieces=[(lambda z, _: z.sin(), lambda z, _: z.cos())],
            conditional=lambda m, s2, d: (-s2 / 2).exp() * (m.cos() if d else m.sin())),
        Activation(
            "Cosine", "cos(x)", parity=0,
            pieces=[(lambda z, _: z.cos(), lambda z, _: -z.sin())],
            conditional=lambda m, s2, d: (-s2 / 2).exp() * (-m.sin() if d else m.cos())),
        exponential_polynomial("Identity", "x", (), [[(1, 1, 0)]], degree=1, parity=-1),
        exponential_polynomial(
            "HermiteSeries", "sum_k coefficients[k]*h_k(x), h_k = He_k/sqrt(k!)", (),
            [[(value, i, 0) for i, value in enumerate(series)]], degree=3, parity=-1, small=True,
            params={"coefficients": list(HERMITE_SERIES)}),
        Activation(
            "Mish", "x*tanh(log(1 + exp(x)))",
            pieces=[(lambda z, _: z * mish_parts(z)[0], mish_derivative)]),
        exponential_polynomial(
            "ShiftedReLU", "max(x - shift, 0)", (shift,), [[], [(1, 1, 0), (-arb(shift), 0, 0)]],
            params={"shift": shift}),
        exponential_polynomial(
            "Step", "1 if x > threshold else 0", (0.3,), [[], [(1, 0, 0)]], jumps=True,
            params={"threshold": 0.3}),
        exponential_polynomial(
            "SquaredReLU", "max(x, 0)**2", (0.0,), [[], [(1, 2, 0)]], degree=2, parity=1),
        exponential_polynomial(
            "AbsCubed", "abs(x)**3", (0.0,), [[(-1, 3, 0)], [(1, 3, 0)]], parity=0),
    ]  # fmt: skip
    return {activation.name: activation for activation in out}


LATTICE_NAMES = ["Tanh", "Sigmoid", "Softplus", "Swish", "Mish"]


def piece_at(activation, t):
    """The piece of the activation that holds the float (or Fraction) t, not a kink."""
    return activation.pieces[sum(t > kink for kink in activation.kinks)]


# --------------------------------------------------------------------------- rigorous 1-D


class UncertifiedError(Exception):
    pass


def integrate(f, splits, reach):
    """Rigorous integral over [-reach, reach] of f(middle, x, analytic), split at the floats.

    ``middle`` is the middle of the present interval, from which f finds its piece.
    """
    points = sorted({-reach, reach} | {x for x in splits if -reach < x < reach})
    total = arb(0)
    for lo, hi in pairwise(points):
        part = acb.integral(partial(f, (lo + hi) / 2), arb(lo), arb(hi),
                            rel_tol=arb(2) ** -(ctx.prec * 3 // 4),
                            abs_tol=arb(2) ** -(ctx.prec + 1500))  # fmt: skip
        if not part.is_finite():
            raise UncertifiedError
        total += part.real
    return total


def certified(compute, vanishes=False, start=192):
    """compute(variant, bits) -> ball; raise the precision until it is certified.

    Variants 0 and 1 are different computations of the same number; both balls must
    overlap.  Returns the decimal string.
    """
    bits = start
    while True:
        ctx.prec = bits
        value = compute(0, bits)
        if vanishes and not value.contains(0):
            raise UncertifiedError(f"{value} should vanish")
        if value.abs_upper() < (arb(10) ** -25 if vanishes else TINY):
            return "0"
        if not vanishes and value.rel_accuracy_bits() >= REL_BITS:
            break
        bits *= 2
        if bits > 4000:
            raise UncertifiedError(str(value))
    bits = bits * 3 // 2
    ctx.prec = bits
    again = compute(1, bits)
    if not (again.overlaps(value) and again.rel_accuracy_bits() >= REL_BITS):
        raise UncertifiedError(f"{value} {again}")
    return decimal(value.intersection(again))


def decimal(value):
    return value.mid().str(DIGITS, radius=False)


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


def tabulated(activation, *taus):
    return not activation.small or all(0.5 <= tau <= 2 for tau in taus)


def fresh(name):
    """The activation with its constants at the present precision."""
    return build_activations()[name]


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


# --------------------------------------------------------------------------- duals


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


# --------------------------------------------------------------------------- 2-D lattices

POLE = math.pi / 2 * 0.97  # half-width of the strip: tanh has the nearest poles
LATTICE_BITS = 224


def lattice_features(v):
    """[phi(v)] + [phi'(v)] in the order of LATTICE_NAMES, v an arb."""
    e = v.exp()
    logistic = e / (1 + e)
    tanh = v.tanh()
    rest = logistic / (1 + e)
    n = e * (e + 2)
    t, dt = n / (n + 2), 4 * e * (e + 1) / (n + 2) ** 2
    return [tanh, logistic, e.log1p(), v * logistic, v * t,
            1 - tanh * tanh, rest, logistic, logistic + v * rest, t + v * dt]  # fmt: skip


def step(sigma, nats):
    """Trapezoidal step with aliasing error about exp(-nats) for a Gaussian factor of
    standard deviation sigma and poles at distance POLE."""
    if sigma * math.sqrt(2 * nats) <= POLE:
        return 2 * math.pi * sigma / math.sqrt(2 * nats)
    return 2 * math.pi * POLE / (nats + POLE**2 / (2 * sigma**2))


class Lattice:
    """Trapezoidal sums of F(u) G(v) p(u, v); a >= b after a possible exchange."""

    def __init__(self, a, b, c, variant):
        self.nats = 84 if variant else 74
        self.reach = 14.0 if variant else 13.2
        self.offset = 0.375 if variant else 0.0  # i + offset must be exact
        self.a, self.b, self.c = a, b, c
        one = Fraction(a) * Fraction(b)
        self.det = one - Fraction(c) ** 2
        self.rest = math.sqrt(float(self.det / one))  # sqrt(1 - rho^2)
        self.sw = math.sqrt(b) * self.rest

    def columns(self, deviation, h):
        n = math.ceil(self.reach * deviation / h)
        return [(i + self.offset) for i in range(-n, n + 1)]

    def cost_sheared(self):
        hu, hw = step(math.sqrt(self.a), self.nats), step(self.sw, self.nats)
        return 4 * self.reach**2 * math.sqrt(self.a) / hu * self.sw / hw * 18

    def cost_plain(self):
        hu = step(math.sqrt(self.a) * self.rest, self.nats)
        hv = step(self.sw, self.nats)
        width = self.sw + abs(self.c) / math.sqrt(self.a)  # the matrix is stored in full
        return 4 * self.reach**2 * math.sqrt(self.a) / hu * width / hv

    def sum(self, features):
        """[E f(u) f(v) for f in features]."""
        if self.cost_sheared() < self.cost_plain():
            return self.sum_sheared(features)
        rows = self.matrix(features)
        return [rows[i][i] for i in range(len(rows))]

    def sum_sheared(self, features):
        """Lattice in (u, w = v - (c/a) u)."""
        a, slope = arb(self.a), arb(self.c) / arb(self.a)
        s2 = arb(self.det.numerator) / arb(self.det.denominator) / a
        hu, hw = step(math.sqrt(self.a), self.nats), step(self.sw, self.nats)
        inner = []
        for j in self.columns(self.sw, hw):
            w = arb(j) * arb(hw)
            inner.append((w, (-w * w / (2 * s2)).exp()))
        totals = None
        for i in self.columns(math.sqrt(self.a), hu):
            u = arb(i) * arb(hu)
            outer, mean = features(u), slope * u
            density = (-u * u / (2 * a)).exp()
            part = [arb(0)] * len(outer)
            for w, weight in inner:
                part = [x + weight * y for x, y in zip(part, features(mean + w), strict=True)]
            part = [density * x * y for x, y in zip(part, outer, strict=True)]
            totals = part if totals is None else [x + y for x, y in zip(totals, part, strict=True)]
        norm = arb(hu) * arb(hw) / (2 * arb.pi() * (a * s2).sqrt())
        return [norm * x for x in totals]

    def matrix(self, features):
        """The matrix E f_i(u) f_j(v), by the lattice in (u, v) and a banded density."""
        det = arb(self.det.numerator) / arb(self.det.denominator)
        q11, q22, q12 = arb(self.b) / det, arb(self.a) / det, -arb(self.c) / det
        su = math.sqrt(self.a)
        hu, hv = step(su * self.rest, self.nats), step(self.sw, self.nats)
        half = math.ceil(self.reach * self.sw / hv)
        us = [arb(i) * arb(hu) for i in self.columns(su, hu)]
        slope = self.c / self.a
        most = math.ceil(abs(slope) * float(us[-1]) / hv) + half + 2
        h = arb(hv)
        vs = [arb(j + self.offset) * h for j in range(-most, most + 1)]
        right = arb_mat(len(vs), len(features(vs[0])), [x for v in vs for x in features(v)])
        decay = (-q22 * h * h).exp()
        total = None
        zero, block = arb(0), 64
        for start in range(0, len(us), block):
            chunk, weights = us[start : start + block], []
            for u in chunk:
                centre = round(slope * float(u) / hv) + most
                row = [zero] * len(vs)
                v = vs[centre]
                top = (-(q11 * u * u + q22 * v * v) / 2 - q12 * u * v).exp()
                row[centre] = top
                for sign in (1, -1):
                    ratio = (-sign * h * (q22 * v + q12 * u) - q22 * h * h / 2).exp()
                    weight, j = top, centre
                    for _ in range(half):
                        j += sign
                        if not 0 <= j < len(vs):
                            break
                        weight = weight * ratio
                        ratio = ratio * decay
                        row[j] = weight
                weights += row
            inner = arb_mat(len(chunk), len(vs), weights) * right
            left = [features(u) for u in chunk]
            left = arb_mat(len(chunk), len(left[0]), [x for row in left for x in row])
            part = left.transpose() * inner
            total = part if total is None else total + part
        norm = arb(hu) * h * (1 / det).sqrt() / (2 * arb.pi())
        return [[x * norm for x in row] for row in total.tolist()]


def agreeing(first, second, scale, what, tolerance=1e-23):
    """Certify two lattice sums against one another; returns decimal strings."""
    out = []
    for x, y, s in zip(first, second, scale, strict=True):
        gap = float((x - y).abs_upper())
        if gap > tolerance * float(s):
            raise UncertifiedError(f"{what}: {x} {y}")
        agreeing.worst = max(agreeing.worst, gap / float(s))
        out.append("0" if float(y.abs_upper()) < 1e-23 * float(s) else decimal(y))
    return out


agreeing.worst = 0.0


def lattice_duals(a, b, c):
    """{name: (D, Dp)} for LATTICE_NAMES at one non-degenerate triple."""
    ctx.prec = LATTICE_BITS
    big, small = max(a, b), min(a, b)
    sums = [Lattice(big, small, c, variant).sum(lattice_features) for variant in (0, 1)]
    scale = []
    for order in (0, 1):
        for name in LATTICE_NAMES:
            norms = [expectation(fresh(name), math.sqrt(x), 2, order, he_weight(0, True), 0, 192)
                     for x in (a, b)]  # fmt: skip
            scale.append((norms[0] * norms[1]).sqrt())
    values = agreeing(*sums, scale, (a, b, c))
    count = len(LATTICE_NAMES)
    return {name: (values[i], values[count + i]) for i, name in enumerate(LATTICE_NAMES)}


# --------------------------------------------------------------------------- derivatives


def density_polynomials(a, b, c):
    """For every derivative the bivariate polynomial {(i, j): coef of u^i v^j} whose
    product with the density p is that derivative of p."""
    det = arb(a) * arb(b) - arb(c) ** 2
    q = [[arb(b) / det, -arb(c) / det], [-arb(c) / det, arb(a) / det]]
    g = [{(1, 0): q[0][0], (0, 1): q[0][1]}, {(1, 0): q[1][0], (0, 1): q[1][1]}]

    def times(x, y):
        out = {}
        for (i, j), s in x.items():
            for (k, m), t in y.items():
                out[i + k, j + m] = out.get((i + k, j + m), arb(0)) + s * t
        return out

    def add(x, y, factor=1):
        out = dict(x)
        for key, value in y.items():
            out[key] = out.get(key, arb(0)) + factor * value
        return out

    def derivative(indices):
        """(partial of p along the index list)/p, by p_i = -g_i p and g_i,j = q_ij."""
        out = {(0, 0): arb(1)}
        for i in indices:
            following = times({key: -value for key, value in g[i].items()}, out)
            for (k, m), value in out.items():
                power = (k, m)[i]
                if power:
                    key = (k - 1, m) if i == 0 else (k, m - 1)
                    following = add(following, {key: power * value})
            out = following
        return out

    half, quarter = arb(1) / 2, arb(1) / 4
    plan = {
        "a": ([0, 0], half), "b": ([1, 1], half), "c": ([0, 1], 1),
        "cc": ([0, 0, 1, 1], 1), "ac": ([0, 0, 0, 1], half), "ab": ([0, 0, 1, 1], quarter),
        "aa": ([0, 0, 0, 0], quarter),
    }  # fmt: skip
    return {
        key: {power: value * factor for power, value in derivative(indices).items()}
        for key, (indices, factor) in plan.items()
    }


def mixed_moments(activation, a, b, c, variant, bits):
    """{(i, j): E[phi(u) u^i phi(v) v^j], i + j <= 4 even} by rigorous 1-D integrals.

    Integrating the monomials one by one keeps the balls narrow; the polynomials of
    ``density_polynomials`` would cancel heavily under the integral.
    """
    x, y = (b, a) if variant else (a, b)
    reach = max(math.sqrt(4 * math.log(2) * bits) + 8, 36.0) + variant
    root = math.sqrt(x)
    slope, s2 = arb(c) / arb(x), arb(y) - arb(c) ** 2 / arb(x)
    norm = 1 / (2 * arb.pi() * arb(x)).sqrt()
    splits = set(activation.kinks) | {0.0} | {t * x / c for t in activation.kinks}
    growth = 1000 * ((1 + arb(a)) * (1 + arb(b))) ** 4
    tail = arb(0, (growth * dual_tail(a, b, reach)).upper())

    def f(i, j, middle, z, analytic):
        outer = piece_at(activation, middle)[0](z, analytic)
        inner = activation.conditional(slope * z, s2, 0, extra=max(j, 1))[j]
        return z**i * outer * inner * (-z * z / (2 * arb(x))).exp() * norm

    out = {}
    for i in range(5):
        for j in range(i % 2, 5 - i, 2):
            key = (j, i) if variant else (i, j)
            out[key] = integrate(partial(f, i, j), splits, reach * root) + tail
    return out


def derivatives_easy(name, a, b, c):
    """Second-order derivatives by the rigorous 1-D integrals."""
    cache = {}

    def compute(quantity, variant, bits):
        if (variant, bits) not in cache:
            cache[variant, bits] = mixed_moments(fresh(name), a, b, c, variant, bits)
        moments = cache[variant, bits]
        polynomial = density_polynomials(a, b, c)[quantity]
        return sum((value * moments[key] for key, value in polynomial.items()), arb(0))

    return [certified(partial(compute, quantity)) for quantity in DERIVATIVES]


def derivatives_lattice(a, b, c):
    """{name: row} for Tanh and Softplus by the (u, v) lattice."""
    ctx.prec = LATTICE_BITS
    names = ["Tanh", "Softplus"]
    places = [LATTICE_NAMES.index(name) for name in names]

    def features(v):
        values = lattice_features(v)
        return [values[place] * v**j for place in places for j in range(5)]

    exchange = a < b
    x, y = (b, a) if exchange else (a, b)
    results = []
    for variant in (0, 1):
        lattice = Lattice(x, y, c, variant)
        lattice.reach += 1.0
        matrix = lattice.matrix(features)
        rows = {}
        for index, name in enumerate(names):
            rows[name] = []
            for quantity in DERIVATIVES:
                total = arb(0)
                for (i, j), value in density_polynomials(a, b, c)[quantity].items():
                    if exchange:
                        i, j = j, i
                    total += value * matrix[5 * index + i][5 * index + j]
                rows[name].append(total)
        results.append(rows)
    return {
        name: agreeing(results[0][name], results[1][name], [abs(x) for x in results[1][name]],
                       (name, a, b, c), tolerance=1e-21)
        for name in names
    }  # fmt: skip


# --------------------------------------------------------------------------- main


def describe():
    return {
        name: {"definition": activation.definition, "params": activation.params,
               "kinks": list(activation.kinks), "jumps": activation.jumps}
        for name, activation in build_activations().items()
    }  # fmt: skip


def section_moments():
    values = {}
    for name in build_activations():
        values[name] = [moments_of(name, tau) for tau in TAUS]
        progress("moments", name)
    return {"tau": TAUS, "quantities": MOMENTS, "values": values}


def section_hermite():
    values = {}
    for name in build_activations():
        values[name] = [hermite_of(name, tau) for tau in HERMITE_TAUS]
        progress("hermite", name)
    return {"tau": HERMITE_TAUS, "k": HERMITE_KS, "values": values}


def listed(entries):
    return [dict(zip("abc", triple(*entry), strict=True), rho=entry[2]) for entry in entries]


def section_duals():
    triples = [triple(*entry) for entry in TRIPLES]
    values = {name: {"D": [], "Dp": []} for name in build_activations()}
    for a, b, c in triples:
        hard = {}
        if a and not degenerate(a, b, c):
            hard = lattice_duals(a, b, c)
        for name, activation in build_activations().items():
            for order, key in enumerate(("D", "Dp")):
                if name in hard:
                    value = hard[name][order]
                elif not tabulated(activation, math.sqrt(a), math.sqrt(b)):
                    value = None
                else:
                    value = easy_dual(name, a, b, c, order)
                values[name][key].append(value)
        progress("duals", f"a={a} b={b} c={c!r}")
    return {"triples": listed(TRIPLES), "values": values}


def section_derivatives():
    triples = [triple(*entry) for entry in DERIVATIVE_TRIPLES]
    values = {name: [] for name in DERIVATIVE_NAMES}
    for a, b, c in triples:
        hard = derivatives_lattice(a, b, c)
        for name in DERIVATIVE_NAMES:
            values[name].append(hard[name] if name in hard else derivatives_easy(name, a, b, c))
        progress("derivatives", f"a={a} b={b} c={c!r}")
    return {"triples": listed(DERIVATIVE_TRIPLES), "quantities": DERIVATIVES, "values": values}


SECTIONS = {
    "moments": section_moments,
    "hermite": section_hermite,
    "duals": section_duals,
    "dual_derivatives": section_derivatives,
}
START = time.time()


def progress(*what):
    print(f"{time.time() - START:8.1f}s", *what, file=sys.stderr, flush=True)  # noqa: T201


def compact(result):
    """JSON with every innermost list or object on one line."""

    def join(match):
        return re.sub(r"\s+", " ", match[0]).replace("[ ", "[").replace(" ]", "]")

    text = json.dumps(result, indent=1)
    return re.sub(r"\[\s[^\[\]{}]*\]|\{\s[^\[\]{}]*\}", join, text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    arguments = parser.parse_args()
    try:
        with open(arguments.out) as handle:
            result = json.load(handle)
    except FileNotFoundError:
        result = {}
    result["activations"] = describe()
    for name in arguments.only:
        result[name] = SECTIONS[name]()
        with open(arguments.out, "w") as handle:
            handle.write(compact(result))
    progress("done; worst disagreement of the lattice sums", agreeing.worst)


if __name__ == "__main__":
    main()
