"""Laws that the Gaussian calculus obeys for every activation and every argument."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ACTIVATIONS, BUILT_IN
from torch.autograd import gradcheck, gradgradcheck

from shoal.activations import (
    GELU,
    Affine,
    Cosine,
    Erf,
    HardTanh,
    LeakyReLU,
    Mish,
    ReLU,
    Softplus,
    Swish,
    Tanh,
)
from shoal.gaussian import dual, dual_derivative, hermite, moments

activations = st.sampled_from(list(BUILT_IN.values()))
variances = st.floats(1e-3, 30.0)
correlations = st.floats(-1.0, 1.0)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def norm(phi, variance):
    return dual(phi, tensor(variance), tensor(variance), tensor(variance)).sqrt()


@given(activations, variances, variances, correlations)
def test_the_dual_is_symmetric(phi, a, b, rho):
    a, b, c = tensor(a), tensor(b), tensor(rho * math.sqrt(a * b))
    assert torch.equal(dual(phi, a, b, c), dual(phi, b, a, c))
    assert torch.equal(dual_derivative(phi, a, b, c), dual_derivative(phi, b, a, c))


@given(activations, variances, variances, correlations)
def test_cauchy_schwarz(phi, a, b, rho):
    value = dual(phi, tensor(a), tensor(b), tensor(rho * math.sqrt(a * b)))
    assert value.abs() <= norm(phi, a) * norm(phi, b) * (1 + 1e-12) + 1e-300


@settings(max_examples=15)
@given(activations, st.integers(0, 2**31))
def test_dual_matrices_are_positive_semidefinite(phi, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 3, dtype=torch.float64, generator=generator)
    gram = x @ x.T
    gram = (gram + gram.T) / 2
    d = gram.diagonal()
    for function in (dual, dual_derivative):
        matrix = function(phi, d[:, None], d[None, :], gram)
        # vectorized and scalar elementary functions may differ in the last place
        torch.testing.assert_close(matrix, matrix.T, rtol=1e-14, atol=1e-15)
        assert torch.linalg.eigvalsh(matrix).min() >= -1e-12 * matrix.diagonal().max()


@given(variances, variances, correlations, st.floats(0.1, 10.0), st.floats(-2.0, 2.0))
def test_positively_homogeneous_activations_scale(a, b, rho, factor, slope):
    a, b, c = tensor(a), tensor(b), tensor(rho * math.sqrt(a * b))
    for phi in (ReLU(), LeakyReLU(slope)):
        scaled = dual(phi, factor * a, factor * b, factor * c)
        bound = 1e-12 * factor * (a * b).sqrt()
        assert (scaled - factor * dual(phi, a, b, c)).abs() <= bound
        same = dual_derivative(phi, factor * a, factor * b, factor * c)
        # c/√(ab) is rounded on both sides, and the angle magnifies that by 1/sin θ <= 1e8
        assert (same - dual_derivative(phi, a, b, c)).abs() <= 1e-7


@given(activations, variances, variances, st.floats(-0.99, 0.99))
def test_prices_theorem(phi, a, b, rho):
    """∂D/∂c = D', by differences: the error of the quotient is of second order in the step."""
    root = math.sqrt(a * b)
    a, b, c, step = tensor(a), tensor(b), tensor(rho * root), 1e-4 * (1 - abs(rho)) * root
    quotient = (dual(phi, a, b, c + step) - dual(phi, a, b, c - step)) / (2 * step)
    slope = dual_derivative(phi, a, b, c)
    size = dual_derivative(phi, a, a, a).sqrt() * dual_derivative(phi, b, b, b).sqrt()
    rounding = 1e-14 * norm(phi, float(a)) * norm(phi, float(b)) / step
    assert (quotient - slope).abs() <= 1e-6 * size + rounding


