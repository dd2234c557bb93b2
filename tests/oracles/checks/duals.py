"""Duals against closed forms, Mehler's series, Price's theorem and Monte Carlo."""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
from balls.lattices import LATTICE_NAMES
from mpmath import mpf

from checks.closed_duals import CLOSED
from checks.definitions import PHI, pdf
from checks.worst import Worst, say


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
        if name not in LATTICE_NAMES or not a or max(a, b) > 2:
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
        for name in LATTICE_NAMES:
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
