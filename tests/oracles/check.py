"""Independent checks of the reference values; nothing here is needed by the test-suite.

    python tests/oracles/check.py tests/oracles/reference.json

Needs mpmath (with gmpy2 for speed), numpy, and python-flint for the finite differences
only.  Prints the largest disagreement of every check and fails if one is too large.
Takes about 9 minutes; names after the file (closed_duals price monte_carlo mehler hermite
moments derivatives) choose single checks.

* moments: mpmath quadrature of its own definitions of the activations;
* Hermite coefficients: closed forms (ReLU, squared ReLU, |x|^3, erf, sin, cos, step,
  shifted ReLU, identity), mpmath quadrature for the others;
* duals: closed forms (arc-cosine kernels, arcsine, GELU, exponentials, Isserlis);
  Mehler series with coefficients by mpmath for the lattice activations at moderate
  variances; Price's theorem towards rho = +-1; softplus' = sigmoid; Monte Carlo for all;
* second-order derivatives: Richardson-extrapolated finite differences of D at exact
  float64 steps, and dD/dc = Dp (Price).
"""

import json
import math
import sys
import time
from fractions import Fraction
from itertools import pairwise

import generate
import mpmath as mp
import numpy as np
from flint import ctx
from mpmath import mpf

mp.mp.dps = 40
HALF = mpf(1) / 2


def say(*what):
    print(*what, flush=True)  # noqa: T201


# --------------------------------------------------------------------------- definitions
# phi, phi', kinks: mpmath, written without regard to generate.py


def sigma(x):
    return 1 / (1 + mp.exp(-x))