@given(activations, variances, variances, st.floats(-0.8, 0.8))
def test_mehlers_formula(phi, a, b, rho):
    """D = Σ c_k(√a) c_k(√b) ρ^k; the tail is bounded by Parseval's identity."""
    coefficients = hermite(phi, tensor(math.sqrt(a), math.sqrt(b)), 120)
    series = (coefficients.prod(0) * rho ** torch.arange(121, dtype=torch.float64)).sum()
    value = dual(phi, tensor(a), tensor(b), tensor(rho * math.sqrt(a * b)))
    scale = norm(phi, a) * norm(phi, b)
    assert (value - series).abs() <= (1e-12 + abs(rho) ** 121) * scale + 1e-300


factors = st.floats(-3.0, 3.0, allow_subnormal=False)


@pytest.mark.thorough
@given(activations, st.floats(1e-3, 30.0), factors, factors)
def test_affine_moments(phi, tau, scale, shift):
    plain, moved = moments(phi, tau), moments(Affine(phi, scale, shift), tau)
    size = 1 + abs(scale) * plain.square.sqrt() + abs(shift)
    assert (moved.mean - (scale * plain.mean + shift)).abs() <= 1e-13 * size
    assert (moved.first - scale * plain.first).abs() <= 1e-13 * abs(scale) * (1 + plain.first.abs())
    square = scale**2 * plain.square + 2 * scale * shift * plain.mean + shift**2
    assert (moved.square - square).abs() <= 1e-13 * size**2


@given(activations, st.floats(1e-2, 10.0))
def test_steins_identities(phi, tau):
    """E φ^(k)(τξ) = √k! c_k / τ^k, which integrates φ itself and so knows nothing of kinks."""
    c, m = hermite(phi, tau, 3), moments(phi, tau)
    values = torch.stack((m.mean, m.first, m.second, m.third))
    largest = max(values.abs().max(), m.square, m.first_square)
    for k, value in enumerate(values):
        stein = math.sqrt(math.factorial(k)) * c[k] / tau**k
        assert (value - stein).abs() <= 1e-14 * math.sqrt(m.square) / tau**k + 1e-13 * largest


@pytest.mark.parametrize("phi", [Cosine(), ReLU(), GELU(), Tanh(), HardTanh()], ids=repr)
def test_a_centred_activation_keeps_its_digits(phi):
    """The shift is rounded, but a centred mean is zero to first order in that: no digits go."""
    a, b = tensor(1e-2), tensor(1e-2)
    mean = float(moments(phi, 0.1).mean)
    centred = Affine(phi, shift=-mean)
    c = tensor(3e-3)
    expected = (
        hermite(phi, 0.1, 40)[1:] ** 2 * 0.3 ** torch.arange(1, 41, dtype=torch.float64)
    ).sum()
    assert (dual(centred, a, b, c) - expected).abs() <= 1e-12 * dual(centred, a, b, a)


@pytest.mark.parametrize("phi", [Mish(), Swish(), Softplus(), GELU()], ids=repr)
def test_rectifiers_at_scales_where_exponentials_overflow(phi):
    """They differ from ReLU, whose mean is τ/√(2π), near zero alone."""
    tau, (nodes, weights) = 1000.0, np.polynomial.legendre.leggauss(30)
    x = torch.from_numpy(np.arange(-59, 60, 2)[:, None] + nodes)
    difference = (phi(x) - torch.relu(x)) * torch.exp(-((x / tau) ** 2) / 2)
    mean = (tau + float((torch.from_numpy(weights) * difference).sum()) / tau) / math.sqrt(
        2 * math.pi
    )
    assert float(moments(phi, tau).mean) == pytest.approx(mean, rel=1e-13)


LONG = (
    "Step",
    "Shifted",
    "Mish",
    "ELU",
    "Cubed",
    "Swish",
    "Softplus",
    "Sigmoid",
    "Squared",
    "Tanh",
    "Leaky",
)


