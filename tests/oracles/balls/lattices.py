"""Duals by trapezoidal sums on lattices in two dimensions."""

import math
from fractions import Fraction

from flint import arb, arb_mat, ctx

from balls.activations import fresh
from balls.certificates import UncertifiedError, decimal
from balls.moments import expectation, he_weight

LATTICE_NAMES = ["Tanh", "Sigmoid", "Softplus", "Swish", "Mish"]
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
