"""Slopes of kernels of pairs of inputs that are nearly parallel or nearly opposite.

    python tests/oracles/edge_slopes.py OUT.json

The scalar equations of one pair are solved and differentiated implicitly, without shoal:

    A = s S(A) + w a,    C = s D(A, B, C) + w c,    G = D,    M = E/(1 - s E),

with s the recurrent and w the input variance, S(A) = E phi(u)^2, D = E phi(u)phi(v) and
E = E phi'(u)phi'(v). The NTK is the sum of its groups G (readout), s G M (recurrent) and w c M
(input). Every group has derivatives in the logarithms of both norms at a fixed angle, in the angle,
in s and in w.

Activations with kinks: integrals in one dimension with 40 digits, so that no cosine loses its
angle, and differences with steps of 1e-10 for the derivatives of D, E and S. Smooth activations:
trapezoidal sums over both Gaussian variables in float64 (they converge exponentially), and Price's
theorem for the derivatives, in which nothing cancels at an angle of zero.

The script tabulates activations with kinks whose duals are no closed forms (HardTanh, ELU), some
seconds a pair; it keeps what OUT.json has. The others are solved when they are asked for. Left out:
kinks at norms that differ by 1e-9. There the NTK has a slope of one sign, within 1e-9 of the corner
where shoal takes the mean of both sides, blended in below distances of 1e-7.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from mpmath import mp, mpf

mp.dps = 40
STEP = mpf(10) ** -10  # of differences, relative to the scale on which a function changes
VARIANCES = ((0.2, 0.8), (0.45, 1.5))  # recurrent and input variance
BASE = (1.0, 0.0, 0.0)
ANGLES = (1e-8, 1e-6, 1e-4, 1e-2)
RATIOS = {"float64": (1.0, 1 + 1e-9, 1e-3), "float32": (1.0, 1e-3)}


def points(dtype):
    """Partners of BASE, rounded to a dtype: of all ratios, angles and both ends."""
    found = []
    for ratio in RATIOS[dtype]:
        kind = np.dtype("float32" if ratio == 1e-3 else dtype)
        for angle in ANGLES if ratio == 1 else (0.0, *ANGLES):
            for end in (1, -1):
                exact = mpf(ratio) * end * mp.cos(angle), mpf(ratio) * mp.sin(angle), 0
                found.append([float(kind.type(float(t))) for t in exact])
    return np.array(found)


def geometry(x, y):
    """Squared norms, inner product and the derivative of that in the angle, of exact inputs."""
    x, y = ([mpf(float(t)) for t in z] for z in (x, y))
    a, b, c = (mp.fsum(p * q for p, q in zip(*z, strict=True)) for z in ((x, x), (y, y), (x, y)))
    return a, b, c, -mp.sqrt(abs(a * b - c * c))


def slopes(square, duals, a, b, c, turn, s, w):
    """The groups readout, recurrent and input: values and derivatives. shape: (3, 6).

    Args:
        square: S and its derivative at a variance.
        duals: (D, D_a, D_b), (E, E_a, E_b, E_c) at (A, B, C).
        a, b, c, turn: See :func:`geometry`.
        s, w: The variances.
    """
    variances = [variance(square, t, s, w) for t in (a, b)]
    A, B = (v[0] for v in variances)
    C = covariance(duals, A, B, c, c / (a * b) ** (mpf(1) / 2 if isinstance(a, mpf) else 0.5), s, w)
    (D, Da, Db), (E, Ea, Eb, Ec) = duals(A, B, C)
    loop, M = 1 / (1 - s * E), E / (1 - s * E)
    groups = [[D, s * D * M, w * c * M]]
    #          da     db     dc    ds dw
    moves = [(2 * a, 0, c, 0, 0), (0, 2 * b, c, 0, 0), (0, 0, turn, 0, 0)]
    for da, db, dc, ds, dw in [*moves, (0, 0, 0, 1, 0), (0, 0, 0, 0, 1)]:
        dA, dB = (
            (w * dt + t * dw + value * ds) / (1 - s * slope)
            for (_, value, slope), t, dt in zip(variances, (a, b), (da, db), strict=True)
        )
        dC = (s * (Da * dA + Db * dB) + D * ds + w * dc + c * dw) * loop
        dD = Da * dA + Db * dB + E * dC
        dE = Ea * dA + Eb * dB + Ec * dC
        dM = (dE + E * E * ds) * loop**2
        recurrent = ds * D * M + s * dD * M + s * D * dM
        groups.append([dD, recurrent, (dw * c + w * dc) * M + w * c * dM])
    return np.array(groups).T.astype(float)


def variance(square, a, s, w):
    """A, S(A) and S'(A) by Newton's method."""
    A = w * a
    for _ in range(100):
        value, slope = square(A)
        step = (s * value + w * a - A) / (1 - s * slope)
        A += step
        if abs(step) <= resolution(A) * A:
            return (A, *square(A))
    raise RuntimeError("not solved")


def covariance(duals, A, B, c, cosine, s, w):
    """C by Newton's method."""
    size = (A * B) ** (mpf(1) / 2 if isinstance(A, mpf) else 0.5)
    C = cosine * size
    for _ in range(100):
        (D, *_), (E, *_) = duals(A, B, C, True)
        step = (s * D + w * c - C) / (1 - s * E)
        C = max(-size, min(size, C + step))
        if abs(step) <= resolution(C) * size:
            return C
    raise RuntimeError("not solved")


