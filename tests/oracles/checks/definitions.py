"""The activations by mpmath: phi, phi' and kinks, written without regard to generate.py."""

import mpmath as mp
from mpmath import mpf

mp.mp.dps = 40
HALF = mpf(1) / 2


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
