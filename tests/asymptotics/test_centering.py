"""Centered architectures: means of zero, by mpmath and by the kernels themselves."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import BUILT_IN

from shoal import (
    DEQ,
    ConvDEQ,
    ConvergenceError,
    FullyConnected,
    ImplicitNetwork,
    ResNet,
    centered,
    kernel_function,
)
from shoal.activations import Affine, Cosine, Erf, Hermite, Identity, LeakyReLU, ReLU, Sine, Tanh
from shoal.gaussian import hermite, moments


@pytest.mark.thorough("0.1-", "ELU_0.5")
@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("input_norm", [0.1, 4.0])
def test_the_kernel_of_orthogonal_inputs_vanishes(name, input_norm):
    recurrent = 1e-5 if name == "HermiteSeries" else 0.3
    for plain in (
        DEQ(BUILT_IN[name], recurrent, 0.6),
        FullyConnected([BUILT_IN[name]] * 2),
        FullyConnected([BUILT_IN[name]] * 2, normalized=True),
        ResNet(BUILT_IN[name], 3),
    ):
        architecture = centered(plain, input_norm)
        one, two = input_norm**2, 2 * input_norm**2
        triples = [(one, one, one), (two, two, two), (one, one, 0.0), (one, two, 0.0)]
        pairs = torch.tensor(triples, dtype=torch.float64)
        own, other, *orthogonal = kernel_function(architecture)(*pairs.T).ck.tolist()
        for value, scale in zip(orthogonal, (own, math.sqrt(own * other)), strict=True):
            assert abs(value) <= 1e-13 * scale
        assert centered(architecture, input_norm) == architecture


@pytest.mark.parametrize("phi", [Tanh(), Erf(), Sine(), Identity(), Affine(Tanh(), scale=2.0)])
def test_what_is_centered_stays(phi):
    for architecture in (DEQ(phi, 0.2, 0.8), FullyConnected([phi, phi])):
        assert centered(architecture, 1.5) == architecture


def test_relu_in_closed_form():
    """Var[max(τξ, 0)] = τ²(1/2 - 1/2π), so τ_*² = σ_b²τ₀²/(1 - σ_a²(1/2 - 1/2π))."""
    deq = centered(DEQ(ReLU(), 0.9, 0.7), input_norm=1.3)
    variance = 0.7 * 1.3**2 / (1 - 0.9 * (0.5 - 0.5 / math.pi))
    assert deq.activation.shift == pytest.approx(-math.sqrt(variance / (2 * math.pi)), rel=1e-14)


def test_cosine_by_mpmath():
    """Var[cos(τξ)] = (1 - e^{-τ²})²/2."""
    deq = centered(DEQ(Cosine(), 0.9, 0.5), input_norm=1.0)
    root = mpmath.findroot(lambda v: 0.45 * (1 - mpmath.exp(-v)) ** 2 + 0.5 - v, 0.6)
    assert deq.activation.shift == pytest.approx(-float(mpmath.exp(-root / 2)), rel=1e-14)


@pytest.mark.thorough
@settings(max_examples=8, deadline=None)
@given(
    st.floats(0.0, 0.99), st.floats(0.05, 3.0), st.floats(0.01, 30.0), st.floats(-1000.0, 1000.0)
)
def test_shifts_do_not_matter(recurrent, injection, input_norm, shift):
    plain = centered(DEQ(LeakyReLU(0.3), recurrent, injection), input_norm)
    shifted = centered(DEQ(Affine(LeakyReLU(0.3), shift=shift), recurrent, injection), input_norm)
    assert isinstance(shifted.activation.activation, LeakyReLU)
    assert shifted.activation.shift == pytest.approx(plain.activation.shift, rel=1e-11)


def test_the_factor_is_that_of_the_shifted_activation():
    network = centered(FullyConnected([ReLU(), ReLU()], normalized=True), input_norm=2.0)
    first, second = network.activations
    assert first.shift == pytest.approx(-2 / math.sqrt(2 * math.pi), rel=1e-14)
    t = -first.shift
    unit = 0.5 - 2 * t / math.sqrt(2 * math.pi) + t * t  # E[(max(ξ, 0) - t)²]
    tau = 2 * math.sqrt((0.5 - 0.5 / math.pi) / unit)
    assert second.shift == pytest.approx(-tau / math.sqrt(2 * math.pi), rel=1e-14)


@pytest.mark.thorough
def test_beyond_the_guarantee():
    """ReLU without a fixed point of its own: σ_a²/2 > 1, but σ_a²(1/2 - 1/2π) < 1."""
    with pytest.raises(ConvergenceError):
        kernel_function(DEQ(ReLU(), 2.5, 1.0))(1.0, 1.0, 0.0)
    deq = centered(DEQ(ReLU(), 2.5, 1.0), input_norm=1.0)
    variance = 1 / (1 - 2.5 * (0.5 - 0.5 / math.pi))
    assert deq.activation.shift == pytest.approx(-math.sqrt(variance / (2 * math.pi)), rel=1e-13)


@pytest.mark.thorough("Identity")
@pytest.mark.parametrize("phi", [Identity(), Hermite((0.0, 1.0, 1.0))], ids=repr)
def test_no_fixed_point_no_centering(phi):
    with pytest.raises(ConvergenceError, match="no centering exists"):
        centered(DEQ(phi, 1.1, 1.0), input_norm=1.0)


def test_bad_arguments():
    with pytest.raises(ValueError, match="input_norm must be > 0"):
        centered(DEQ(ReLU(), 0.2, 0.8), 0.0)
    with pytest.raises(TypeError, match="must be an Architecture"):
        centered(ReLU(), 1.0)
    with pytest.raises(TypeError, match="cannot be centered, since its pixels have variances"):
        centered(ConvDEQ(ReLU(), 0.5, 0.8), 1.0)
    with pytest.raises(TypeError, match=r"ImplicitNetwork\(gamma=0.3\) cannot be centered"):
        centered(ImplicitNetwork(gamma=0.3), 1.0)
    with pytest.raises(ValueError, match="input_variance must be > 0"):
        centered(DEQ(ReLU(), 0.2, 0.0), 1.0)
    with pytest.raises(ValueError, match=r"activations\[1\] must not be constant"):
        centered(FullyConnected([ReLU(), Hermite((0.5,))]), 1.0)


@pytest.mark.parametrize("phi", [Cosine(), Hermite((0.3, 0.7))])
def test_closed_coefficients_of_shifted_activations_have_all_digits(phi):
    shifted = Affine(phi, shift=-0.1234567890123456)
    assert float(hermite(shifted, 0.9, 0)) == pytest.approx(
        float(moments(phi, 0.9).mean) - 0.1234567890123456, rel=1e-14
    )


def test_linear_kernels_have_second_derivatives():
    f = kernel_function(FullyConnected([Identity()]))
    assert float(f.derivative(1.0, 1.0, 0.3, orders=(0, 0, 2)).ck) == 0.0