def resolution(number):
    """Size of a step of Newton's method after which the next one is rounding."""
    return mpf(10) ** -26 if isinstance(number, mpf) else 1e-9


# Activations with kinks: 40 digits


class Kinked:
    """Duals by one integral over u, the mean over v being elementary, or by closed forms."""

    def __init__(self, kinks, pieces, mean, mean_slope):
        self.kinks, self.pieces, self.mean, self.mean_slope = kinks, pieces, mean, mean_slope

    def integral(self, f, deviation, splits):
        """E f(u) for u of a standard deviation; f has kinks and layers at the splits."""
        end = 15 * deviation
        inner = sorted({t for t in splits if abs(t) < end})
        density = 1 / (deviation * mp.sqrt(2 * mp.pi))
        return density * mp.quad(
            lambda u: f(u) * mp.exp(-((u / deviation) ** 2) / 2),
            [-end, *inner, end],
            method="gauss-legendre",
        )

    def square(self, A):
        """S and S', by a difference."""

        def value(A):
            scale = mp.sqrt(A)
            around = [k + j * scale for k in (*self.kinks, 0) for j in (-5, -2, 0, 2, 5)]
            return self.integral(lambda u: self.pieces[0](u) ** 2, scale, [*around, *self.kinks])

        h = STEP * A
        return value(A), (value(A + h) - value(A - h)) / (2 * h)

    def values(self, A, B, C):
        """D and E."""
        if A < B:
            A, B = B, A
        slope, rest = C / A, B - C * C / A
        s = mp.sqrt(max(rest, mpf(10) ** -80))
        deviation = mp.sqrt(A)
        spread = [mpf(j) * s / abs(slope) for j in (0, 2, 6, 15)]
        layers = [k / slope + sign * t for k in self.kinks for t in spread for sign in (1, -1)]
        splits = [*self.kinks, *layers, *(j * deviation for j in (-7, -2, 2, 7))]
        return tuple(
            self.integral(lambda u, f=f, m=m: f(u) * m(slope * u, s), deviation, splits)
            for f, m in zip(self.pieces, (self.mean, self.mean_slope), strict=True)
        )

    def duals(self, A, B, C, plain=False):
        """D, E and, unless they are to be plain, their derivatives."""
        D, E = self.values(A, B, C)
        if plain:
            return (D,), (E,)
        gap = min(mpf(1), mp.sqrt(A * B) - abs(C)) * STEP

        def slope(i):
            ends = ([t + k * gap * (i == j) for j, t in enumerate((A, B, C))] for k in (1, -1))
            pairs = zip(*(self.values(*end) for end in ends), strict=True)
            return [(after - before) / (2 * gap) for after, before in pairs]

        Da, Ea = slope(0)
        Db, Eb = (Da, Ea) if A == B else slope(1)
        Ec = slope(2)[1]
        return (D, Da, Db), (E, Ea, Eb, Ec)


class Homogeneous(Kinked):
    """max(x, 0) + slope min(x, 0), whose duals are closed forms of the angle."""

    def __init__(self, slope):
        self.slope = mpf(slope)

    def square(self, A):
        half = (1 + self.slope**2) / 2
        return half * A, half

    def duals(self, A, B, C, plain=False):  # noqa: ARG002
        size, k = mp.sqrt(A * B), self.slope
        sine = mp.sqrt(max(A * B - C * C, 0)) / size
        angle = mp.atan2(sine, C / size)
        same = (size * sine + (mp.pi - angle) * C) / (2 * mp.pi)
        opposite = (size * sine - angle * C) / (2 * mp.pi)
        D = (1 + k * k) * same - 2 * k * opposite
        E = ((1 + k * k) * (mp.pi - angle) + 2 * k * angle) / (2 * mp.pi)
        Ec = (1 - k) ** 2 / (2 * mp.pi * size * sine) if sine else 0  # no slope: both sides' mean
        first = [(D - C * E) / (2 * t) for t in (A, B)]
        return (D, *first), (E, -Ec * C / (2 * A), -Ec * C / (2 * B), Ec)


def ramp(z):
    """E max(z + xi, 0)."""
    return z * mp.ncdf(z) + mp.npdf(z)


def hard_tanh():
    return Kinked(
        (mpf(-1), mpf(1)),
        (lambda u: max(-1, min(1, u)), lambda u: mpf(abs(u) < 1)),
        lambda m, s: s * (ramp((m + 1) / s) - ramp((m - 1) / s)) - 1,
        lambda m, s: mp.ncdf((m + 1) / s) - mp.ncdf((m - 1) / s),
    )


