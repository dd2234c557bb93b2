"""Power series of kernels against kernel functions, closed forms and mpmath."""

import math

import mpmath
import numpy as np
import pytest
import torch

from shoal import (
    DEQ,
    AccuracyError,
    ConvergenceError,
    ConvResNet,
    FullyConnected,
    ResNet,
    gaussian,
    kernel_function,
)
from shoal.activations import (
    ELU,
    GELU,
    Cosine,
    HardTanh,
    Hermite,
    LeakyReLU,
    ReLU,
    Sigmoid,
    Softplus,
    Swish,
    Tanh,
)
from shoal.designs import kernel_series

COSINES = np.linspace(-0.9, 0.9, 19)
ACTIVATIONS = [
    ReLU(),
    LeakyReLU(0.2),
    Tanh(),
    HardTanh(),
    Swish(),
    GELU(),
    Softplus(),
    Sigmoid(),
    ELU(),
    Cosine(),
]


def check(architecture, norm, tolerance=2e-13, degree=256, **options):
    series = kernel_series(architecture, norm=norm, degree=degree, **options)
    kernels = kernel_function(architecture, **options)(
        norm**2, norm**2, norm**2 * torch.from_numpy(COSINES)
    )
    for found, exact, coefficients in zip(
        series(COSINES), kernels, (series.ck, series.ntk), strict=True
    ):
        assert (coefficients >= 0).all()
        assert np.abs(found - exact.numpy()).max() < tolerance * float(exact.max())


@pytest.mark.thorough("Sigmoid", "ELU", "Swish", "HardTanh", "Softplus")
@pytest.mark.parametrize("phi", ACTIVATIONS, ids=repr)
def test_a_deq(phi):
    check(DEQ(phi, 0.9 / phi.lipschitz**2, 0.8), norm=1.3)


@pytest.mark.parametrize("trainable", [{"readout"}, {"recurrent"}, {"input", "readout"}])
def test_groups(trainable):
    check(DEQ(GELU(), 0.5, 0.7), 0.8, trainable=trainable)


def test_the_standard_parametrization():
    deq = DEQ.ling2023(weight_variance=0.1, in_features=4)
    check(deq, norm=2.0)
    check(deq, norm=2.0, width=64)


def test_degenerate_variances():
    check(DEQ(Tanh(), 0.0, 0.8), norm=1.0)
    with pytest.raises(AccuracyError, match="angle"):
        kernel_series(DEQ(Softplus(), 0.5, 0.0))
    with pytest.raises(ValueError, match="zero"):
        kernel_series(DEQ(Tanh(), 0.5, 0.0))


@pytest.mark.parametrize("phi", [Softplus(), ReLU(), Tanh()], ids=repr)
def test_residual_networks(phi):
    check(ResNet(phi, 3, residual_scale=1.5), norm=0.8)
    check(ResNet((phi, Tanh(), phi), 3), norm=1.2, trainable={"layer2"})


@pytest.mark.parametrize(("depth", "normalized"), [(1, False), (2, True), (3, False)])
def test_fully_connected(depth, normalized):
    activations = (Softplus(), Tanh(), GELU())[:depth]
    check(FullyConnected(activations, normalized=normalized), norm=1.2)
    check(FullyConnected(activations), norm=1.2, trainable={"layer1"})


def test_one_layer_of_relu_is_the_arc_cosine_series():
    ck = kernel_series(FullyConnected([ReLU()]), degree=60).ck
    for k in range(2, 61, 2):
        # c_k² = ((k-3)!!)² / (2π k!)
        exact = mpmath.fac2(k - 3) ** 2 / (2 * mpmath.pi * mpmath.factorial(k))
        assert float(ck[k] / exact) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("order", [40, 400, 1500])
def test_hermite_coefficients_of_high_order(order):
    tau = 0.9
    found = float(gaussian.hermite(HardTanh(), tau, order + 1)[order | 1])
    with mpmath.workdps(60):
        k, t = order | 1, mpmath.mpf(1) / mpmath.mpf(tau)
        # φ'' is a delta at either bound: c_k = -2τ h_{k-2}(t) p(t) / √(k(k-1))
        h, before = mpmath.mpf(1), mpmath.mpf(0)
        for n in range(k - 2):
            h, before = (t * h - mpmath.sqrt(n) * before) / mpmath.sqrt(n + 1), h
        exact = -2 * tau * h * mpmath.npdf(t) / mpmath.sqrt(k * (k - 1))
    assert found == pytest.approx(float(exact), abs=3e-15)


def test_the_tame_signs_of_relu():
    ck = kernel_series(DEQ(ReLU(), 0.2, 0.8), degree=80).ck
    signs = [1.0, 1.0, *((-1.0) ** (k // 2 + 1) for k in range(2, 81))]
    sigma = Hermite(tuple(np.sqrt(ck) * signs))
    left, right = sigma(torch.tensor([-4.0, 4.0], dtype=torch.float64)).tolist()
    assert (round(left, 2), round(right, 2)) == (-0.40, 4.22)


def test_coefficients_by_contour_integral():
    """Cauchy's formula on the kernel of a polynomial activation, solved in the complex plane."""
    phi, recurrent, injection = Hermite((0.2, 0.6, 0.1)), 0.5, 0.8
    deq = DEQ(phi, recurrent, injection)
    tau2 = float(kernel_function(deq)(1.0, 1.0, 1.0).ck) * recurrent + injection
    c2 = gaussian.hermite(phi, math.sqrt(tau2), 2).numpy() ** 2
    rho = np.exp(2j * np.pi * np.arange(64) / 64) * 0.9
    lam = injection * rho
    for _ in range(300):
        u = lam / tau2
        lam = recurrent * (c2[0] + c2[1] * u + c2[2] * u**2) + injection * rho
    u = lam / tau2
    exact = np.fft.fft(c2[0] + c2[1] * u + c2[2] * u**2).real / 64 / 0.9 ** np.arange(64)
    ck = kernel_series(deq, degree=20).ck
    assert np.abs(ck - exact[:21]).max() < 1e-12


def test_bad_arguments():
    with pytest.raises(ConvergenceError):
        kernel_series(DEQ(ReLU(), 2.1, 0.8))
    with pytest.raises(ValueError, match="norm"):
        kernel_series(DEQ(ReLU(), 0.2, 0.8), norm=0.0)
    with pytest.raises(ValueError, match="degree"):
        kernel_series(DEQ(ReLU(), 0.2, 0.8), degree=1)
    with pytest.raises(TypeError, match="ConvResNet"):
        kernel_series(ConvResNet(Softplus(), depth=2))