@pytest.mark.thorough(*LONG)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_all_first_and_second_derivatives(name):
    a, b, c = (
        torch.tensor(values, dtype=torch.float64, requires_grad=True)
        for values in ([1.1, 0.7, 2.0], [0.9, 0.7, 1.0], [0.4, -0.3, 1.0])
    )
    phi = ACTIVATIONS[name]
    assert gradcheck(lambda *t: dual(phi, *t), (a, b, c))
    assert gradgradcheck(lambda *t: dual(phi, *t), (a, b, c))


@pytest.mark.thorough("ShiftedReLU", "Tanh", "Sine")
@pytest.mark.parametrize(
    "name", ["ReLU", "Tanh", "ELU_0.5", "HermiteSeries", "Sine", "ShiftedReLU"]
)
def test_moments_and_coefficients_are_differentiable(name):
    phi = ACTIVATIONS[name]
    tau = torch.tensor([0.7, 2.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t: hermite(phi, t, 4), tau)
    assert gradgradcheck(lambda t: hermite(phi, t, 4), tau)
    assert gradcheck(lambda t: tuple(vars(moments(phi, t)).values()), tau)


def test_the_delta_at_a_kink_is_not_dropped():
    """∂²D/∂c² of ReLU is 1/(2π√(ab-c²)); differentiating quadrature nodes gets the sign wrong."""
    c = tensor(0.3).requires_grad_()
    (slope,) = torch.autograd.grad(dual(ReLU(), 1.0, 1.0, c).sum(), c, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), c)
    assert bend.item() == pytest.approx(1 / (2 * math.pi * math.sqrt(1 - 0.09)), rel=1e-13)


def test_smooth_limits_at_full_correlation():
    """At c = ±√(ab) the dual is a one-dimensional integral, and the limit of its neighbours."""
    for phi in (Tanh(), Erf(), HardTanh(), ReLU()):
        for sign in (-1.0, 1.0):
            at = dual(phi, 2.0, 0.5, tensor(sign))
            near = dual(phi, 2.0, 0.5, tensor(sign * (1 - 1e-13)))
            assert (at - near).abs() <= 1e-12


@pytest.mark.parametrize(
    "phi", [ReLU(), LeakyReLU(0.1), GELU(), Erf(), Affine(GELU(), 2.0, 1.0)], ids=repr
)
def test_closed_forms_are_symmetric_to_the_last_bit(phi):
    generator = torch.Generator().manual_seed(0)
    unit = torch.rand(3, 4096, dtype=torch.float64, generator=generator)
    a, b = 0.1 + unit[0], 0.1 + 3 * unit[1]
    c = (2 * unit[2] - 1) * (a * b).sqrt()
    assert torch.equal(dual(phi, a, b, c), dual(phi, b, a, c))
    assert torch.equal(dual_derivative(phi, a, b, c), dual_derivative(phi, b, a, c))


def test_coefficients_are_differentiable_at_small_scales():
    tau = tensor(1e-6).requires_grad_()
    value = hermite(Softplus(), tau, 0)
    (slope,) = torch.autograd.grad(value.sum(), tau, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), tau)
    assert slope.item() == pytest.approx(0.25e-6, rel=1e-10)  # φ''(0) τ
    assert bend.item() == pytest.approx(0.25, rel=1e-10)


@pytest.mark.parametrize("variance", [1e12, 1e18, 1e40, 1e100])
def test_gelu_of_large_arguments_is_a_rectifier(variance: float) -> None:
    cosine = torch.tensor([-0.99, -0.3, 0.0, 1e-3, 0.5, 1 - 1e-9, 1.0], dtype=torch.float64)
    a = torch.full_like(cosine, variance)
    c = cosine * a
    for of, other in itertools.product((dual, dual_derivative), (a, 2 * a)):
        found, wanted = of(GELU(), a, other, c), of(ReLU(), a, other, c)
        # they differ by a share of about the inverse of the root of the variance
        rounding = 1e-15 * float(wanted.max())
        torch.testing.assert_close(found, wanted, rtol=4 / variance**0.5, atol=rounding)
