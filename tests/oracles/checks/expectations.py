"""Moments and Hermite coefficients against closed forms and mpmath's quadrature."""

import mpmath as mp
from mpmath import mpf

from checks.definitions import PHI, S1, T3, T7, gauss, he, pdf
from checks.worst import Worst


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