def elu(alpha):
    def below(m, s):
        return mp.exp(m + s * s / 2) * mp.ncdf(-m / s - s)

    return Kinked(
        (mpf(0),),
        (
            lambda u: u if u > 0 else alpha * mp.expm1(u),
            lambda u: mpf(1) if u > 0 else alpha * mp.exp(u),
        ),
        lambda m, s: s * ramp(m / s) + alpha * (below(m, s) - mp.ncdf(-m / s)),
        lambda m, s: mp.ncdf(m / s) + alpha * below(m, s),
    )


CLOSED = {"ReLU": Homogeneous(0), "LeakyReLU": Homogeneous(0.1)}
TABULATED = {"HardTanh": hard_tanh(), "ELU_0.5": elu(mpf(0.5))}


# Smooth activations: float64


class Smooth:
    """Duals by dense sums, with derivatives of the activation by autograd."""

    def __init__(self, function):
        self.function = function

    def jet(self, x, order):
        """The activation and its derivatives."""
        x = torch.from_numpy(x).requires_grad_()
        jet = [self.function(x)]
        for _ in range(order):
            (slope,) = torch.autograd.grad(jet[-1].sum(), x, create_graph=True)
            jet.append(slope if slope.requires_grad else slope + 0 * x)
        return [t.detach().numpy() for t in jet]

    @staticmethod
    def nodes(variance):
        """Nodes and weights of a standard Gaussian variable."""
        step = 0.2 / max(1.0, variance**0.5)
        x = np.arange(-9.5, 9.5, step)
        return x, step * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)

    def square(self, A):
        x, weight = self.nodes(A)
        value, first, second = self.jet(A**0.5 * x, 2)
        return weight @ value**2, weight @ (first**2 + value * second)

    def duals(self, A, B, C, plain=False):  # noqa: ARG002
        if A < B:
            (D, Db, Da), (E, Eb, Ea, Ec) = self._duals(B, A, C)
            return (D, Da, Db), (E, Ea, Eb, Ec)
        return self._duals(A, B, C)

    def _duals(self, A, B, C):
        s = max(B - C * C / A, 0.0)
        (x, p), (z, q) = self.nodes(A), self.nodes(s)
        u = self.jet(A**0.5 * x, 3)
        v = self.jet(C / A**0.5 * x[:, None] + s**0.5 * z, 3)
        mean = [t @ q for t in v]

        def dual(i, j):
            return float(p @ (u[i] * mean[j]))

        D = dual(0, 0), dual(2, 0) / 2, dual(0, 2) / 2
        return D, (dual(1, 1), dual(3, 1) / 2, dual(1, 3) / 2, dual(2, 2))


SMOOTH = {
    "Tanh": Smooth(torch.tanh),
    "Sigmoid": Smooth(torch.sigmoid),
    "Erf": Smooth(torch.erf),
    "Swish": Smooth(lambda x: x * torch.sigmoid(x)),
    "GELU": Smooth(lambda x: x * torch.special.ndtr(x)),
    "Softplus": Smooth(lambda x: -torch.nn.functional.logsigmoid(-x)),
    "Mish": Smooth(lambda x: x * torch.tanh(-torch.nn.functional.logsigmoid(-x))),
    "Sine": Smooth(torch.sin),
    "Cosine": Smooth(torch.cos),
    "Identity": Smooth(lambda x: x * 1),
    "HermiteSeries": Smooth(
        lambda x: 0.1 + 0.7 * x - 0.3 * (x * x - 1) / 2**0.5 + 0.2 * (x**3 - 3 * x) / 6**0.5
    ),
}


def solved(name, x, y, s, w):
    """The groups of one pair, by closed forms or dense sums. shape: (3, 6)."""
    a, b, c, turn = geometry(x, y)
    if name in CLOSED:
        oracle, given = CLOSED[name], (a, b, c, turn, mpf(s), mpf(w))
    elif name in TABULATED:
        oracle, given = TABULATED[name], (a, b, c, turn, mpf(s), mpf(w))
    else:
        oracle, given = SMOOTH[name], (float(a), float(b), float(c), float(turn), s, w)
    return slopes(oracle.square, oracle.duals, *given)


def label(name, y, s, w):
    """The key of a pair in the table."""
    return f"{name} {s} {w} {y[0]!r} {y[1]!r}"


def main():
    target, *names = sys.argv[1:]
    target = Path(target)
    table = json.loads(target.read_text()) if target.exists() else {}
    for s, w in VARIANCES:
        for dtype in RATIOS:
            for y in points(dtype).tolist():
                for name in names or TABULATED:
                    key = label(name, y, s, w)
                    if key not in table:
                        groups = solved(name, BASE, y, s, w)
                        table[key] = [float(f"{t:.13g}") for t in groups.ravel()]
                        lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in table.items())
                        target.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
