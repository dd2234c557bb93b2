"""Designs against kernels and coefficients derived here once more, without shoal's.

Of a design only its activations' values are taken; the kernels of norm-gated layers are shoal's.
"""

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from mpmath import mpf
from numpy.polynomial.hermite_e import hermegauss
from numpy.polynomial.legendre import leggauss

import shoal

COSINES = np.array([-0.95, -0.7, -0.3, 0.0, 0.2, 0.6, 0.9, 0.95])
LEAKY_RELU = shoal.designs.MomentMatching(family="leaky_relu")
Function = Callable[[np.ndarray], np.ndarray]


def relu_duals(v: float, c: float) -> tuple[float, float]:
    angle = math.acos(max(-1.0, min(1.0, c / v)))
    turn = math.pi - angle
    return v * (math.sin(angle) + turn * math.cos(angle)) / (2 * math.pi), turn / (2 * math.pi)


def tanh_duals(v: float, c: float) -> tuple[float, float]:
    x, weights = hermegauss(150)
    weights = weights / weights.sum()
    rho, s = c / v, math.sqrt(v)
    across = s * (rho * x[:, None] + math.sqrt(max(0.0, 1 - rho**2)) * x)

    def dual(f: Function) -> float:
        return float(weights * f(s * x) @ f(across) @ weights)

    return dual(np.tanh), dual(lambda u: 1 / np.cosh(u) ** 2)


DUALS = {shoal.activations.ReLU(): relu_duals, shoal.activations.Tanh(): tanh_duals}


def deq_kernels(phi: shoal.Activation, cosine: float) -> tuple[float, float]:
    """CK and NTK of a DEQ for unit inputs, by an iteration that gains a factor of five."""
    sa, sb = 0.2, 0.8
    duals, v = DUALS[phi], sb
    for _ in range(30):
        v = sa * duals(v, v)[0] + sb
    c = v if cosine == 1 else sb * cosine
    for _ in range(30):
        c = max(-v, min(v, sa * duals(v, c)[0] + sb * cosine))
    ck, slope = duals(v, c)
    return ck, ck + c * slope / (1 - sa * slope)


def fine_grid() -> tuple[np.ndarray, np.ndarray]:
    """Gauss points and weights, with panels that shrink towards zero."""
    nodes, weights = leggauss(24)
    ends = np.concatenate([[0.0], np.logspace(-6, -1.3, 60), np.arange(0.06, 9.5, 0.02)])
    half = np.diff(ends)[:, None] / 2
    x = (ends[:-1, None] + half + half * nodes).ravel()
    w = (half * weights).ravel()
    return np.concatenate([-x[::-1], x]), np.concatenate([w[::-1], w])


def hermite_squares(x: np.ndarray, w: np.ndarray, f: np.ndarray, order: int) -> np.ndarray:
    """Squares of the Hermite coefficients, by Hermite functions, which neither grow nor cancel."""
    current = np.exp(-(x**2) / 4) / (2 * math.pi) ** 0.25
    against, previous, found = f * w * current, np.zeros_like(x), []
    for k in range(order + 1):
        found.append(float(against @ current) ** 2)
        step = (x * current - math.sqrt(k) * previous) / math.sqrt(k + 1)
        previous, current = current, step
    return np.array(found)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("phi", "which", "bound"),
    [
        (shoal.activations.ReLU(), "ck", 1e-9),
        (shoal.activations.ReLU(), "ntk", 1e-7),
        (shoal.activations.Tanh(), "ck", 1e-10),
        (shoal.activations.Tanh(), "ntk", 1e-10),
    ],
)
def test_errors_on_the_sphere_are_as_stated(
    phi: shoal.Activation, which: str, bound: float
) -> None:
    d = shoal.design(shoal.DEQ(phi, 0.2, 0.8), input_norm=1.0, which=which, method="sphere")
    (sigma,) = d.architecture.activations  # type: ignore[attr-defined]
    x, w = fine_grid()
    u = torch.from_numpy(x)
    f, slopes = sigma(u).numpy(), sigma.derivative(u).numpy()
    both, k = which == "ntk", np.arange(701)
    series = hermite_squares(x, w, f, 700) * (1 + k if both else 1)
    pdf = w * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    found = {c: float(series @ c**k) for c in COSINES}
    for sign in (-1, 1):
        found[sign] = float(pdf * f @ f[::sign] + both * sign * (pdf * slopes @ slopes[::sign]))
    wanted = {c: deq_kernels(phi, c)[both] for c in found}
    errors = {c: abs(found[c] - wanted[c]) / wanted[1] for c in found}
    assert max(errors[c] for c in COSINES) < min(bound, 1.05 * d.residual + 1e-12)
    for sign in (-1, 1):
        assert errors[sign] == pytest.approx(d.errors[f"cosine {sign}"], rel=0.05, abs=1e-11)


