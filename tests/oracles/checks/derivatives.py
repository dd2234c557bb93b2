"""Derivatives of duals against finite differences."""

import math
from fractions import Fraction
from functools import cache
from itertools import pairwise

import mpmath as mp
from balls.activations import fresh
from balls.duals import dual_ball, easy_dual
from balls.lattices import LATTICE_BITS, LATTICE_NAMES, Lattice, lattice_duals, lattice_features
from flint import ctx
from mpmath import mpf

from checks.worst import Worst


def exact_dual(name, a, b, c):
    if name in LATTICE_NAMES:
        ctx.prec = LATTICE_BITS
        lattice = Lattice(max(a, b), min(a, b), c, 0)
        place = LATTICE_NAMES.index(name)
        value = lattice.matrix(lambda v: [lattice_features(v)[place]])[0][0]
    else:
        ctx.prec = 256
        value = dual_ball(fresh(name), a, b, c, 0, 0, 256)
    return mpf(value.mid().str(60, radius=False))


def richardson(f, h, levels):
    """Extrapolates an even expansion f(h) + O(h^2) from h, h/2, h/4, ..."""
    row = [f(h / 2**i) for i in range(levels)]
    for j in range(1, levels):
        row = [(4**j * y - x) / (4**j - 1) for x, y in pairwise(row)]
    return row[0]


def finite_differences(name, a, b, c):
    """All derivatives, from duals at exact float64 steps."""
    room = min(a, b) * (1 - c * c / (a * b))
    h = 2.0 ** math.floor(math.log2(room / 64))

    @cache
    def dual(i, j, k):
        point = (a + i, b + j, c + k)
        for x, y, z in zip((a, b, c), (i, j, k), point, strict=True):
            assert Fraction(x) + Fraction(y) == Fraction(z)
        return exact_dual(name, *point)

    def both(direction, s):
        return [dual(*(sign * s * d for d in direction)) for sign in (1, -1)]

    def first(direction):
        def quotient(s):
            up, down = both(direction, s)
            return (up - down) / (2 * mpf(s))

        return richardson(quotient, h, 6)

    def second(direction):
        def quotient(s):
            up, down = both(direction, s)
            return (up - 2 * dual(0, 0, 0) + down) / mpf(s) ** 2

        return richardson(quotient, h, 6)

    return {
        "a": first((1, 0, 0)), "b": first((0, 1, 0)), "c": first((0, 0, 1)),
        "aa": second((1, 0, 0)), "cc": second((0, 0, 1)),
        "ac": (second((1, 0, 1)) - second((1, 0, -1))) / 4,
        "ab": (second((1, 1, 0)) - second((1, -1, 0))) / 4,
    }  # fmt: skip


def check_derivatives(data):
    worst = Worst("second order, finite differences", mpf(10) ** -12)
    price = Worst("dD/dc = Dp at these triples", mpf(10) ** -18)
    section = data["dual_derivatives"]
    for name, rows in section["values"].items():
        for where, row in zip(section["triples"], rows, strict=True):
            a, b, c = (where[x] for x in "abc")
            stored = dict(zip(section["quantities"], row, strict=True))
            assert mp.almosteq(4 * mpf(stored["ab"]), mpf(stored["cc"]), mpf(10) ** -18)
            scale = max(abs(mpf(v)) for v in stored.values())
            for key, value in finite_differences(name, a, b, c).items():
                worst.see(stored[key], value, max(abs(value), scale / 1000), (name, where, key))
            lattice = name in LATTICE_NAMES
            value = lattice_duals(a, b, c)[name][1] if lattice else easy_dual(name, a, b, c, 1)
            price.see(stored["c"], mpf(value), mpf(value), (name, where))
    worst.done()
    price.done()