def cdf(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def pdf(x):
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def series(x):
    c = [mpf(v) for v in (0.1, 0.7, -0.3, 0.2)]
    return c[0] + c[1] * x + c[2] * (x**2 - 1) / mp.sqrt(2) + c[3] * (x**3 - 3 * x) / mp.sqrt(6)


def series1(x):
    c = [mpf(v) for v in (0.1, 0.7, -0.3, 0.2)]
    return c[1] + c[2] * 2 * x / mp.sqrt(2) + c[3] * (3 * x**2 - 3) / mp.sqrt(6)


def gate(x):
    return mp.tanh(mp.log1p(mp.exp(x)))


S1, A5, T7, T3 = mpf(0.1), HALF, mpf(0.7), mpf(0.3)
PHI = {
    "ReLU": (lambda x: max(x, 0), lambda x: mpf(x > 0), [0]),
    "LeakyReLU": (lambda x: x if x > 0 else S1 * x, lambda x: 1 if x > 0 else S1, [0]),
    "Tanh": (mp.tanh, lambda x: mp.sech(x) ** 2, []),
    "HardTanh": (lambda x: max(-1, min(1, x)), lambda x: mpf(abs(x) < 1), [-1, 1]),
    "Swish": (lambda x: x * sigma(x), lambda x: sigma(x) + x * sigma(x) * sigma(-x), []),
    "GELU": (lambda x: x * cdf(x), lambda x: cdf(x) + x * pdf(x), []),
    "Erf": (mp.erf, lambda x: 2 / mp.sqrt(mp.pi) * mp.exp(-x * x), []),
    "Softplus": (lambda x: mp.log1p(mp.exp(x)), sigma, []),
    "Sigmoid": (sigma, lambda x: sigma(x) * sigma(-x), []),
    "ELU_1": (lambda x: x if x > 0 else mp.expm1(x), lambda x: 1 if x > 0 else mp.exp(x), [0]),
    "ELU_0.5": (
        lambda x: x if x > 0 else A5 * mp.expm1(x),
        lambda x: 1 if x > 0 else A5 * mp.exp(x),
        [0],
    ),
    "Sine": (mp.sin, mp.cos, []),
    "Cosine": (mp.cos, lambda x: -mp.sin(x), []),
    "Identity": (lambda x: x, lambda _: mpf(1), []),
    "HermiteSeries": (series, series1, []),
    "Mish": (
        lambda x: x * gate(x),
        lambda x: gate(x) + x * (1 - gate(x) ** 2) * sigma(x),
        [],
    ),
    "ShiftedReLU": (lambda x: max(x - T7, 0), lambda x: mpf(x > T7), [T7]),
    "Step": (lambda x: mpf(x > T3), None, [T3]),
    "SquaredReLU": (lambda x: max(x, 0) ** 2, lambda x: 2 * max(x, 0), [0]),
    "AbsCubed": (lambda x: abs(x) ** 3, lambda x: 3 * x * abs(x), [0]),
}


def he(k, x):
    low, high = mpf(1), x
    if k == 0:
        return low
    for j in range(1, k):
        low, high = high, x * high - j * low
    return high


def gauss(f, tau, kinks, reach=15):
    """E f(xi) for f with kinks at kinks/tau and structure of width 1/tau at the origin."""
    points = {mpf(-reach), mpf(0), mpf(reach)} | {mpf(k) / tau for k in kinks}
    for j in range(-1, 6):
        points |= {mpf(2) ** j / tau, -(mpf(2) ** j) / tau, mpf(2) ** j, -(mpf(2) ** j)}
    points = sorted(p for p in points if -reach <= p <= reach)
    return mp.quad(lambda x: f(x) * pdf(x), points, method="gauss-legendre", maxdegree=6)


class Worst:
    """Keeps the largest error of one check."""

    def __init__(self, label, limit):
        self.label, self.limit, self.error, self.where, self.count = label, limit, 0, None, 0
        self.start = time.time()

    def see(self, stored, value, scale, where):
        error = abs(mpf(stored) - value) / scale
        self.count += 1
        if error >= self.error:
            self.error, self.where = error, where

    def done(self):
        say(f"{self.label:34s} {self.count:5d} values, worst {mp.nstr(self.error, 3):>10s}"
            f" at {self.where} ({time.time() - self.start:.0f} s)")  # fmt: skip
        assert self.error <= self.limit, self.label


# --------------------------------------------------------------------------- moments


def check_moments(data):
    worst = Worst("moments, mpmath quadrature", mpf(10) ** -18)
    section = data["moments"]
    for name, rows in section["values"].items():
        phi, phi1, kinks = PHI[name]
        for tau, row in zip(section["tau"], rows, strict=True):
            if row is None or (name in ("ShiftedReLU", "Step") and tau < 0.1):
                continue
            t = mpf(tau)
            stored = dict(zip(section["quantities"], row, strict=True))
            norm = mp.sqrt(mpf(stored["phi_sq"]))
            for k, key in enumerate(("phi", "d1", "d2", "d3")):
                value = gauss(lambda x: phi(t * x) * he(k, x), t, kinks) / t**k  # noqa: B023
                worst.see(stored[key], value, norm / t**k, (name, tau, key))
            value = gauss(lambda x: phi(t * x) ** 2, t, kinks)  # noqa: B023
            worst.see(stored["phi_sq"], value, value, (name, tau, "phi_sq"))
            value = gauss(lambda x: phi(t * x) ** 2 * (x * x - 1), t, kinks) / t**2  # noqa: B023
            worst.see(stored["phi_sq_d2"], value, norm**2 / t**2, (name, tau, "phi_sq_d2"))
            if phi1 is not None:
                value = gauss(lambda x: phi1(t * x) ** 2, t, kinks)  # noqa: B023
                worst.see(stored["d1_sq"], value, value, (name, tau, "d1_sq"))
    worst.done()


# --------------------------------------------------------------------------- Hermite


def hermite_closed(name, k, t):
    """E[phi(t xi) He_k(xi)], k >= 4, in closed form, or None."""
    edge = {"ReLU": (0, 2), "Step": (T3, 1), "ShiftedReLU": (T7, 2)}
    if name in edge:  # phi^(m) is a delta at the kink
        kink, m = edge[name]
        x = kink / t
        return t ** (m - 1) * he(k - m, x) * pdf(x)
    if name == "HardTanh":
        x = 1 / t
        return t * (he(k - 2, -x) - he(k - 2, x)) * pdf(x)
    if name in ("SquaredReLU", "AbsCubed"):
        m, c = (3, 2) if name == "SquaredReLU" else (4, 12)
        return t ** (m - 1) * c * he(k - m, mpf(0)) * pdf(0)
    if name == "LeakyReLU":
        return (1 - S1) * t * he(k - 2, mpf(0)) * pdf(0)
    if name == "Erf":
        if k % 2 == 0:
            return mpf(0)
        j = k - 1
        ratio = -2 * t * t / (1 + 2 * t * t)
        return 2 * t / mp.sqrt(mp.pi * (1 + 2 * t * t)) * mp.fac2(j - 1) * ratio ** (j // 2)
    if name in ("Sine", "Cosine"):
        part = (mpf(0), mpf(1), mpf(0), mpf(-1))[(k + (name == "Cosine")) % 4]
        return part * t**k * mp.exp(-t * t / 2)
    if name in ("Identity", "HermiteSeries"):
        return mpf(0)
    return None


def check_hermite(data):
    closed = Worst("Hermite coefficients, closed form", mpf(10) ** -19)
    numeric = Worst("Hermite coefficients, mpmath", mpf(10) ** -19)
    section = data["hermite"]
    for name, rows in section["values"].items():
        phi, _, kinks = PHI[name]
        for tau, row in zip(section["tau"], rows, strict=True):
            if row is None:
                continue
            t = mpf(tau)
            for k, stored in zip(section["k"], row, strict=True):
                value = hermite_closed(name, k, t) if k >= 4 else None
                if value is not None:  # relative
                    value /= mp.sqrt(mp.factorial(k))
                    if abs(value) < mpf(10) ** -400:
                        assert stored == "0", (name, tau, k)
                    else:
                        closed.see(stored, value, abs(value), (name, tau, k))
                elif k in (0, 1, 2, 3, 5, 10, 25, 100):  # relative to the norm
                    if name in ("ShiftedReLU", "Step") and tau < 0.1:
                        continue
                    root = mp.sqrt(mp.factorial(k))
                    value = gauss(lambda x: phi(t * x) * he(k, x) / root, t, kinks, 22)  # noqa: B023
                    norm = mp.sqrt(gauss(lambda x: phi(t * x) ** 2, t, kinks))  # noqa: B023
                    numeric.see(stored, value, norm, (name, tau, k))
    closed.done()
    numeric.done()


# --------------------------------------------------------------------------- duals


def angle(a, b, c):
    """sin, cos, angle between u and v without cancellation near rho = +-1."""
    det = mp.sqrt(a * b - c * c)
    return det / mp.sqrt(a * b), c / mp.sqrt(a * b), mp.atan2(det, c)


def gelu_dual(a, b, c):
    """E[u Phi(u) v Phi(v)], by Gaussian integration by parts and an orthant probability."""
    det = (1 + a) * (1 + b) - c * c
    orthant = mpf(1) / 4 + mp.asin(c / mp.sqrt((1 + a) * (1 + b))) / (2 * mp.pi)
    # E[u v F(u, v)] = c E F + E[(a d_u + c d_v)(b d_v + c d_u) F], F = Phi(u) Phi(v);
    # Phi'(u) Phi'(v) and Phi''(u) Phi(v) have elementary expectations.
    density = 1 / (2 * mp.pi * mp.sqrt(det))
    uv = density
    uu = -c * density / (1 + a)
    vv = -c * density / (1 + b)
    return c * orthant + (a * b + c * c) * uv + a * c * uu + b * c * vv


def gelu_dual1(a, b, c):
    h = mpf(10) ** -14
    with mp.workdps(90):
        a, b, c = mpf(a), mpf(b), mpf(c)
        return (gelu_dual(a, b, c + h) - gelu_dual(a, b, c - h)) / (2 * h)


def relu_dual(a, b, c):
    sine, cosine, theta = angle(a, b, c)
    return mp.sqrt(a * b) / (2 * mp.pi) * (sine + (mp.pi - theta) * cosine)


def step_dual(a, b, c):
    _, _, theta = angle(a, b, c)
    return (mp.pi - theta) / (2 * mp.pi)


def squared_dual(a, b, c):
    sine, cosine, theta = angle(a, b, c)
    return a * b / (2 * mp.pi) * (3 * sine * cosine + (mp.pi - theta) * (1 + 2 * cosine**2))


def leaky(f, parity):
    """Dual of phi(x) + (-1)^parity S1 phi(-x) from the dual of phi, supported on x > 0."""
    sign = (-1) ** parity
    return lambda a, b, c: (1 + S1**2) * f(a, b, c) + 2 * sign * S1 * f(a, b, -c)


def abs_cubed(a, b, c):
    sine, cosine, theta = angle(a, b, c)
    rho = cosine
    value = (4 + 11 * rho**2) * sine + 3 * rho * (3 + 2 * rho**2) * (mp.pi / 2 - theta)
    return 2 / mp.pi * (a * b) ** mpf("1.5") * value


def abs_cubed1(a, b, c):
    # 9 E[u|u| v|v|] = 18 (f(c) - f(-c)), f the dual of the squared ReLU
    return 18 * (squared_dual(a, b, c) - squared_dual(a, b, -c))


def series_dual(order):
    f = PHI["HermiteSeries"][order]
    coefficients = mp.taylor(f, 0, 3 - order)

    def moment(i, j, a, b, c):
        """E[u^i v^j] by Isserlis' recursion."""
        if i == 0:
            return mpf(0) if j % 2 else mp.fac2(j - 1) * b ** (j // 2)
        value = (i - 1) * a * moment(i - 2, j, a, b, c) if i > 1 else mpf(0)
        return value + (j * c * moment(i - 1, j - 1, a, b, c) if j else 0)

    return lambda a, b, c: sum(
        x * y * moment(i, j, a, b, c)
        for i, x in enumerate(coefficients)
        for j, y in enumerate(coefficients)
    )


CLOSED = {
    "ReLU": (relu_dual, step_dual),
    "LeakyReLU": (leaky(relu_dual, 1), leaky(step_dual, 0)),
    "SquaredReLU": (squared_dual, lambda a, b, c: 4 * relu_dual(a, b, c)),
    "AbsCubed": (abs_cubed, abs_cubed1),
    "Erf": (
        lambda a, b, c: 2 / mp.pi * mp.asin(2 * c / mp.sqrt((1 + 2 * a) * (1 + 2 * b))),
        lambda a, b, c: 4 / mp.pi / mp.sqrt((1 + 2 * a) * (1 + 2 * b) - 4 * c * c),
    ),
    "GELU": (gelu_dual, gelu_dual1),
    "Sine": (
        lambda a, b, c: mp.exp(-(a + b) / 2) * mp.sinh(c),
        lambda a, b, c: mp.exp(-(a + b) / 2) * mp.cosh(c),
    ),
    "Cosine": (
        lambda a, b, c: mp.exp(-(a + b) / 2) * mp.cosh(c),
        lambda a, b, c: mp.exp(-(a + b) / 2) * mp.sinh(c),
    ),
    "Identity": (lambda _a, _b, c: c, lambda _a, _b, _c: mpf(1)),
    "HermiteSeries": (series_dual(0), series_dual(1)),
}


def each_dual(data):
    section = data["duals"]
    for name, values in section["values"].items():
        for order, key in enumerate(("D", "Dp")):
            for where, stored in zip(section["triples"], values[key], strict=True):
                if stored is not None:
                    yield name, order, where, stored


def check_closed_duals(data):
    worst = Worst("duals, closed forms", mpf(10) ** -18)
    for name, order, where, stored in each_dual(data):
        if name in CLOSED and where["a"]:
            with mp.workdps(80):
                value = CLOSED[name][order](*(mpf(where[x]) for x in "abc"))
                if abs(value) < mpf(10) ** -60:
                    assert stored == "0", (name, where)
                else:
                    worst.see(stored, value, abs(value), (name, order, where))
    worst.done()


def check_mehler(data):
    """D = sum_k c_k(sqrt a) c_k(sqrt b) rho^k for analytic activations, a, b <= 2."""
    worst = Worst("lattice duals, Mehler series", mpf(10) ** -19)
    terms, h, reach = 420, mpf(1) / 32, 40
    grid = [h * i for i in range(-int(reach / h), int(reach / h) + 1)]
    weights = [h * pdf(x) for x in grid]
    table, low, high = [], [mpf(1)] * len(grid), list(grid)
    for k in range(terms):
        table.append([x * w for x, w in zip(low, weights, strict=True)])
        r, s = mp.sqrt(k + 2), mp.sqrt(k + 1)
        low, high = high, [
            (x * y - s * z) / r for x, y, z in zip(grid, high, low, strict=True)
        ]  # fmt: skip
    cache = {}

    def coefficients(name, order, variance):
        key = (name, order, variance)
        if key not in cache:
            root = mp.sqrt(mpf(variance))
            values = [PHI[name][order](root * x) for x in grid]
            cache[key] = [mp.fdot(row, values) for row in table]
        return cache[key]

    for name, order, where, stored in each_dual(data):
        a, b, c = where["a"], where["b"], where["c"]
        if name not in generate.LATTICE_NAMES or not a or max(a, b) > 2:
            continue
        x, y = coefficients(name, order, a), coefficients(name, order, b)
        rho = mpf(c) / mp.sqrt(mpf(a) * mpf(b))
        value = sum(p * q * rho**k for k, (p, q) in enumerate(zip(x, y, strict=True)))
        norm = mp.sqrt(mp.fdot(x, x) * mp.fdot(y, y))
        worst.see(stored, value, norm, (name, order, where))
    worst.done()


def check_price(data):
    """D(a,a,a) - D(a,a,c) = (a-c) Dp(a,a,c) + O((a-c)^2), same at the other end."""
    worst = Worst("lattice duals, Price at rho -> +-1", 1)
    section = data["duals"]
    ends = {(t["a"], t["c"]): i for i, t in enumerate(section["triples"]) if abs(t["c"]) == t["a"]}
    for i, t in enumerate(section["triples"]):
        a, b, c = t["a"], t["b"], t["c"]
        end = ends.get((a, math.copysign(a, c)))
        gap = mpf(a) - abs(mpf(c))
        if a != b or end is None or not 0 < gap < mpf("1e-5") * mpf(a):
            continue
        for name in generate.LATTICE_NAMES:
            values = section["values"][name]
            change = mpf(values["D"][end]) - mpf(values["D"][i])
            first = gap * mpf(values["Dp"][i]) * (1 if c > 0 else -1)
            # stored digits, and a second-order term with |D_cc| <= 1
            scale = abs(mpf(values["D"][i])) * mpf(10) ** -19 + gap**2
            worst.see(change, first, scale, (name, t))
    worst.done()
    same = section["values"]["Sigmoid"]["D"] == section["values"]["Softplus"]["Dp"]
    say("softplus' = sigmoid:", same)
    assert same


def check_monte_carlo(data, samples=2_000_000):
    numpy_phi = {
        "ReLU": (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
        "LeakyReLU": (lambda x: np.where(x > 0, x, 0.1 * x), lambda x: np.where(x > 0, 1, 0.1)),
        "Tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
        "HardTanh": (lambda x: np.clip(x, -1, 1), lambda x: (np.abs(x) < 1) * 1.0),
        "ELU_1": (
            lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
            lambda x: np.exp(np.minimum(x, 0)),
        ),
        "ELU_0.5": (
            lambda x: np.where(x > 0, x, 0.5 * np.expm1(np.minimum(x, 0))),
            lambda x: np.where(x > 0, 1, 0.5 * np.exp(np.minimum(x, 0))),
        ),
        "Sigmoid": (
            lambda x: 0.5 + 0.5 * np.tanh(x / 2),
            lambda x: 0.25 * (1 - np.tanh(x / 2) ** 2),
        ),
        "Softplus": (lambda x: np.logaddexp(x, 0), lambda x: 0.5 + 0.5 * np.tanh(x / 2)),
        "Swish": (lambda x: x * (0.5 + 0.5 * np.tanh(x / 2)), None),
        "Mish": (lambda x: x * np.tanh(np.logaddexp(x, 0)), None),
        "ShiftedReLU": (lambda x: np.maximum(x - 0.7, 0), lambda x: (x > 0.7) * 1.0),
        "Step": (lambda x: (x > 0.3) * 1.0, None),
    }
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((2, samples))
    worst = Worst("duals, Monte Carlo (std. errors)", 5.5)
    for name, order, where, stored in each_dual(data):
        f = numpy_phi.get(name, (None, None))[order]
        a, b, c = where["a"], where["b"], where["c"]
        if f is None or not a:
            continue
        rest = float(Fraction(b) - Fraction(c) ** 2 / Fraction(a))
        product = f(math.sqrt(a) * x) * f(c / math.sqrt(a) * x + math.sqrt(rest) * y)
        error = product.std() / math.sqrt(samples)
        if np.count_nonzero(product) > 1000:
            if product.std() < 1e-2 * abs(product.mean()):
                error += (1 + np.abs(product).max()) / samples  # events too rare to be seen
            worst.see(stored, product.mean(), error, (name, order, where))
    worst.done()


# --------------------------------------------------------------------------- derivatives


def exact_dual(name, a, b, c):
    if name in generate.LATTICE_NAMES:
        ctx.prec = generate.LATTICE_BITS
        lattice = generate.Lattice(max(a, b), min(a, b), c, 0)
        place = generate.LATTICE_NAMES.index(name)
        value = lattice.matrix(lambda v: [generate.lattice_features(v)[place]])[0][0]
    else:
        ctx.prec = 256
        value = generate.dual_ball(generate.fresh(name), a, b, c, 0, 0, 256)
    return mpf(value.mid().str(60, radius=False))


def richardson(f, h, levels):
    """Extrapolates an even expansion f(h) + O(h^2) from h, h/2, h/4, ..."""
    row = [f(h / 2**i) for i in range(levels)]
    for j in range(1, levels):
        row = [(4**j * y - x) / (4**j - 1) for x, y in pairwise(row)]
    return row[0]


def check_derivatives(data):
    worst = Worst("second order, finite differences", mpf(10) ** -12)
    price = Worst("dD/dc = Dp at these triples", mpf(10) ** -18)
    section = data["dual_derivatives"]
    for name, rows in section["values"].items():
        for where, row in zip(section["triples"], rows, strict=True):
            a, b, c = (where[x] for x in "abc")
            stored = dict(zip(section["quantities"], row, strict=True))
            assert mp.almosteq(4 * mpf(stored["ab"]), mpf(stored["cc"]), mpf(10) ** -18)
            room = min(a, b) * (1 - c * c / (a * b))
            h = 2.0 ** math.floor(math.log2(room / 64))
            cache = {}

            def dual(i, j, k, name=name, a=a, b=b, c=c, cache=cache):
                point = (a + i, b + j, c + k)
                for x, y, z in zip((a, b, c), (i, j, k), point, strict=True):
                    assert Fraction(x) + Fraction(y) == Fraction(z)
                if point not in cache:
                    cache[point] = exact_dual(name, *point)
                return cache[point]

            def first(direction, dual=dual, h=h):
                def quotient(s):
                    up, down = ([sign * s * d for d in direction] for sign in (1, -1))
                    return (dual(*up) - dual(*down)) / (2 * mpf(s))

                return richardson(quotient, h, 6)

            def second(direction, dual=dual, h=h):
                def quotient(s):
                    up, down = ([sign * s * d for d in direction] for sign in (1, -1))
                    return (dual(*up) - 2 * dual(0, 0, 0) + dual(*down)) / mpf(s) ** 2

                return richardson(quotient, h, 6)

            ea, eb, ec = (1, 0, 0), (0, 1, 0), (0, 0, 1)
            aa, cc = second(ea), second(ec)
            found = {
                "a": first(ea), "b": first(eb), "c": first(ec), "aa": aa, "cc": cc,
                "ac": (second((1, 0, 1)) - second((1, 0, -1))) / 4,
                "ab": (second((1, 1, 0)) - second((1, -1, 0))) / 4,
            }  # fmt: skip
            scale = max(abs(mpf(v)) for v in stored.values())
            for key, value in found.items():
                worst.see(stored[key], value, max(abs(value), scale / 1000), (name, where, key))
            if name not in generate.LATTICE_NAMES:
                value = generate.easy_dual(name, a, b, c, 1)
                price.see(stored["c"], mpf(value), mpf(value), (name, where))
            else:
                value = mpf(generate.lattice_duals(a, b, c)[name][1])
                price.see(stored["c"], value, value, (name, where))
    worst.done()
    price.done()


def main():
    with open(sys.argv[1]) as handle:
        data = json.load(handle)
    chosen = sys.argv[2:]
    checks = [check_closed_duals, check_price, check_monte_carlo, check_mehler, check_hermite,
              check_moments, check_derivatives]  # fmt: skip
    for check in checks:
        if not chosen or check.__name__.removeprefix("check_") in chosen:
            check(data)


if __name__ == "__main__":
    main()