@pytest.mark.thorough
def test_gated_neurons_have_the_kernel_on_average() -> None:
    deq = shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8)
    d = shoal.design(
        deq, input_norm=1.0, which="ntk", method=shoal.designs.SphereMatching(norm_gated=True)
    )
    (sigma,) = d.architecture.activations  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(0)
    for cosine in (-0.8, 0.1, 0.9, 1.0):
        g = torch.randn(2, 2**18, dtype=torch.float64, generator=generator)
        u, v = g[0], cosine * g[0] + math.sqrt(1 - cosine**2) * g[1]
        # a neuron's share of the NTK, for a readout of square one
        share = sigma(u) * sigma(v) + cosine * sigma.derivative(u) * sigma.derivative(v)
        expected = deq_kernels(shoal.activations.ReLU(), cosine)[1]
        assert abs(float(share.mean()) - expected) < 4 * float(share.std()) / 2**9
        for r, s in ((1.0, 1.0), (1e-3, 40.0), (2.0, 0.3)):
            found = shoal.kernel_function(d.architecture)(r * r, s * s, r * s * cosine).ntk
            assert float(found) == pytest.approx(r * s * expected, rel=1e-6)


class Rectifier:
    """p|x| + qx − mean, in many digits; centered at one variance."""

    def __init__(self, p: mpf, q: mpf, mean: mpf) -> None:
        self.p, self.q, self.mean = mpf(p), mpf(q), mpf(mean)

    def dual(self, a: mpf, b: mpf, c: mpf) -> mpf:
        size = mpmath.sqrt(a * b)
        rho = c / size
        absolute = 2 * size / mpmath.pi * (mpmath.sqrt(1 - rho**2) + rho * mpmath.asin(rho))
        means = mpmath.sqrt(2 / mpmath.pi) * (mpmath.sqrt(a) + mpmath.sqrt(b))
        return self.p**2 * absolute + self.q**2 * c - self.mean * self.p * means + self.mean**2

    def slope_dual(self, a: mpf, b: mpf, c: mpf) -> mpf:
        return self.p**2 * 2 / mpmath.pi * mpmath.asin(c / mpmath.sqrt(a * b)) + self.q**2


def relu_deq(sa: mpf, sb: mpf, v0: mpf) -> Callable[[mpf, mpf, mpf], mpf]:
    """The CK of the centered DEQ, whose φ has the mean √(v/2π) at the variance v for ‖x‖² = v0."""
    half = mpf(1) / 2
    v = sb * v0 / (1 - sa * (half - 1 / (2 * mpmath.pi)))
    phi = Rectifier(half, half, mpmath.sqrt(v / (2 * mpmath.pi)))

    def solve(start: mpf, equation: Callable[[mpf], mpf]) -> mpf:
        return mpmath.findroot(equation, (start, start + mpf(10) ** -20), tol=mpf(10) ** -90)

    def variance(square: mpf) -> mpf:
        return solve(v, lambda t: t - sa * phi.dual(t, t, t) - sb * square)

    def kernel(a: mpf, b: mpf, c: mpf) -> mpf:
        va, vb = variance(a), variance(b)
        if a == b == c:
            return phi.dual(va, va, va)
        joint = solve(sb * c, lambda t: t - sa * phi.dual(va, vb, t) - sb * c)
        return phi.dual(va, vb, joint)

    return kernel


