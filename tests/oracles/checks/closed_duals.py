"""Duals in closed form."""

import mpmath as mp
from mpmath import mpf

from checks.definitions import PHI, S1


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
