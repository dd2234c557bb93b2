"""Derivatives of duals, as expectations with derivatives of the density."""

import math
from functools import partial

from flint import arb, ctx

from balls.activations import fresh, piece_at
from balls.certificates import certified, integrate
from balls.duals import dual_tail
from balls.lattices import LATTICE_BITS, LATTICE_NAMES, Lattice, agreeing, lattice_features

DERIVATIVES = ["a", "b", "c", "cc", "ac", "ab", "aa"]


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