def layers(design: shoal.designs.Design) -> Callable[[mpf, mpf, mpf], mpf]:
    """The CK of a network of leaky rectifiers."""
    rectifiers = []
    for sigma in design.architecture.activations:  # type: ignore[attr-defined]
        scale, slope = mpf(sigma.scale), mpf(sigma.activation.slope)
        p, q = scale * (1 - slope) / 2, scale * (1 + slope) / 2
        rectifiers.append(Rectifier(p, q, -mpf(sigma.shift)))

    def kernel(a: mpf, b: mpf, c: mpf) -> mpf:
        for layer in rectifiers:
            a, b, c = layer.dual(a, a, a), layer.dual(b, b, b), layer.dual(a, b, c)
        return c

    return kernel


def coefficients(kernel: Callable[[mpf, mpf, mpf], mpf], v0: mpf) -> list[float]:
    """γ², α_1, α_2, α_3 by differences in fifty digits."""
    h, zero = mpf(10) ** -9, mpf(0)
    up, down, here = (kernel(v0, v0, s * h) for s in (1, -1, zero))
    mixed = sum(s * t * kernel(v0 + s * h, v0 + t * h, zero) for s in (1, -1) for t in (1, -1))
    found = (
        kernel(v0, v0, v0),
        (up - down) / (2 * h),
        mixed / (4 * h * h),
        (up + down - 2 * here) / (2 * h * h),
    )
    return [float(number) for number in found]


@pytest.mark.thorough("0.7-0.6")
@pytest.mark.parametrize(("recurrent", "input_norm"), [(0.2, 1.0), (0.7, 0.6)])
def test_leaky_rectifiers_in_fifty_digits(recurrent: float, input_norm: float) -> None:
    d = shoal.design(
        shoal.DEQ(shoal.activations.ReLU(), recurrent, 0.8),
        input_norm=input_norm,
        which="ck",
        method=LEAKY_RELU,
    )
    with mpmath.workdps(50):
        v0 = mpf(input_norm) ** 2
        wanted = coefficients(relu_deq(mpf(recurrent), mpf(0.8), v0), v0)
        np.testing.assert_allclose(list(d.target.values()), wanted, rtol=1e-14)
        assert len(d.alternatives) == 1
        for one in (d, *d.alternatives):
            np.testing.assert_allclose(coefficients(layers(one), v0), wanted, rtol=1e-14)


def rectifier_roots(recurrent: float) -> int:
    r"""How many pairs of leaky rectifiers have the CK coefficients of a ReLU DEQ, τ_0 = σ_b = 1.

    With E[σ_1²] = τ_0², k = 1 − 2/π, P = p², Q = q² the equations are P_1 k + Q_1 = 1,
    P_2 k + Q_2 = γ², Q_1 Q_2 = α_1 and P_1 Q_2 + P_2 Q_1² = πα_3: a cubic in Q_1.
    """
    k = 1 - 2 / math.pi
    energy = (1 + k) / 4
    v, s = 1 / (1 - recurrent * energy), 1 - recurrent / 4
    gamma2, alpha1 = energy * v, 0.25 / s
    alpha3 = (recurrent * alpha1 + 1) ** 2 / (4 * math.pi * v * s)
    bent = math.pi * k * alpha3
    roots = np.roots([gamma2, -alpha1, -(alpha1 + bent), alpha1])
    real = roots[np.abs(roots.imag) < 1e-9].real
    return int(((real >= alpha1 / gamma2) & (real <= 1)).sum())


@pytest.mark.thorough("0.01", "0.8527", "0.95")
@pytest.mark.parametrize("recurrent", [0.01, 0.5, 0.8527, 0.8529, 0.95])
def test_where_leaky_rectifiers_end(recurrent: float) -> None:
    d = shoal.design(
        shoal.DEQ(shoal.activations.ReLU(), recurrent, 1.0),
        input_norm=1.0,
        which="ck",
        method=LEAKY_RELU,
    )
    expected = rectifier_roots(recurrent)
    assert expected == (2 if recurrent < 0.85278 else 0)
    assert d.feasible == (expected > 0)
    assert len(d.alternatives) == max(expected - 1, 0)
